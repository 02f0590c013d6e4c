"""Figures of the report. Each is drawn from an input of plain numbers, and its digest says whether it is up to date."""

import hashlib
import io
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmark.record import canonical
from benchmark.report.frames import FLOOR, REFERENCE
from benchmark.report.runs import Run
from benchmark.report.tables import Names

VERSION = 1
"""Of the drawing code: to be raised when a picture changes though its numbers do not."""
STYLES = {
    "fea": ("#D55E00", "o"),
    "gm": ("#0072B2", "s"),
    "frost": ("#009E73", "^"),
    "simgcd": ("#CC79A7", "D"),
    "autonovel": ("#E69F00", "v"),
    FLOOR: ("#6E6E6E", "x"),
}
"""Colours that colour-blind readers can tell apart (Okabe and Ito), one a method everywhere, and a mark beside them."""
OTHERS = (("#56B4E9", "P"), ("#000000", "*"), ("#8C6D31", "h"), ("#5254A3", "<"), ("#A55194", ">"))
LOOK: dict[Any, Any] = {
    "font.size": 8,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "svg.hashsalt": "bench",
    "svg.fonttype": "path",
    "savefig.dpi": 200,
    "figure.constrained_layout.use": True,
}
DECIMALS = 4
SLUG = 60
LEGEND_ENTRY, LEGEND_LINE = 1.13, 0.17
"""Inches that an entry of a legend takes, and a line of it."""

Input = dict[str, Any]


@dataclass(frozen=True)
class Picture:
    """A figure to be drawn."""

    name: str
    caption: str
    environment: str
    protocols: list[str]
    input: Input
    draw: Callable[[Input], Figure]

    @property
    def digest(self) -> str:
        return hashlib.sha256(canonical([VERSION, self.caption, self.input])).hexdigest()


def style(method: str, others: list[str]) -> tuple[str, str]:
    """Colour and mark; methods that are not the suite's get theirs by their order among all such methods."""
    return STYLES[method] if method in STYLES else OTHERS[others.index(method) % len(OTHERS)]


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
        everyone.add(run.method)
        if run.status == "done" and not run.variant and len(run.sizes) > 1:
            found.setdefault(run.environment, {}).setdefault(run.protocol, {}).setdefault(run.method, []).append(run)
    others = sorted(everyone - STYLES.keys())
    drawn = []
    for environment in sorted(found, key=lambda name: (name != REFERENCE, len(name), name)):
        compared = {p: m for p, m in found[environment].items() if environment == REFERENCE or len(m) > 1}
        if not compared:
            continue
        order = {p: k for k, p in enumerate(names.paper.protocols)}
        protocols = sorted(compared, key=lambda p: (order.get(p, len(order)), p))
        drawn.append(accuracy_picture(environment, {p: compared[p] for p in protocols}, names, others))
        for protocol in protocols:
            drawn.append(known_picture(environment, protocol, compared[protocol], names, others))
            drawn.append(confusion_picture(environment, protocol, compared[protocol], names))
    return drawn


def lines(methods: dict[str, list[Run]], curve: Callable[[Run], list[float]], names: Names, others: list[str]) -> Any:
    drawn = []
    for method in names.ordered(methods):
        colour, mark = style(method, others)
        told = {"method": method, "label": names.label(method), "colour": colour, "mark": mark}
        drawn.append(told | {"runs": len(methods[method])} | spread([curve(run) for run in methods[method]]))
    return drawn


def accuracy_picture(
    environment: str, found: dict[str, dict[str, list[Run]]], names: Names, others: list[str]
) -> Picture:
    def overall(run: Run) -> list[float]:
        assert run.metrics is not None
        return run.metrics.overall

    panels = [{"protocol": p, "lines": lines(methods, overall, names, others)} for p, methods in found.items()]
    caption = f"Overall accuracy after each session, {environment}: mean over seeds, band of one sample deviation."
    return Picture(f"accuracy-{slug(environment)}", caption, environment, [*found], {"panels": panels}, draw_accuracy)


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
    return Picture(name, caption, environment, [protocol], {"known": known, "novel": novel}, draw_known)


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
    return Picture(name, caption, environment, [protocol], {"sizes": sizes, "panels": panels}, draw_confusion)


