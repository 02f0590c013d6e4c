"""Figures of the report, not yet drawn: an input of plain numbers each, whose digest says whether it is up to date."""

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmark.digests import canonical
from benchmark.report.frames import FLOORS, REFERENCE
from benchmark.report.names import Names, plain_name
from benchmark.report.runs import Run

VERSION = 2
"""Of the drawing code: to be raised when a picture changes though its numbers do not."""
STYLES = {
    "fea": ("#D55E00", "o"),
    "gm": ("#0072B2", "s"),
    "frost": ("#009E73", "^"),
    "simgcd": ("#CC79A7", "D"),
    "autonovel": ("#E69F00", "v"),
    "happy": ("#56B4E9", "P"),
    "vbcgcd": ("#7F3C8D", "*"),
    "mscincd": ("#8C6D31", "h"),
    "kmeans": ("#6E6E6E", "x"),
    "gaussian": ("#000000", "+"),
}
"""Colours that colour-blind readers can tell apart (Okabe and Ito), one a method everywhere, and a mark beside them."""
OTHERS = (("#5254A3", "<"), ("#A55194", ">"), ("#637939", "p"), ("#AD494A", "d"), ("#3182BD", "X"))
DECIMALS = 4
SLUG = 60
Input = dict[str, Any]


@dataclass(frozen=True)
class Picture:
    """A figure to be drawn."""

    name: str
    caption: str
    environment: str
    protocols: list[str]
    input: Input
    kind: str
    """Which of benchmark.report.drawing draws it."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(canonical([VERSION, self.caption, self.input])).hexdigest()


def style(method: str, others: list[str]) -> tuple[str, str]:
    """Colour and mark; methods that are not the suite's get theirs by their order among all such methods."""
    base = plain_name(method)
    return STYLES[base] if base in STYLES else OTHERS[others.index(base) % len(OTHERS)]


def slug(environment: str) -> str:
    """A file name for an environment; what letters cannot tell apart, its digest does."""
    if environment == REFERENCE:
        return "reference"
    text = re.sub(r"[^a-z0-9]+", "-", environment.removeprefix("budget ").lower()).strip("-")
    digest = hashlib.sha256(environment.encode()).hexdigest()[:6]
    return f"{text[:SLUG].strip('-')}-{digest}"


def spread(curves: list[list[float]]) -> dict[str, list[float]]:
    """Mean and sample deviation over seeds (0 for a single one), point by point."""
    array = np.array(curves)
    deviation = array.std(axis=0, ddof=1) if len(array) > 1 else np.zeros(array.shape[1])
    return {"mean": array.mean(axis=0).round(DECIMALS).tolist(), "deviation": deviation.round(DECIMALS).tolist()}


def known_curve(run: Run) -> list[float]:
    """Accuracy on all classes met before a session, after that session."""
    assert run.metrics is not None
    rows = [(row[:-1], run.images[: len(row) - 1]) for row in run.metrics.accuracy[1:]]
    return [float(np.average(row, weights=images)) for row, images in rows]


def novel_average(run: Run) -> float:
    """Mean over sessions of the accuracy on a session's own new classes, right after it."""
    assert run.metrics is not None
    return float(np.mean([row[-1] for row in run.metrics.accuracy[1:]]))


def pictures(runs: Iterable[Run], names: Names) -> list[Picture]:
    """All figures: of reference runs, and of every other environment in which methods can be compared."""
    found: dict[str, dict[str, dict[str, list[Run]]]] = {}
    everyone = set()
    for run in runs:
        everyone.add(plain_name(run.method))
        if run.status == "done" and not run.variant and len(run.sizes) > 1:
            found.setdefault(run.environment, {}).setdefault(run.protocol, {}).setdefault(run.method, []).append(run)
    others = sorted(everyone - STYLES.keys())
    pictures = []
    for environment in sorted(found, key=lambda name: (name != REFERENCE, len(name), name)):
        compared = {p: m for p, m in found[environment].items() if environment == REFERENCE or len(m) > 1}
        if not compared:
            continue
        order = {p: k for k, p in enumerate(names.paper.protocols)}
        protocols = sorted(compared, key=lambda p: (order.get(p, len(order)), p))
        pictures.append(accuracy_picture(environment, {p: compared[p] for p in protocols}, names, others))
        for protocol in protocols:
            pictures.append(known_picture(environment, protocol, compared[protocol], names, others))
            pictures.append(confusion_picture(environment, protocol, compared[protocol], names))
    return pictures


def lines(methods: dict[str, list[Run]], curve: Callable[[Run], list[float]], names: Names, others: list[str]) -> Any:
    found = []
    for method in names.ordered(methods):
        colour, mark = style(method, others)
        line = "--" if plain_name(method) in FLOORS else ":" if plain_name(method) != method else "-"
        about = {"method": method, "label": names.label(method), "colour": colour, "mark": mark, "line": line}
        found.append(about | {"runs": len(methods[method])} | spread([curve(run) for run in methods[method]]))
    return found


def accuracy_picture(
    environment: str, found: dict[str, dict[str, list[Run]]], names: Names, others: list[str]
) -> Picture:
    def overall(run: Run) -> list[float]:
        assert run.metrics is not None
        return run.metrics.overall

    panels = [{"protocol": p, "lines": lines(methods, overall, names, others)} for p, methods in found.items()]
    caption = f"Overall accuracy after each session, {environment}: mean over seeds, band of one sample deviation."
    return Picture(f"accuracy-{slug(environment)}", caption, environment, [*found], {"panels": panels}, "accuracy")


def known_picture(
    environment: str, protocol: str, methods: dict[str, list[Run]], names: Names, others: list[str]
) -> Picture:
    known = lines(methods, known_curve, names, others)
    novel = lines(methods, lambda run: [novel_average(run)], names, others)
    caption = (
        f"{protocol}, {environment}: accuracy on the classes known before each session (left), and on each session's "
        "new classes right after it, averaged over sessions (right)."
    )
    name = f"known-{slug(environment)}-{protocol}"
    return Picture(name, caption, environment, [protocol], {"known": known, "novel": novel}, "known")


def confusion_picture(environment: str, protocol: str, methods: dict[str, list[Run]], names: Names) -> Picture:
    panels = []
    for method in names.ordered(methods):
        own = [run.confusion for run in methods[method] if run.confusion is not None]
        total = np.sum(own, axis=0)
        panels.append({"method": method, "label": names.label(method), "runs": len(own), "counts": total.tolist()})
    sizes = next(iter(methods.values()))[0].sizes
    caption = (
        f"{protocol}, {environment}: test images by true class (rows) and predicted class (columns) after the last "
        "session, in percent of the row, all seeds together; lines divide sessions."
    )
    name = f"confusion-{slug(environment)}-{protocol}"
    return Picture(name, caption, environment, [protocol], {"sizes": sizes, "panels": panels}, "confusion")
