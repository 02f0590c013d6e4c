"""Tables of the report, and the four ways to write one: for a terminal, Markdown, CSV and LaTeX.

Rounding happens here and nowhere else.
"""

import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd
from tabulate import tabulate

from benchmark.protocol import load_protocol, protocol_names
from benchmark.report.frames import DECIMALS, FLOORS, REFERENCE, VALUES, rank, status, variant_text
from benchmark.report.paper import Paper, Variants
from benchmark.report.runs import OWN_MARK
from benchmark.scoring import METRICS, Metric
from benchmark.statistics import shown

LATEX = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}"}
LATEX |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "±": r"$\pm$"}
LATEX |= {
    "†": r"\dag{}",
    "§": r"\S{}",
    "¶": r"\P{}",
    "−": "$-$",
    "→": r"$\to$",
    "<": "$<$",
    ">": "$>$",
    '"': "''",
    "|": r"\textbar{}",
}
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


STORED = ["stored per class", "extra weights"]

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


def cell_text(row: Line) -> str:
    """`mean ± deviation (n)`, or how many runs diverged; blank where nothing ran."""
    if not row["runs"]:
        return ""
    marks = (DIRTY if row["dirty"] else "") + (MIXED if row["commits"] > 1 else "")
    if row["diverged"]:
        return f"div ({row['diverged']}/{row['runs']}){marks}"
    if pd.isna(row["mean"]):
        return ""
    if row["runs"] == 1:
        return f"{number(row['mean'])} (one seed){marks}"
    return f"{number(row['mean'])} ± {number(row['deviation'])} ({row['runs']}){marks}"


class Names:
    """How methods are called and ordered in tables: as in the paper, then the floors, then all others."""

    def __init__(self, paper: Paper) -> None:
        self.paper = paper

    def label(self, method: str) -> str:
        base, own = plain_name(method), method.removeprefix(plain_name(method))
        if base in self.paper.methods:
            return self.paper.methods[base].label + own
        return FLOORS[base] + own if base in FLOORS else method

    def ordered(self, methods: Iterable[str]) -> list[str]:
        first = [*self.paper.methods, *FLOORS]

        def place(name: str) -> tuple[int, str]:
            base = plain_name(name)
            return (first.index(base) if base in first else len(first)), name

        return sorted(set(methods), key=place)


def plain_name(method: str) -> str:
    """A method's name without the mark of own runs."""
    return method.removesuffix(OWN_MARK)


def environments(cells: pd.DataFrame) -> list[str]:
    """The reference first, then by length of what was changed."""
    return sorted(cells["environment"].unique(), key=lambda name: (name != REFERENCE, len(name), name))


def heading(environment: str) -> str:
    return (
        f"Reference runs ({REFERENCE})" if environment == REFERENCE else f"Not comparable with the paper: {environment}"
    )


def arrow(metric: Metric) -> str:
    return "higher is better" if metric.higher_is_better else "lower is better"


def lookup(cells: pd.DataFrame, *keys: str) -> dict[tuple[str, ...], Line]:
    return {tuple(row[key] for key in keys): row for row in cells.to_dict("records")}


