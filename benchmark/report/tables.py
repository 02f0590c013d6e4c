"""Tables of the report, and the four ways to write one: for a terminal, Markdown, CSV and LaTeX.

Rounding happens here and nowhere else.
"""

import pandas as pd

from benchmark.records.scoring import METRICS, Metric
from benchmark.report.cells import STORED, arrow, cell_text, environments, heading, lookup, ranked_text, stored_cells
from benchmark.report.frames import FLOORS, REFERENCE, VALUES, rank, status, variant_text
from benchmark.report.names import Names, plain_name
from benchmark.report.own_tables import (
    OwnProtocol,
    changed_table,
    comparison_table,
    own_table,
    probe_table,
    protocol_table,
)
from benchmark.report.paper import Paper, Variants
from benchmark.report.runs import OWN_MARK
from benchmark.report.table import LEGEND, RANKS, Cell, Line, Section, Table, number, signed


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
        differences = [Cell("") if row is None else difference_cell(row["difference"], row["status"]) for row in own]
        if reference and any(cell.text for cell in differences):
            rows.append([Cell(""), *([Cell(""), Cell("")] if stored else []), Cell("difference"), *differences])
    header = ["method", *(STORED if stored else []), *(["figure"] if reference else []), *columns]
    return Section(f"{metric.title}, {arrow(metric)}. {heading(environment)}{ranked_text(here)}", header, rows)


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
                made, made_lines = variant_rows(own, method, wanted, columns, reference=reference)
                rows += made
                lines += [{"environment": environment, **line} for line in made_lines]
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
            differences = [difference_cell(*one) for one in judged]
            rows += [[Cell(""), Cell("difference"), *differences]] if any(one.text for one in differences) else []
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
