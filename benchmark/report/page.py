"""results/index.html: one file that holds everything, tables and curves drawn by the page from numbers in it."""

import base64
import json
import math
import re
from collections.abc import Hashable
from importlib.resources import files
from typing import Any

import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from benchmark.records.record import stored_text
from benchmark.records.scoring import METRICS
from benchmark.report.cells import environments
from benchmark.report.figures import Picture
from benchmark.report.names import Names
from benchmark.report.runs import Run
from benchmark.report.table import DIRTY, MIXED, Table
from benchmark.report.tables import reproduction

DECIMALS = 6
"""More than is shown, so that nothing is rounded twice."""
PICTURE = re.compile(rb'src="data:image/svg\+xml;base64,([^"]*)"')


def plain(value: Any) -> Any:
    """Numbers as the page needs them: rounded, and null where there is none."""
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, DECIMALS)
    return value


def in_order(cells: pd.DataFrame, names: Names) -> pd.DataFrame:
    """What ran first; reference runs before others, methods as they are before changed ones, in the tables' order."""
    methods = {name: k for k, name in enumerate(names.ordered(cells["method"]))}
    protocols = {name: k for k, name in enumerate(names.paper.protocols)}

    def place(row: dict[Hashable, Any]) -> tuple[Any, ...]:
        where = environments_in_order[row["environment"]]
        return row["runs"] == 0, where, row["variant"] != "", protocols.get(row["protocol"], 99), methods[row["method"]]

    environments_in_order = {name: k for k, name in enumerate(environments(cells))}
    rows = cells.to_dict("records")
    return cells.iloc[sorted(range(len(rows)), key=lambda k: place(rows[k]))]


def cell_rows(cells: pd.DataFrame, names: Names) -> list[dict[str, Any]]:
    """One row a (group, protocol, method), its metrics inside."""
    rows = []
    for (group, protocol, method), part in in_order(cells, names).groupby(["group", "protocol", "method"], sort=False):
        first = part.iloc[0]
        inner = ("mean", "deviation", "paper", "status", "rank")
        metrics = {row["metric"]: {key: plain(row[key]) for key in inner} for row in part.to_dict("records")}
        absent = {"mean": None, "deviation": None, "paper": None, "status": "", "rank": 0}
        marks = (DIRTY if first["dirty"] else "") + (MIXED if first["commits"] > 1 else "")
        rows.append(
            {"group": group, "protocol": protocol, "method": method, "marks": marks, "stored": first["stored"]}
            | {"extra_weights": int(first["extra weights"])}
            | {"runs": int(first["runs"]), "diverged": int(first["diverged"])}
            | {metric.name: metrics.get(metric.name, absent) for metric in METRICS}
        )
    return rows


def run_row(run: Run) -> dict[str, Any]:
    metrics = run.metrics
    names = ("name", "file", "protocol", "method", "seed", "status", "reason", "group", "command", "extra_weights")
    return {key: getattr(run, key) for key in names} | {
        "stored": stored_text([run.stored]),
        "metrics": {name: plain(value) for name, value in run.figures().items()},
        "accuracy": [[*map(plain, row)] for row in metrics.accuracy] if metrics else [],
        "overall": [*map(plain, metrics.overall)] if metrics else [],
        "sizes": run.sizes,
        "curves": run.curves,
        "optimiser_steps": run.optimiser_steps,
        "provenance": run.provenance,
    }


def page_data(cells: pd.DataFrame, runs: list[Run], names: Names) -> dict[str, Any]:
    """All that the page's script gets to see."""
    methods = names.ordered([*cells["method"], *(run.method for run in runs)])
    return {
        "metrics": [{"name": metric.name, "title": metric.short} for metric in METRICS],
        "labels": {method: names.label(method) for method in methods},
        "cells": cell_rows(cells, names),
        "runs": [run_row(run) for run in runs],
    }


def figure(picture: Picture, svg: bytes) -> dict[str, str]:
    """A picture as the page embeds it, with what the filters compare."""
    panels = picture.input.get("panels", [])
    lines = [line for panel in panels for line in panel.get("lines", [])] + picture.input.get("known", [])
    shown = [entry["method"] for entry in [*lines, *panels] if "method" in entry]
    return {
        "group": picture.environment,
        "protocols": json.dumps(picture.protocols),
        "methods": json.dumps([*dict.fromkeys(shown)]),
        "caption": picture.caption,
        "svg": base64.b64encode(svg).decode(),
    }


def page(
    cells: pd.DataFrame,
    runs: list[Run],
    tables: list[Table],
    names: Names,
    pictures: list[tuple[Picture, bytes]],
    refused: list[str],
) -> str:
    """The whole file. jinja2 escapes all text; style, script and numbers are ours and go in as they are."""
    folder = files("benchmark") / "report"
    read = {kind: (folder / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")}
    methods, protocols = ({getattr(run, key) for run in runs} for key in ("method", "protocol"))
    own = sum(run.own for run in runs)
    intro = f"{len(runs)} runs of {len(methods)} methods on {len(protocols)} protocols."
    intro += f" {own} of them are your own, marked (own)." if own else ""
    intro += f" {len(refused)} files were refused: bench report names them." if refused else ""
    data = json.dumps(page_data(cells, runs, names), allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    templates = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    return templates.from_string(read["html"]).render(
        css=Markup(read["css"]),  # noqa: S704 - our own file, as the next one
        js=Markup(read["js"]),  # noqa: S704
        intro=intro,
        reading=reproduction(pd.concat([t.frame["status"].to_frame() for t in tables if "status" in t.frame])),
        tables=[table for table in tables if table.sections],
        figures=[figure(picture, svg) for picture, svg in pictures],
        # "</script>" or "<!--" in a record's text would end the script early
        data=Markup(data.replace("<", r"\u003c")),  # noqa: S704 - JSON in a script element
    )


def pictures_of(page: bytes) -> list[bytes]:
    """The pictures that a page shows, in its order; nothing for one that cannot be read."""
    found = []
    for text in PICTURE.findall(page):
        try:
            found.append(base64.b64decode(text, validate=True))
        except ValueError:
            found.append(b"")
    return found


def without_pictures(page: bytes) -> bytes:
    """The page less its pictures: those differ between versions of matplotlib, and have digests of their own."""
    return PICTURE.sub(b'src=""', page)