def metric_section(
    cells: pd.DataFrame, environment: str, metric: Metric, protocols: list[str], names: Names, *, stored: bool
) -> Section | None:
    """Methods x protocols of one environment; beside reference runs stands what the paper prints."""
    paper, reference = names.paper, environment == REFERENCE
    here = cells[
        (cells["environment"] == environment)
        & (cells["variant"] == "")
        & (cells["metric"] == metric.name)
        & cells["protocol"].isin(protocols)
    ]
    ran = here[here["runs"] > 0]
    columns = protocols if reference else [name for name in protocols if name in set(ran["protocol"])]
    if not columns:
        return None
    found = lookup(here, "method", "protocol")
    published = paper.metrics[metric.name].rows if reference else {}
    rows = []
    # floors have their rows even where they did not run: a table without a floor says less than it seems to
    for method in names.ordered([*ran["method"], *published, *FLOORS]):
        own = [found.get((method, protocol)) for protocol in columns]
        lead = [Cell(names.label(method)), *(stored_cells(own) if stored else [])]
        base = plain_name(method)
        target = base not in paper.methods or paper.methods[base].target
        if target:
            cell = [Cell("") if row is None else Cell(cell_text(row), int(row["rank"])) for row in own]
            rows.append([*lead, *([Cell("ours")] if reference else []), *cell])
        if method in published:
            figures = [published[method].get(protocol) for protocol in columns]
            exemplars = paper.methods[method].exemplars
            said = [Cell(f"{exemplars} images" if exemplars else "nothing"), Cell("")] if stored else []
            texts = [Cell("" if figure is None else number(figure)) for figure in figures]
            rows.append([Cell("" if target else names.label(method)), *said, Cell("paper"), *texts])
        told = [Cell("") if row is None else difference_cell(row["difference"], row["status"]) for row in own]
        if reference and any(cell.text for cell in told):
            rows.append([Cell(""), *([Cell(""), Cell("")] if stored else []), Cell("difference"), *told])
    header = ["method", *(STORED if stored else []), *(["figure"] if reference else []), *columns]
    return Section(f"{metric.title}, {arrow(metric)}. {heading(environment)}{ranked_text(here)}", header, rows)


def ranked_text(cells: pd.DataFrame) -> str:
    """`. Ranks: seeds 1 2 3`, by protocol where they differ; nothing where nothing is ranked."""
    over = dict(cells[cells["ranked over"] != ""].groupby("protocol")["ranked over"].first())
    if not over:
        return ""
    if len({*over.values()}) == 1:
        return f". Ranks: seeds {next(iter(over.values()))}"
    return ". Ranks: " + ", ".join(f"{protocol} seeds {seeds}" for protocol, seeds in over.items())


def stored_cells(cells: Iterable[Line | None]) -> list[Cell]:
    """What a method stores per class, and the weights it has beside block and head."""
    rows = [row for row in cells if row is not None and row["runs"]]
    kept = sorted({str(row["stored"]) for row in rows})
    return [Cell(" / ".join(kept)), Cell(f"{max(row['extra weights'] for row in rows):,}" if rows else "")]


def difference_cell(difference: float | None, kind: str) -> Cell:
    """How far from the paper, and the status; the status alone if runs diverged, nothing where nothing ran."""
    if kind in ("", "not run"):
        return Cell("")
    return Cell(kind if difference is None or pd.isna(difference) else f"{signed(difference)} {kind}")


def metric_table(
    cells: pd.DataFrame, name: str, title: str, metrics: tuple[Metric, ...], protocols: list[str], names: Names
) -> Table:
    """One of the paper's comparisons of methods."""
    stored = len(metrics) == 1
    sections = [
        metric_section(cells, environment, metric, protocols, names, stored=stored)
        for environment in environments(cells)
        for metric in metrics
    ]
    chosen = cells[
        (cells["variant"] == "")
        & cells["metric"].isin([metric.name for metric in metrics])
        & cells["protocol"].isin(protocols)
    ]
    note = f"{LEGEND} {RANKS}\n{reproduction(chosen)}"
    return Table(name, title, note, [section for section in sections if section is not None], chosen)


def reproduction(cells: pd.DataFrame) -> str:
    """How many of the paper's figures are met."""
    counted = cells["status"].value_counts()
    parts = [f"{counted.get(kind, 0)} {kind}" for kind in ("reproduced", "close", "off", "not run")]
    rule = "reproduced: within max(1 point, 2 deviations); close: within twice that"
    return f"Of the paper's figures: {', '.join(parts)} ({rule})."