def draw_lines(axes: Axes, drawn: list[dict[str, Any]], first: int) -> None:
    for line in drawn:
        mean, deviation = np.array(line["mean"]), np.array(line["deviation"])
        sessions = np.arange(first, first + len(mean))
        dashed = "--" if line["method"] == FLOOR else "-"
        axes.plot(sessions, mean, color=line["colour"], marker=line["mark"], linestyle=dashed, label=line["label"])
        axes.fill_between(sessions, mean - deviation, mean + deviation, color=line["colour"], alpha=0.15, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.set_xlabel("session")


def legend_below(figure: Figure, drawn: Iterable[dict[str, Any]], axes: Iterable[Axes]) -> None:
    """One legend for all panels, every method once."""
    handles: dict[str, Any] = {}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    order = [*dict.fromkeys(line["label"] for line in drawn)]
    columns = max(1, min(len(order), int(figure.get_figwidth() / LEGEND_ENTRY)))
    shown = [handles[label] for label in order]
    figure.legend(shown, order, loc="outside lower center", ncols=columns, frameon=False)
    figure.set_figheight(figure.get_figheight() + LEGEND_LINE * -(-len(order) // columns))


def draw_accuracy(data: Input) -> Figure:
    panels = data["panels"]
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(max(3.4, 2.1 * columns), 2.0 * rows + 0.2))
    grid = figure.subplots(rows, columns, squeeze=False).flat
    used = []
    for panel, axes in zip(panels, grid, strict=False):
        draw_lines(axes, panel["lines"], 0)
        axes.set_title(panel["protocol"], fontsize=8)
        used.append(axes)
    for axes in [*grid]:
        axes.set_visible(False)
    for axes in used[::columns]:
        axes.set_ylabel("overall accuracy (%)")
    legend_below(figure, (line for panel in panels for line in panel["lines"]), used)
    return figure


def draw_known(data: Input) -> Figure:
    figure = Figure(figsize=(5.7, 2.4))
    left, right = figure.subplots(1, 2, width_ratios=[1.6, 1])
    draw_lines(left, data["known"], 1)
    left.set_ylabel("known classes (%)")
    bars = data["novel"]
    places = np.arange(len(bars))
    heights = [line["mean"][0] for line in bars]
    errors = [line["deviation"][0] if line["runs"] > 1 else np.nan for line in bars]  # one run has no deviation
    right.bar(places, heights, color=[line["colour"] for line in bars], width=0.7)
    right.errorbar(places, heights, yerr=errors, fmt="none", ecolor="#333333", elinewidth=0.8, capsize=2)
    right.set_xticks(places, [line["label"] for line in bars], rotation=35, ha="right")
    right.set_ylabel("new classes, average (%)")
    right.grid(visible=False, axis="x")
    legend_below(figure, data["known"], [left])
    return figure


def draw_confusion(data: Input) -> Figure:
    panels, borders = data["panels"], np.cumsum(data["sizes"])[:-1]
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(2.3 * columns + 0.6, 2.3 * rows + 0.2))
    grid = figure.subplots(rows, columns, squeeze=False).flat
    used = []
    for panel, axes in zip(panels, grid, strict=False):
        counts = np.array(panel["counts"], dtype=float)
        percent = 100 * counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
        sns.heatmap(
            percent, ax=axes, vmin=0, vmax=100, cmap="rocket_r", square=True, cbar=False, rasterized=True,
            xticklabels=False, yticklabels=False,
        )  # fmt: skip
        for border in borders:
            axes.axhline(border, color="#0072B2", linewidth=0.6)
            axes.axvline(border, color="#0072B2", linewidth=0.6)
        axes.grid(visible=False)
        axes.set_title(f"{panel['label']} ({panel['runs']})", fontsize=8)
        used.append(axes)
    for axes in [*grid]:
        axes.set_visible(False)
    for axes in used[::columns]:
        axes.set_ylabel("true class")
    for axes in used[-columns:]:
        axes.set_xlabel("predicted class")
    figure.colorbar(used[0].collections[0], ax=used, label="% of the true class", shrink=0.7)
    return figure


def render(picture: Picture) -> dict[str, bytes]:
    """PNG and SVG; the same numbers give the same bytes."""
    with mpl.rc_context(LOOK):
        figure = picture.draw(picture.input)
        files = {}
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, metadata=metadata)
            figure.set_layout_engine("none")  # what was laid out once stays: it takes longer than drawing
            files[kind] = buffer.getvalue()
    return files
