"""Data frames of the report: one row a run, then one row a cell, then one row a comparison. Pure functions."""

import json
from collections.abc import Hashable, Iterable, Mapping
from itertools import combinations
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from benchmark.records.record import group_name, stored_text
from benchmark.records.scoring import METRICS
from benchmark.records.statistics import shown, t_interval
from benchmark.report.paper import Paper
from benchmark.report.runs import Run

FLOORS = {"kmeans": "k-means (floor)", "gaussian": "Gaussian (floor)"}
"""Methods that train nothing, and how tables call them."""
REFERENCE = group_name("paper", {})
"""Group of the runs that may be compared with the paper."""
CELL = ["environment", "variant", "protocol", "method"]
VALUES = "values"
"""Column with the figure of every seed, for ranks; no part of what is written."""
DECIMALS = 2
"""Of all printed figures; ranks are given by what is printed."""


def variant_text(changed: dict[str, Any]) -> str:
    return ", ".join(f"{key}={json.dumps(value)}" for key, value in sorted(changed.items()))


def run_frame(runs: Iterable[Run]) -> pd.DataFrame:
    """One row a run that has ended; a diverged run has no figures."""
    rows = []
    for run in runs:
        if run.status == "partial":
            continue
        rows.append(
            {
                "environment": run.environment,
                "variant": variant_text(run.variant),
                "protocol": run.protocol,
                "method": run.method,
                "group": run.group,
                "reference": run.reference,
                "setting": run.setting,
                "seed": run.seed,
                "stored": run.stored,
                "extra weights": run.extra_weights,
                "commit": run.commit,
                "dirty": run.dirty,
                "base": run.base,
                "version": run.version,
                "source": run.source,
                "suite": run.suite,
                "own": run.own,
                **run.figures(),
            }
        )
    columns = [*CELL, "group", "reference", "setting", "seed", "stored", "extra weights", "commit", "dirty"]
    columns += ["base", "version", "source", "suite", "own"]
    columns += [m.name for m in METRICS]
    return pd.DataFrame(rows, columns=columns).astype({m.name: float for m in METRICS})


def printed(value: float) -> float:
    """The number that readers see."""
    return float(shown(value, DECIMALS))


def cell_frame(frame: pd.DataFrame, paper: Paper) -> pd.DataFrame:
    """One row a metric of a (environment, variant, protocol, method): what all its seeds say, and what the paper says.

    Mean and sample deviation are of the runs that did not diverge; those that did are counted.
    """
    rows = []
    for keys, runs in frame.groupby(CELL, sort=True):
        named: dict[str, Any] = dict(zip(CELL, keys, strict=True))
        first = runs.iloc[0]
        diverged = int(runs[METRICS[0].name].isna().sum())
        for metric in METRICS:
            values = runs[metric.name].dropna()
            published = None
            if first["reference"] and first["suite"] and not named["variant"]:
                published = paper.figure(metric.name, first["base"], named["protocol"])
            mean = float(values.mean()) if len(values) else None
            deviation = float(values.std(ddof=1)) if len(values) > 1 else None
            rows.append(
                {
                    **named,
                    "group": first["group"],
                    "metric": metric.name,
                    "mean": mean,
                    "deviation": deviation,
                    "runs": len(runs),
                    "diverged": diverged,
                    "seeds": " ".join(map(str, sorted(runs["seed"]))),
                    "stored": stored_text([*runs["stored"]]),
                    "extra weights": int(runs["extra weights"].max()),
                    "commits": int(runs["commit"].nunique()),
                    "dirty": bool(runs["dirty"].any()),
                    "paper": published,
                    "difference": None if mean is None or published is None or diverged else mean - published,
                    "status": status(mean, deviation, published, diverged=diverged > 0),
                    VALUES: dict(zip(runs["seed"].tolist(), runs[metric.name].tolist(), strict=True)),
                }
            )
    columns = [*CELL, "group", "metric", "mean", "deviation", "runs", "diverged", "seeds", "stored"]
    columns += ["extra weights", "commits", "dirty"]
    table = pd.DataFrame([*rows, *not_run(rows, paper)], columns=[*columns, "paper", "difference", "status", VALUES])
    table = table.astype({"mean": float, "deviation": float, "paper": float, "difference": float})
    return ranked(table)


def not_run(rows: list[dict[str, Any]], paper: Paper) -> list[dict[str, Any]]:
    """A row for every published figure that no reference run meets."""
    there = {(row["metric"], row["method"], row["protocol"]) for row in rows if row["group"] == REFERENCE}
    return [
        {"environment": REFERENCE, "variant": "", "protocol": protocol, "method": method, "group": REFERENCE}
        | {
            "metric": metric,
            "runs": 0,
            "diverged": 0,
            "seeds": "",
            "stored": "",
            "extra weights": 0,
            "commits": 0,
            "dirty": False,
        }
        | {"paper": figure, "status": "not run", VALUES: {}}
        for metric, published in paper.metrics.items()
        for method, figures in published.rows.items()
        for protocol, figure in figures.items()
        if paper.methods[method].target and (metric, method, protocol) not in there
    ]


def status(mean: float | None, deviation: float | None, published: float | None, *, diverged: bool) -> str:
    """How a cell stands to the paper: within max(1 point, 2 deviations) it is reproduced, within twice that close."""
    if published is None:
        return ""
    if diverged or mean is None:
        return "off"
    near = max(1.0, 2 * (deviation or 0.0))
    distance = round(abs(mean - published), 9)
    return "reproduced" if distance <= near else "close" if distance <= 2 * near else "off"