def variant_table(cells: pd.DataFrame, name: str, title: str, wanted: Variants, names: Names) -> Table:
    """One of the paper's tables in which a method is changed: average accuracy, a row a variant."""
    metric = METRICS[0]
    texts = [variant_text(row.changed) for row in wanted.rows]
    names_here = (wanted.method, f"{wanted.method}{OWN_MARK}")
    known = cells[(cells["metric"] == metric.name) & cells["variant"].isin(texts) & (cells["runs"] > 0)]
    sections, lines = [], []
    for environment in environments(cells):
        reference = environment == REFERENCE
        here = known[(known["environment"] == environment) & known["method"].isin(names_here)]
        changed = {*here[here["variant"] != ""]["protocol"]}
        theirs = [*dict.fromkeys(protocol for row in wanted.rows for protocol in row.figures)] if reference else []
        columns = [*theirs, *sorted(changed - {*theirs})]
        if not columns:
            continue
        rows = []
        for method in names_here:
            own = here[here["method"] == method]
            if method == wanted.method or len(own):
                made, told = variant_rows(own, method, wanted, columns, reference=reference)
                rows += made
                lines += [{"environment": environment, **line} for line in told]
        header = [names.label(wanted.method), *(["figure"] if reference else []), *columns]
        sections.append(Section(f"{metric.title}, {arrow(metric)}. {heading(environment)}", header, rows))
    frame = pd.DataFrame(lines).astype({"mean": float, "deviation": float, "paper": float, "difference": float})
    return Table(name, title, f"{LEGEND} {RANKS}\n{reproduction(frame)}", sections, frame)


def variant_rows(
    cells: pd.DataFrame, method: str, wanted: Variants, columns: list[str], *, reference: bool
) -> tuple[list[list[Cell]], list[Line]]:
    """Rows of a table of variants: of the published runs, or of the user's own; and a line for each cell."""
    found = lookup(cells, "variant", "protocol")
    ranks = {protocol: column_ranks(cells[cells["protocol"] == protocol]) for protocol in columns}
    rows: list[list[Cell]] = []
    lines: list[Line] = []
    own = method.removeprefix(wanted.method)
    for variant in wanted.rows:
        text = variant_text(variant.changed)
        cell = [found.get((text, protocol)) for protocol in columns]
        figures = [variant.figures.get(protocol) if reference else None for protocol in columns]
        judged = [judge(row, figure) for row, figure in zip(cell, figures, strict=True)]
        ours = [
            Cell("") if row is None else Cell(cell_text(row), ranks[protocol].get(text, 0))
            for protocol, row in zip(columns, cell, strict=True)
        ]
        rows.append([Cell(f"{variant.label}{own}"), *([Cell("ours")] if reference else []), *ours])
        if reference:
            rows += [] if own else [[Cell(""), Cell("paper"), *(Cell("" if f is None else number(f)) for f in figures)]]
            told = [difference_cell(*one) for one in judged]
            rows += [[Cell(""), Cell("difference"), *told]] if any(one.text for one in told) else []
        for protocol, row, figure, (difference, kind) in zip(columns, cell, figures, judged, strict=True):
            values = ("mean", "deviation", "runs", "diverged", "seeds", "commits", "dirty")
            blank = {"runs": 0, "diverged": 0, "seeds": "", "commits": 0, "dirty": False}
            line: Line = {"protocol": protocol, "method": method, "row": variant.label, "changed": text}
            line |= {key: blank.get(key) if row is None else row[key] for key in values}
            lines.append({**line, "paper": figure, "difference": difference, "status": kind})
    return rows, lines


def column_ranks(cells: pd.DataFrame) -> dict[str, int]:
    """1 and 2 for the best and second best variant, if there are several and they did not diverge."""
    whole = cells[(cells["diverged"] == 0) & cells["mean"].notna()]
    return rank(dict(zip(whole["variant"], whole[VALUES], strict=True)), higher_is_better=True)[0]


def judge(row: Line | None, figure: float | None) -> tuple[float | None, str]:
    """Difference and status of a cell beside a published figure."""
    if figure is None:
        return None, ""
    if row is None or not row["runs"]:
        return None, "not run"
    mean: float | None = None if pd.isna(row["mean"]) else float(row["mean"])
    deviation: float | None = None if pd.isna(row["deviation"]) else float(row["deviation"])
    kind = status(mean, deviation, figure, diverged=bool(row["diverged"]))
    return (None if mean is None or row["diverged"] else mean - figure), kind


