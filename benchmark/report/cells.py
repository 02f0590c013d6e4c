"""What stands in the cells of tables: figures with their spread, ranks, and what a method stores."""

from collections.abc import Iterable

import pandas as pd

from benchmark.records.scoring import Metric
from benchmark.report.frames import REFERENCE
from benchmark.report.table import DIRTY, MIXED, Cell, Line, number

STORED = ["stored per class", "extra weights"]


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
