"""Data frames as text: Markdown, CSV and LaTeX. Rounding happens here and nowhere else."""

import re

import pandas as pd
from tabulate import tabulate

from benchmark.report.frames import Metric

LATEX = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}"}
LATEX |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "±": r"$\pm$"}


def cell_text(row: pd.Series) -> str:
    """`mean ± deviation (n)`, or how many runs diverged."""
    if row["diverged"]:
        return f"div ({row['diverged']}/{row['runs']})"
    if pd.isna(row["deviation"]):
        return f"{row['mean']:.2f} (n=1)"
    return f"{row['mean']:.2f} ± {row['deviation']:.2f} (n={row['runs']})"


def grid(table: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """A group's cells as methods x protocols; blank where nothing ran."""
    texts = {(row["method"], row["protocol"]): cell_text(row) for _, row in table.iterrows()}
    protocols = sorted(table["protocol"].unique())
    kept = table[table["stored"] != ""].groupby("method")["stored"].unique()
    stored = {method: " / ".join(kept.get(method, [])) for method in table["method"]}
    rows = [
        [method, *(texts.get((method, protocol), "") for protocol in protocols), stored[method]]
        for method in sorted(stored)
    ]
    return ["method", *protocols, "stored per class"], rows


def groups(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(name, table[table["group"] == name]) for name in dict.fromkeys(table["group"])]


def arrow(metric: Metric) -> str:
    return "higher is better" if metric.higher_is_better else "lower is better"


def to_markdown(table: pd.DataFrame, metric: Metric) -> str:
    """A section for each group."""
    parts = [f"## {metric.title}, in %, {arrow(metric)}\n"]
    for name, part in groups(table):
        headers, rows = grid(part)
        safe = [[cell.replace("|", r"\|") for cell in row] for row in rows]
        parts.append(f"### {name}\n\n{tabulate(safe, headers=headers, tablefmt='pipe', disable_numparse=True)}\n")
    return "\n".join(parts)


def to_csv(table: pd.DataFrame) -> str:
    """One line a cell, unrounded. A text that a spreadsheet would take for a formula is quoted with an apostrophe."""
    safe = table.copy()
    for column in ("group", "protocol", "method", "stored"):
        safe[column] = safe[column].map(lambda text: f"'{text}" if re.match(r"[=+\-@\t\r]", text) else text)
    return safe.to_csv(index=False, lineterminator="\n")


def escape(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)


def to_latex(table: pd.DataFrame, metric: Metric) -> str:
    """A booktabs table for each group."""
    parts = []
    for name, part in groups(table):
        headers, rows = grid(part)
        body = [" & ".join(map(escape, row)) + r" \\" for row in rows]
        parts += [
            rf"\begin{{table}}\centering\caption{{{escape(metric.title)} in \% ({arrow(metric)}), {escape(name)}.}}",
            rf"\begin{{tabular}}{{l{'c' * (len(headers) - 2)}l}}",
            r"\toprule",
            " & ".join(map(escape, headers)) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    return "\n".join(parts)