@dataclass(frozen=True)
class OwnProtocol:
    """A protocol of the user's own, as the table of protocols tells it."""

    name: str
    dataset: str
    sizes: list[int]


def protocol_table(cells: pd.DataFrame, own: list[OwnProtocol], names: Names) -> Table:
    """What the protocols are; the user's own last."""
    lines = []
    counted = cells[cells["metric"] == METRICS[0].name].groupby("protocol")["runs"].sum()
    known = [*names.paper.protocols, *(name for name in protocol_names() if name not in names.paper.protocols)]
    suite = [OwnProtocol(p.name, p.data.title, [len(c) for c in p.classes]) for p in map(load_protocol, known)]
    for protocol in (*suite, *own):
        sizes = protocol.sizes
        lines.append(
            {
                "protocol": protocol.name,
                "dataset": protocol.dataset,
                "classes": sum(sizes),
                "T": len(sizes) - 1,
                "base classes": sizes[0],
                "novel a session": "/".join(dict.fromkeys(map(str, sizes[1:]))),
                "in the paper": "own" if protocol in own else "yes" if protocol.name in names.paper.protocols else "no",
                "runs": int(counted.get(protocol.name, 0)),
            }
        )
    frame = pd.DataFrame(lines)
    rows = [[Cell(str(value)) for value in row] for row in frame.itertuples(index=False)]
    title = "All protocols of the suite" + (", and your own" if own else "")
    return Table("protocols", "Protocols", "", [Section(title, [*frame.columns], rows)], frame)


def own_table(cells: pd.DataFrame, names: Names) -> Table:
    """Protocols that the paper does not have: a section each."""
    chosen = cells[(cells["variant"] == "") & ~cells["protocol"].isin(names.paper.protocols)]
    sections = []
    for environment in environments(chosen):
        here = chosen[chosen["environment"] == environment]
        for protocol in sorted(here["protocol"].unique()):
            found = lookup(here[here["protocol"] == protocol], "method", "metric")
            rows = []
            for method in names.ordered([*(method for method, _ in found), *FLOORS]):
                cells_here = [found.get((method, metric.name)) for metric in METRICS]
                own = [Cell("") if row is None else Cell(cell_text(row), int(row["rank"])) for row in cells_here]
                rows.append([Cell(names.label(method)), *stored_cells(cells_here[:1]), *own])
            columns = ["method", *STORED, *(m.title for m in METRICS)]
            over = ranked_text(here[here["protocol"] == protocol])
            sections.append(Section(f"{protocol}, {environment}{over}", columns, rows))
    return Table("own", "Protocols beside the paper's", f"{LEGEND} {RANKS}", sections, chosen)


def changed_table(cells: pd.DataFrame, names: Names) -> Table:
    """Runs with changed parameters: a section for each environment and protocol."""
    chosen = cells[cells["variant"] != ""]
    sections = []
    for environment in environments(chosen):
        here = chosen[chosen["environment"] == environment]
        for protocol in sorted(here["protocol"].unique()):
            found = lookup(here[here["protocol"] == protocol], "method", "variant", "metric")
            rows = []
            for method in names.ordered(method for method, _, _ in found):
                for variant in dict.fromkeys(v for m, v, _ in found if m == method):
                    own = [cell_text(found[method, variant, metric.name]) for metric in METRICS]
                    rows.append([Cell(names.label(method)), Cell(variant), *map(Cell, own)])
            columns = ["method", "changed", *(m.title for m in METRICS)]
            sections.append(Section(f"{protocol}, {environment}", columns, rows))
    note = "Each row is a group of its own: nothing here is compared with the paper or ranked. " + LEGEND
    return Table("changed", "Changed parameters", note, sections, chosen)


