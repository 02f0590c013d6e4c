"""Tables beside the paper's: own protocols, own methods, changed knobs, pairs of methods, and the probe."""

from dataclasses import dataclass

import pandas as pd

from benchmark.protocol.protocols import load_protocol, protocol_names
from benchmark.records.scoring import METRICS
from benchmark.report.cells import STORED, cell_text, environments, lookup, ranked_text, stored_cells
from benchmark.report.frames import FLOORS
from benchmark.report.names import Names
from benchmark.report.table import LEGEND, RANKS, Cell, Line, Section, Table, number, signed


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
        "First less second, paired by seed: mean [Student's 95 % interval] (seeds). With one seed there is no interval."
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
