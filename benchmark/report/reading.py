"""Reading what came out: all runs as a data frame, two methods side by side, one figure."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import pandas as pd
from tabulate import tabulate

from benchmark.errors import UsageError
from benchmark.protocol.reading import UNREADABLE, parsed_yaml, suggest
from benchmark.records.scoring import METRICS
from benchmark.records.statistics import t_interval
from benchmark.report.figures import STYLES, Picture, known_curve, lines
from benchmark.report.frames import REFERENCE, variant_text
from benchmark.report.names import Names, plain_name
from benchmark.report.paper import load_paper
from benchmark.report.runs import Run, require_records

CURVES = {"overall": "overall accuracy (%)", "known": "known classes (%)", "novel": "new classes (%)"}
"""What can be drawn by session."""


def load(results: Path, *, own: bool = True) -> pd.DataFrame:
    """All finished runs below a folder, a row for every session of each (docs/report.md lists the columns)."""
    return session_frame(require_records(results, own=own).runs)


def session_frame(runs: Iterable[Run]) -> pd.DataFrame:
    rows = []
    for run in runs:
        if run.status != "done" or run.metrics is None:
            continue
        known = [float("nan"), *known_curve(run)]
        about = {
            "run": run.name,
            "protocol": run.protocol,
            "method": run.base,
            "label": run.method,
            "seed": run.seed,
            "environment": run.environment,
            "variant": variant_text(run.variant),
            "group": run.group,
            "own": run.own,
            "stored_images": run.stored[0],
            "stored_numbers": run.stored[1],
            **run.figures(),
            **{f"probe_{metric.name}": getattr(run.probe, metric.name, None) for metric in METRICS},
        }
        for t, row in enumerate(run.metrics.accuracy):
            figures = {
                "session": t,
                "classes": sum(run.sizes[: t + 1]),
                "overall": run.metrics.overall[t],
                "known": known[t],
                "novel": row[-1] if t else float("nan"),
                "on_new_rows": run.on_new_rows[t],
                "seconds": seconds_of(run, t),
            }
            rows.append(about | figures | {f"C{j}": value for j, value in enumerate(row)})
    return pd.DataFrame(rows)


def seconds_of(run: Run, session: int) -> float:
    times = run.provenance.get("session_seconds") or []
    return float(times[session]) if session < len(times) else float("nan")


@dataclass(frozen=True)
class Side:
    """One side of a comparison: `fea`, or `fea:omega=1` for a run with that changed."""

    method: str
    variant: dict[str, Any]
    text: str

    @staticmethod
    def of(text: str) -> "Side":
        name, colon, changed = text.partition(":")
        variant = dict(map(parsed, changed.split(";"))) if colon else {}
        return Side(name, variant, text)

    def runs(self, found: list[Run]) -> list[Run]:
        return [run for run in found if self.method in (run.base, run.method) and run.variant == self.variant]


def parsed(setting: str) -> tuple[str, Any]:
    key, equals, text = setting.partition("=")
    try:
        value = parsed_yaml(text)
    except UNREADABLE:
        value, equals = None, ""
    if not equals or not key.strip():
        raise UsageError(f"'{setting}': write method:key=value, further changes behind a semicolon")
    return key.strip(), value


@dataclass(frozen=True)
class Line:
    """A figure of both sides, over the seeds they share."""

    figure: str
    first: float
    second: float
    difference: float
    interval: tuple[float, float] | None
    seeds: int

    def cells(self) -> list[str]:
        interval = "-" if self.interval is None else f"{self.interval[0]:+.2f} to {self.interval[1]:+.2f}"
        low, high = self.interval or (0.0, 0.0)
        sure = "*" if low < high and not low <= 0 <= high else ""  # equal differences do not say how they vary
        return [self.figure, f"{self.first:.2f}", f"{self.second:.2f}", f"{self.difference:+.2f}{sure}", interval]


@dataclass(frozen=True)
class Comparison:
    """Two methods on one protocol, in one environment."""

    protocol: str
    environment: str
    seeds: list[int]
    lines: list[Line]

    def text(self, first: str, second: str) -> str:
        seeds = ", ".join(map(str, self.seeds))
        head = f"{self.protocol}, {self.environment}; seeds {seeds} ({len(self.seeds)} shared)"
        table = tabulate(
            [line.cells() for line in self.lines],
            headers=["in %", first, second, f"{first} - {second}", "95 % interval"],
            disable_numparse=True,
            colalign=("left", "right", "right", "right", "right"),
        )
        note = "* the interval does not hold 0" if len(self.seeds) > 1 else "one seed says nothing about the next"
        return f"{head}\n\n{table}\n{note}"

    def document(self) -> dict[str, Any]:
        return {
            "protocol": self.protocol,
            "environment": self.environment,
            "seeds": self.seeds,
            "figures": [vars(line) for line in self.lines],
        }


def figures_of(run: Run) -> dict[str, float]:
    """Everything that is compared: the three figures, then session by session."""
    assert run.metrics is not None
    figures = {metric.title: value for metric in METRICS if (value := run.figures()[metric.name]) is not None}
    figures |= {f"overall after session {t}": value for t, value in enumerate(run.metrics.overall)}
    figures |= {f"known after session {t}": value for t, value in enumerate(known_curve(run), 1)}
    return figures | {f"new of session {t}": row[-1] for t, row in enumerate(run.metrics.accuracy) if t}


def compared(results: Path, first: str, second: str, protocol: str | None, group: str | None) -> list[Comparison]:
    """A comparison for every protocol and environment in which both sides have runs with the same seeds."""
    every = require_records(results).runs
    known_protocols = {run.protocol for run in every}
    if protocol is not None and protocol not in known_protocols:
        raise UsageError(f"--protocol: there is no run on '{protocol}'{suggest(protocol, known_protocols)}")
    found = selected(every, protocol, None, group)
    sides = [Side.of(first), Side.of(second)]
    for side in sides:
        if not side.runs(found):
            known = sorted({run.base for run in found})
            changed = f" with {variant_text(side.variant)}" if side.variant else " as it is"
            hint = ": `bench list runs` names them" if side.method in known else suggest(side.method, known)
            raise UsageError(f"there is no finished run of '{side.method}'{changed}{hint}")
    places = sorted({(run.protocol, run.environment) for run in found}, key=lambda p: (p[1] != REFERENCE, p))
    answers = []
    for place in places:
        here = [run for run in found if (run.protocol, run.environment) == place]
        one, two = (by_seed(side, side.runs(here)) for side in sides)
        seeds = sorted(one.keys() & two.keys())
        if seeds:
            answers.append(Comparison(*place, seeds, lines_of([one[s] for s in seeds], [two[s] for s in seeds])))
    if not answers:
        raise UsageError(f"'{first}' and '{second}' share no protocol, group and seed")
    return answers


def by_seed(side: Side, runs: list[Run]) -> dict[int, Run]:
    by_seed: dict[int, Run] = {}
    for run in runs:
        if run.seed in by_seed:
            raise UsageError(
                f"'{side.text}' may mean {by_seed[run.seed].name} and {run.name}: name the one you mean as reports do "
                f"({by_seed[run.seed].method} or {run.method})"
            )
        by_seed[run.seed] = run
    return by_seed


def lines_of(first: list[Run], second: list[Run]) -> list[Line]:
    """Paired: run by run with the same seed."""
    ones, twos = [figures_of(run) for run in first], [figures_of(run) for run in second]
    lines = []
    for figure in ones[0]:
        if not all(figure in each for each in (*ones, *twos)):
            continue
        a, b = [one[figure] for one in ones], [two[figure] for two in twos]
        differences = [x - y for x, y in zip(a, b, strict=True)]
        lines.append(Line(figure, mean(a), mean(b), mean(differences), t_interval(differences), len(differences)))
    return lines


def selected(runs: list[Run], protocol: str | None, methods: list[str] | None, group: str | None) -> list[Run]:
    """Finished runs that meet all of what is asked."""
    return [
        run
        for run in runs
        if run.status == "done"
        and (protocol is None or run.protocol == protocol)
        and (not methods or {run.base, run.method, plain_name(run.method)} & {*methods})
        and (group is None or group in run.group)
    ]


def curve_picture(
    results: Path, methods: list[str], protocol: str, metric: str, group: str | None, name: str
) -> Picture:
    """One figure by session: mean over seeds, band of one sample deviation."""
    if metric not in CURVES:
        raise UsageError(f"--metric: unknown figure '{metric}'{suggest(metric, CURVES)}")
    every = require_records(results).runs
    known = {run.base for run in every}
    odd = [name for name in methods if name not in known | {run.method for run in every}]
    if odd:
        raise UsageError(f"--methods: there is no run of '{odd[0]}'{suggest(odd[0], known)}")
    found = [run for run in selected(every, protocol, methods, group) if not run.variant]
    environments = sorted({run.environment for run in found}, key=lambda e: (e != REFERENCE, len(e), e))
    if not environments:
        wanted = f" of {', '.join(methods)}" if methods else ""
        raise UsageError(f"there is no finished run{wanted} on '{protocol}': `bench list runs` names them")
    shown: dict[str, list[Run]] = {}
    for run in found:
        if run.environment == environments[0]:
            shown.setdefault(run.method, []).append(run)
    names = Names(load_paper())
    others = sorted({plain_name(run.method) for run in every} - STYLES.keys())
    curves = lines(shown, lambda run: curve_of(run, metric), names, others)
    caption = f"{protocol}, {environments[0]}: {CURVES[metric]} by session, mean over seeds, band of one deviation."
    data = {"lines": curves, "first": 0 if metric == "overall" else 1, "ylabel": CURVES[metric], "title": protocol}
    return Picture(name, caption, environments[0], [protocol], data, "curve")


def curve_of(run: Run, metric: str) -> list[float]:
    assert run.metrics is not None
    if metric == "known":
        return known_curve(run)
    return run.metrics.overall if metric == "overall" else [row[-1] for row in run.metrics.accuracy[1:]]
