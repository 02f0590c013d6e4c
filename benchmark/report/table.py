"""A table of the report, and the four ways to write one: for a terminal, Markdown, CSV and LaTeX.

Rounding happens here and nowhere else.
"""

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import pandas as pd
from tabulate import tabulate

from benchmark.records.statistics import shown
from benchmark.report.frames import DECIMALS, VALUES

LATEX = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}"}
LATEX |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "±": r"$\pm$"}
LATEX |= {"†": r"\dag{}", "§": r"\S{}", "¶": r"\P{}", "−": "$-$", "→": r"$\to$", "<": "$<$", ">": "$>$"}
LATEX |= {'"': "''", "|": r"\textbar{}"}
LAST_LETTER = 0x180
"""Latin with accents ends here; what follows needs fonts that not everybody has."""
CSV_DECIMALS = 4
DIRTY, MIXED = "§", "¶"
LEGEND = (
    "Each cell: mean ± sample deviation (runs), in percent. `div (k/n)`: k of n runs diverged. "
    f"{DIRTY}: made by code with uncommitted changes, or of no known commit. {MIXED}: by several commits. "
    "(own): your own runs, not published ones; name@digest: a method of your own."
)
RANKS = (
    "Best in bold, second best underlined (`*` and `'` in a terminal), by the mean over the seeds that all ranked "
    "methods share; one seed is never ranked."
)
Line = dict[Hashable, Any]
"""A row of a frame."""


@dataclass(frozen=True)
class Cell:
    """Text, and 1 or 2 if it is the best or second best of its column."""

    text: str
    rank: int = 0


@dataclass(frozen=True)
class Section:
    """A grid under its own heading."""

    heading: str
    columns: list[str]
    rows: list[list[Cell]]


@dataclass(frozen=True)
class Table:
    """Some sections for people, and one frame with a line a cell for machines."""

    name: str
    title: str
    note: str
    sections: list[Section]
    frame: pd.DataFrame

    def written(self) -> pd.DataFrame:
        """The frame without what only ranks needed."""
        return self.frame.drop(columns=VALUES, errors="ignore")


def number(value: float) -> str:
    return shown(value, DECIMALS)


def signed(value: float) -> str:
    return ("+" if round(value, DECIMALS) > 0 else "") + number(value)


def to_text(table: Table) -> str:
    """For a terminal: `*` marks the best, `'` the second best."""
    parts = [f"{table.title}\n{'=' * len(table.title)}\n"]
    for section in table.sections:
        rows = [[cell.text + ("", "*", "'")[cell.rank] for cell in row] for row in section.rows]
        grid = tabulate(rows, headers=section.columns, tablefmt="simple", disable_numparse=True)
        parts.append(f"{section.heading}\n\n{grid}\n")
    return "\n".join(parts)


def to_markdown(table: Table) -> str:
    """Best in bold, second best underlined."""
    parts = [f"# {table.title}\n", *([f"{table.note}\n"] if table.note else [])]
    for section in table.sections:
        rows = [[styled(cell, markdown, "**{}**", "<u>{}</u>") for cell in row] for row in section.rows]
        headers = [*map(markdown, section.columns)]
        grid = tabulate(rows, headers=headers, tablefmt="pipe", disable_numparse=True)
        parts.append(f"## {markdown(section.heading)}\n\n{grid}\n")
    return "\n".join(parts)


def styled(cell: Cell, escape: Callable[[str], str], best: str, second: str) -> str:
    return ("{}", best, second)[cell.rank].format(escape(cell.text))


def markdown(text: str) -> str:
    """Text of a record as text: no markup, no cell borders, no HTML."""
    for letter, safe in {"&": "&amp;", "<": "&lt;", ">": "&gt;"}.items():
        text = text.replace(letter, safe)
    return re.sub(r"([\\|`*_\[\]$~])", r"\\\1", text)


def to_csv(table: Table) -> str:
    """One line a cell. A text that a spreadsheet would take for a formula is quoted with an apostrophe."""
    safe = table.written()
    for column in safe.select_dtypes(["object", "string"]).columns:
        safe[column] = safe[column].map(lambda text: guarded(text) if isinstance(text, str) else text)
    return safe.round(CSV_DECIMALS).to_csv(index=False, lineterminator="\n")


def guarded(text: str) -> str:
    return f"'{text}" if re.match(r"\s*[=+\-@\t\r]", text) else text


def escape(text: str) -> str:
    """What LaTeX takes for text; letters it cannot set without more packages become question marks."""
    return "".join(LATEX.get(letter, letter if ord(letter) < LAST_LETTER else "?") for letter in text)


def to_latex(table: Table) -> str:
    """A table for each section; needs the package booktabs and nothing else."""
    parts = []
    for section in table.sections:
        body = [
            " & ".join(styled(cell, escape, r"\textbf{{{}}}", r"\underline{{{}}}") for cell in row) + r" \\"
            for row in section.rows
        ]
        parts += [
            rf"\begin{{table}}\centering\scriptsize\caption{{{escape(table.title)}. {escape(section.heading)}.}}",
            rf"\begin{{tabular}}{{l{'c' * (len(section.columns) - 1)}}}",
            r"\toprule",
            " & ".join(map(escape, section.columns)) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    return "\n".join(parts)