def ranked(cells: pd.DataFrame) -> pd.DataFrame:
    """Add `rank`: 1 and 2 for the best and second best method of a protocol, and `ranked over`, the seeds they share.

    Only methods as they are compete.
    """
    ranks = pd.Series(0, index=cells.index, dtype=int)
    over = pd.Series("", index=cells.index, dtype=object)
    higher = {metric.name: metric.higher_is_better for metric in METRICS}
    competing = cells[(cells["variant"] == "") & (cells["diverged"] == 0) & cells["mean"].notna()]
    for (_, _, metric), group in competing.groupby(["environment", "protocol", "metric"]):
        places, seeds = rank(dict(zip(group.index, group[VALUES], strict=True)), higher_is_better=higher[str(metric)])
        for place, own in places.items():
            ranks.loc[place], over.loc[place] = own, " ".join(map(str, seeds))
    return cells.assign(rank=ranks, **{"ranked over": over})


Key = TypeVar("Key", bound=Hashable)


def rank(figures: Mapping[Key, Mapping[int, float]], *, higher_is_better: bool) -> tuple[dict[Key, int], list[int]]:
    """1 and 2 for the best and second best, 0 for the others that were compared; and the seeds they were compared on.

    Figures by seed are averaged over the seeds that all share. Equal printed figures share a rank.
    """
    compared, seeds = sharing({key: {*values} for key, values in figures.items()})
    means = {key: printed(float(np.mean([figures[key][seed] for seed in seeds]))) for key in compared}
    best = sorted({*means.values()}, reverse=higher_is_better)[:2]
    return {key: best.index(mean) + 1 if mean in best else 0 for key, mean in means.items()}, seeds


def sharing(seeds: Mapping[Key, set[int]]) -> tuple[list[Key], list[int]]:
    """Who can be compared, and the seeds they share, at least two; whoever shares the fewest with others falls out.

    One seed says nothing about the next, so whoever has one is not compared.
    """
    left = {key: own for key, own in seeds.items() if len(own) > 1}
    while len(left) > 1:
        common = set.intersection(*left.values())
        if len(common) > 1:
            return [*left], sorted(common)
        overlap = {key: sum(len(own & other) for other in left.values()) - len(own) for key, own in left.items()}
        del left[min(left, key=lambda key: (overlap[key], str(key)))]
    return [], []


def comparisons(frame: pd.DataFrame) -> pd.DataFrame:
    """Paired differences by seed: every two methods of a protocol, and every variant with its method as it is."""
    rows: list[dict[str, Any]] = []
    for (environment, protocol), runs in frame.groupby(["environment", "protocol"], sort=True):
        here: dict[str, Any] = {"environment": environment, "protocol": protocol}
        parts = {(str(m), str(v)): part for (m, v), part in runs.groupby(["method", "variant"], sort=True)}
        plain = [method for method, variant in parts if not variant]
        for first, second in combinations(plain, 2):
            named = {**here, "variant": "", "first": first, "second": second}
            rows += [named | row for row in paired(parts[first, ""], parts[second, ""])]
        for (method, variant), changed in parts.items():
            one = changed.iloc[0]
            same = (runs["variant"] == "") & (runs["base"] == one["base"]) & (runs["own"] == one["own"])
            named = {**here, "variant": variant, "first": method, "second": method}
            rows += [named | row for row in paired(changed, runs[same], "version", "source")] if variant else []
    columns = ["environment", "protocol", "variant", "first", "second", "metric", "mean", "low", "high", "seeds"]
    return pd.DataFrame(rows, columns=columns).astype({"mean": float, "low": float, "high": float})


def probes(runs: Iterable[Run]) -> pd.DataFrame:
    """One row a metric of a cell: the method's own figure, the probe's on its features, and probe less own by seed."""
    cells: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        if run.status == "done" and run.probe is not None:
            cells.setdefault((run.environment, variant_text(run.variant), run.protocol, run.method), []).append(run)
    rows = []
    for named, found in sorted(cells.items()):
        for metric in METRICS:
            own, probe = ([getattr(m, metric.name) for m in side] for side in sides(found))
            if None in own or None in probe:
                continue
            differences = [b - a for a, b in zip(own, probe, strict=True)]
            low, high = t_interval(differences) or (None, None)
            figures = {"metric": metric.name, "own": float(np.mean(own)), "probe": float(np.mean(probe))}
            figures |= {"mean": float(np.mean(differences)), "low": low, "high": high, "seeds": len(found)}
            rows.append(dict(zip(CELL, named, strict=True)) | figures)
    columns = [*CELL, "metric", "own", "probe", "mean", "low", "high", "seeds"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[5:10], float))


def sides(runs: list[Run]) -> tuple[list[Any], list[Any]]:
    """Metrics of the methods and of their probes, in the same order."""
    return [run.metrics for run in runs], [run.probe for run in runs]


def paired(first: pd.DataFrame, second: pd.DataFrame, *equal: str) -> list[dict[str, Any]]:
    """First less second, by seed, with the interval of the mean, a row per metric; nothing where they share no seed."""
    both = first.merge(second, on=["seed", *equal], suffixes=("", "_second")).sort_values("seed")
    if both["seed"].duplicated().any():  # which of several is meant, nobody knows
        return []
    rows = []
    for metric in METRICS:
        difference = (both[metric.name] - both[f"{metric.name}_second"]).dropna().tolist()
        if difference:
            low, high = t_interval(difference) or (None, None)
            mean = float(np.mean(difference))
            rows.append({"metric": metric.name, "mean": mean, "low": low, "high": high, "seeds": len(difference)})
    return rows