def comparison_table(pairs: pd.DataFrame, names: Names) -> Table:
    """Paired differences: a section for each environment and protocol."""
    sections = []
    for environment in environments(pairs):
        here = pairs[pairs["environment"] == environment]
        for protocol in sorted(here["protocol"].unique()):
            found = lookup(here[here["protocol"] == protocol], "first", "second", "variant", "metric")
            rows = []
            for first, second, variant in dict.fromkeys(key[:3] for key in found):
                label = f"{names.label(first)} with {variant} − as it is" if variant else ""
                label = label or f"{names.label(first)} − {names.label(second)}"
                own = [found.get((first, second, variant, metric.name)) for metric in METRICS]
                rows.append([Cell(label), *(Cell("" if row is None else interval_text(row)) for row in own)])
            sections.append(Section(f"{protocol}, {environment}", ["difference", *(m.title for m in METRICS)], rows))
    note = (
        "First less second by seed: mean [95 % bootstrap interval over seeds] (seeds). With a handful of seeds such an "
        "interval is too narrow; with one there is none."
    )
    return Table("comparisons", "Paired differences", note, sections, pairs)


def probe_table(probes: pd.DataFrame, names: Names) -> Table:
    """What the head makes of the features and what a discriminant does: a section for each environment and protocol."""
    sections = []
    for environment in environments(probes):
        here = probes[probes["environment"] == environment]
        for protocol in sorted(here["protocol"].unique()):
            found = lookup(here[here["protocol"] == protocol], "method", "variant", "metric")
            rows = []
            for method in names.ordered(method for method, _, _ in found):
                for variant in dict.fromkeys(v for m, v, _ in found if m == method):
                    own = [found.get((method, variant, metric.name)) for metric in METRICS]
                    rows.append([Cell(names.label(method)), Cell(variant), *(Cell(probe_text(row)) for row in own)])
            columns = ["method", "changed", *(m.title for m in METRICS)]
            sections.append(Section(f"{protocol}, {environment}", columns, rows))
    note = (
        "The method's own figure → that of the probe: a linear discriminant on the method's features, with class means "
        "written at the end of each session and one covariance, that of the base classes. Then the difference by seed "
        "[95 % t interval] (seeds). A diagnosis, never ranked. Where the probe forgets less, the head lost what the "
        "features still hold; where it forgets more, the features moved away from the means that were written down."
    )
    return Table("probe", "Head or features?", note, sections, probes)


def probe_text(row: Line | None) -> str:
    return "" if row is None else f"{number(row['own'])} → {number(row['probe'])}: {interval_text(row)}"


def interval_text(row: Line) -> str:
    if pd.isna(row["low"]):
        return f"{signed(row['mean'])} (one seed)"
    return f"{signed(row['mean'])} [{signed(row['low'])}, {signed(row['high'])}] ({row['seeds']})"


def build_tables(
    cells: pd.DataFrame, pairs: pd.DataFrame, probes: pd.DataFrame, own: list[OwnProtocol], paper: Paper
) -> list[Table]:
    """All of them, those of the paper first and in its order."""
    names = Names(paper)
    cifar = [name for name in paper.protocols if name.startswith("cifar")]
    tiny = [name for name in paper.protocols if name.startswith("tiny")]
    accuracy, *rest = METRICS
    return [
        protocol_table(cells, own, names),
        metric_table(cells, "accuracy", "Average accuracy", (accuracy,), paper.protocols, names),
        metric_table(cells, "cifar", "Forgetting and discovery on CIFAR", (*rest,), cifar, names),
        metric_table(cells, "tiny", "Forgetting and discovery on Tiny-ImageNet", (*rest,), tiny, names),
        variant_table(cells, "ablation", "Ablation of FEA", paper.variants["ablation"], names),
        variant_table(cells, "omega", "Weight of BAP (omega)", paper.variants["omega"], names),
        own_table(cells, names),
        changed_table(cells, names),
        probe_table(probes, names),
        comparison_table(pairs, names),
    ]


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
