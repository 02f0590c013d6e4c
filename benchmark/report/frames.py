"""From records to data frames: one row a run, then one row a cell."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from benchmark.errors import UsageError
from benchmark.record import RunRecord, read_record


@dataclass(frozen=True)
class Metric:
    """A figure of the paper and which way is better."""

    name: str
    title: str
    higher_is_better: bool


METRICS = (
    Metric("average_accuracy", "Average accuracy", True),
    Metric("average_forgetting", "Average forgetting (AvF)", False),
    Metric("average_discovery", "Average discovery (AvD)", True),
)

CELL = ["group", "protocol", "method"]


def read_all(results: Path) -> tuple[list[RunRecord], list[str]]:
    """All records below a folder in a fixed order, and a sentence for each file that is none."""
    records, refused = [], []
    for path in sorted((results / "runs").glob("*/*/*.json")):
        try:
            records.append(read_record(path))
        except UsageError as error:
            refused.append(str(error))
    return records, refused


def long_frame(records: list[RunRecord]) -> pd.DataFrame:
    """One row a run that has ended; a diverged run has no figures."""
    rows = []
    for record in records:
        if record.status == "partial":
            continue
        metrics = record.metrics() if record.status == "done" else None
        rows.append(
            {
                "group": record.group,
                "protocol": record.question.protocol["name"],
                "method": record.question.method,
                "setting": record.setting,
                "seed": record.question.seed,
                "stored": record.stored_per_class,
                **{m.name: getattr(metrics, m.name) if metrics else None for m in METRICS},
            }
        )
    columns = [*CELL, "setting", "seed", "stored", *(m.name for m in METRICS)]
    frame = pd.DataFrame(rows, columns=columns).astype({m.name: float for m in METRICS})
    return told_apart(frame)


def told_apart(frame: pd.DataFrame) -> pd.DataFrame:
    """Runs that share names but not their question (an edited own method, another version) get names of their own."""
    settings = frame.groupby(CELL)["setting"].transform("nunique")
    mixed = settings > 1
    frame.loc[mixed, "method"] = frame["method"] + "@" + frame["setting"].str[:6]
    return frame


def stored_range(stored: pd.Series) -> str:
    """What all runs store of a class, or the least and the most: a class of few images has few exemplars."""
    texts = sorted(set(stored) - {""}, key=lambda text: float(text.split()[0]) if text[0].isdigit() else 0.0)
    return f"{texts[0].split()[0]} to {texts[-1]}" if len(texts) > 1 else "".join(texts)


def cells(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Mean, sample deviation and number of runs of every (group, protocol, method); diverged runs are counted apart."""
    grouped = frame.groupby(CELL, sort=True)
    table = pd.DataFrame(
        {
            "mean": grouped[metric].mean(),
            "deviation": grouped[metric].std(ddof=1),
            "runs": grouped["seed"].count(),
            "diverged": grouped[metric].apply(lambda values: int(values.isna().sum())),
            "stored": grouped["stored"].apply(stored_range),
        }
    ).reset_index()
    # reference runs first: their group has the shortest name
    order = sorted(table["group"].unique(), key=lambda group: (len(group), group))
    table["group"] = pd.Categorical(table["group"], order, ordered=True)
    return table.sort_values(CELL, ignore_index=True).astype({"group": str})
