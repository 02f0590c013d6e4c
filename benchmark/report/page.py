"""results/index.html: one file that holds everything, tables and curves drawn by the page from numbers in it."""

import base64
import json
import math
import re
from collections.abc import Hashable
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import pandas as pd

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


def figure_html(picture: Picture, svg: bytes) -> str:
    shown = [line["method"] for panel in picture.input.get("panels", []) for line in panel.get("lines", [])]
    shown += [line["method"] for line in picture.input.get("known", [])]
    shown += [panel["method"] for panel in picture.input.get("panels", []) if "method" in panel]
    values = {
        "group": picture.environment,
        "protocols": json.dumps(picture.protocols),
        "methods": json.dumps([*dict.fromkeys(shown)]),
    }
    attributes = " ".join(f'data-{key}="{escape(value)}"' for key, value in values.items())
    source = f'src="data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"'
    caption = escape(picture.caption)
    return f'<figure {attributes}><img alt="{caption}" {source}><figcaption>{caption}</figcaption></figure>\n'


def page(
    cells: pd.DataFrame,
    runs: list[Run],
    tables: list[Table],
    names: Names,
    pictures: list[tuple[Picture, bytes]],
    refused: list[str],
) -> str:
    """The whole file."""
    folder = files("benchmark") / "report"
    read = {kind: (folder / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")}
    methods, protocols = ({getattr(run, key) for run in runs} for key in ("method", "protocol"))
    own = sum(run.own for run in runs)
    intro = f"{len(runs)} runs of {len(methods)} methods on {len(protocols)} protocols."
    intro += f" {own} of them are your own, marked (own)." if own else ""
    intro += f" {len(refused)} files were refused: bench report names them." if refused else ""
    data = json.dumps(page_data(cells, runs, names), allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return Template(read["html"]).substitute(
        css=read["css"],
        js=read["js"],
        intro=escape(intro),
        reading=escape(reproduction(pd.concat([t.frame["status"].to_frame() for t in tables if "status" in t.frame]))),
        tables="".join(table_html(table) for table in tables if table.sections),
        figures="".join(figure_html(picture, svg) for picture, svg in pictures),
        # "</script>" or "<!--" in a record's text would end the script early
        data=data.replace("<", r"\u003c"),
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


def table_html(table: Table) -> str:
    """A table of the report, to be unfolded."""
    parts = [f"<details><summary>{escape(table.title)}</summary>\n<p class='soft'>{escape(table.note)}</p>\n"]
    for section in table.sections:
        head = "".join(f"<th scope='col'>{escape(column)}</th>" for column in section.columns)
        classes = ("", " class='best'", " class='second'")
        rows = "".join(
            "<tr>" + "".join(f"<td{classes[cell.rank]}>{escape(cell.text)}</td>" for cell in row) + "</tr>\n"
            for row in section.rows
        )
        label = escape(section.heading)
        parts.append(f"<h3>{label}</h3>\n<div class='wide' tabindex='0' role='region' aria-label='{label}'><table>")
        parts.append(f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n")
    return "".join([*parts, "</details>\n"])
