"""Draws the figures of the report. Apart from their numbers, because the drawing libraries take a second to load."""

import io
from collections.abc import Iterable
from typing import Any

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmark.report.figures import Input, Picture

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
COLUMN = 3.4
"""Inches: the width of a column in most papers."""
LEGEND_ENTRY, LEGEND_LINE = 1.13, 0.17
"""Inches that an entry of a legend takes, and a line of it."""


def draw_lines(axes: Axes, lines: list[dict[str, Any]], first: int) -> None:
    for line in lines:
        mean, deviation = np.array(line["mean"]), np.array(line["deviation"])
        sessions = np.arange(first, first + len(mean))
        look = {"color": line["colour"], "marker": line["mark"], "linestyle": line["line"], "label": line["label"]}
        axes.plot(sessions, mean, **look)
        axes.fill_between(sessions, mean - deviation, mean + deviation, color=line["colour"], alpha=0.15, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.set_xlabel("session")


def legend_below(figure: Figure, lines: Iterable[dict[str, Any]], axes: Iterable[Axes]) -> None:
    """One legend for all panels, every method once."""
    handles: dict[str, Any] = {}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    order = [*dict.fromkeys(line["label"] for line in lines)]
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


def draw_curve(data: Input) -> Figure:
    """One panel, as wide as a column of a paper."""
    figure = Figure(figsize=(COLUMN, 2.4))
    axes = figure.subplots()
    draw_lines(axes, data["lines"], data["first"])
    axes.set_ylabel(data["ylabel"])
    axes.set_title(data["title"], fontsize=8)
    legend_below(figure, data["lines"], [axes])
    return figure


DRAW = {"accuracy": draw_accuracy, "known": draw_known, "confusion": draw_confusion, "curve": draw_curve}
METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""What would make two drawings of the same numbers differ is left out."""


def render(picture: Picture, kinds: Iterable[str] = ("png", "svg")) -> dict[str, bytes]:
    """Its files by kind; the same numbers give the same bytes."""
    with mpl.rc_context(LOOK):
        figure = DRAW[picture.kind](picture.input)
        files = {}
        for kind in kinds:
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, metadata=METADATA[kind])
            figure.set_layout_engine("none")  # what was laid out once stays: it takes longer than drawing
            files[kind] = buffer.getvalue()
    return files
