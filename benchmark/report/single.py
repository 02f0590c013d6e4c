"""`bench list runs` and `bench show`: one line a run, and one run in full."""

import dataclasses
import re
from pathlib import Path
from typing import Any

from tabulate import tabulate

from benchmark.errors import UsageError
from benchmark.records.record import stored_text
from benchmark.records.scoring import METRICS
from benchmark.report.names import plain_name
from benchmark.report.runs import Found, Run, require_records

PLACEHOLDER = re.compile(r"--data-dir DIR|--weights FILE|:CLASS")
PLACEHOLDERS = "(DIR: the folder of the data; FILE: the file of the weights; CLASS: that of the method)"


def listed(results: Path, wanted: dict[str, str]) -> Found:
    """Runs whose fields equal (or, for the group, contain) what is wanted; what was refused, and what was repeated."""
    found = require_records(results)
    runs = found.runs
    for key, value in wanted.items():
        if key == "method":
            runs = [run for run in runs if value in (run.method, plain_name(run.method), run.base)]
        else:
            runs = [run for run in runs if (value in run.group if key == "group" else str(getattr(run, key)) == value)]
    return dataclasses.replace(found, runs=runs)


def row(run: Run) -> dict[str, Any]:
    """A run as programs get it; `label` is its row in tables."""
    names = ("name", "protocol", "seed", "group", "status", "own", "source")
    fields = {name: getattr(run, name) for name in names}
    return {**fields, "method": run.base, "label": run.method, "metrics": run.figures()}


def run_list(runs: list[Run]) -> str:
    """A line a run for a terminal."""
    rows = []
    for run in runs:
        figures = ("" if value is None else f"{value:.2f}" for value in run.figures().values())
        rows.append([run.name, "own" if run.own else "published", run.status, *figures, run.group])
    headers = ["run", "whose", "status", *(metric.short for metric in METRICS), "group"]
    return tabulate(rows, headers=headers, tablefmt="simple", disable_numparse=True)


def chosen(results: Path, text: str) -> Run:
    """The one run whose name, file or key is given, whole or in a part that no other run shares."""
    return chosen_among(require_records(results), results, text)


def chosen_among(found_there: Found, results: Path, text: str) -> Run:
    runs = found_there.runs
    path = Path(text)
    exact = [run for run in runs if run.name == text or (path.is_file() and (results / run.file).samefile(path))]
    found = exact or [run for run in runs if text and (text in run.name or run.key.startswith(text))]
    if len(found) == 1:
        return found[0]
    if not found:
        said = [line for line in (*found_there.refused, *found_there.repeated) if text and text in line]
        why = f" ({said[0]})" if said else ""
        raise UsageError(f"there is no run '{text}' in {results}: `bench list runs` names them{why}")
    some = ", ".join(run.name for run in found[:3])
    raise UsageError(
        f"'{text}' may mean {len(found)} runs ({some}{', ...' if len(found) > 3 else ''}): give more of it"
    )


def document(run: Run) -> dict[str, Any]:
    metrics = run.metrics
    return {
        **row(run),
        "record": run.file,
        "reason": run.reason,
        "accuracy": metrics.accuracy if metrics else [],
        "overall": metrics.overall if metrics else [],
        "assignment": run.assignments,
        "stored_per_class": dict(zip(("images", "numbers"), run.stored, strict=True)),
        "extra_weights": run.extra_weights,
        "optimiser_steps": run.optimiser_steps,
        "command": run.command,
        "provenance": run.provenance,
    }


def run_text(run: Run) -> str:
    """All of it for a terminal."""
    state = f"{run.status} ({run.reason})" if run.reason else run.status
    summary = [("group", run.group), ("status", state), ("record", run.file), ("command", run.command)]
    summary += [("", PLACEHOLDERS)] if PLACEHOLDER.search(run.command) else []
    summary += [(metric.title, "-" if (v := run.figures()[metric.name]) is None else f"{v:.2f}") for metric in METRICS]
    if run.probe is not None:
        figures = ((metric.title, getattr(run.probe, metric.name)) for metric in METRICS)
        summary += [(f"probe: {title}", "-" if value is None else f"{value:.2f}") for title, value in figures]
    summary += [("stored per class", stored_text([run.stored])), ("extra weights", f"{run.extra_weights:,}")]
    summary += [("optimiser steps", str(run.optimiser_steps))]
    parts = [run.name, plain_table(summary)]
    if run.metrics is not None:
        sessions = range(len(run.sizes))
        rows = [
            [
                f"session {t}",
                *(f"{value:.2f}" for value in line),
                *[""] * (len(run.sizes) - len(line)),
                f"{overall:.2f}",
            ]
            for t, (line, overall) in enumerate(zip(run.metrics.accuracy, run.metrics.overall, strict=True))
        ]
        headers = ["accuracy in %, after", *(f"C{j} ({run.sizes[j]} classes)" for j in sessions), "overall"]
        parts.append(tabulate(rows, headers=headers, disable_numparse=True, stralign="right"))
        new = [(f"session {t}", " ".join(map(str, own))) for t, own in enumerate(run.assignments) if t]
        if new:
            parts.append("class (within its session) of each row it created\n" + plain_table(new))
    parts.append("provenance\n" + plain_table([(key, str(value)) for key, value in run.provenance.items()]))
    return "\n\n".join(parts)


def plain_table(rows: list[tuple[str, str]]) -> str:
    return tabulate(rows, tablefmt="plain", disable_numparse=True)
