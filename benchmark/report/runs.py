"""From record files to what the report needs of each run; a record is read, summarised and let go, one at a time."""

import gc
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmark import scoring
from benchmark.errors import UsageError
from benchmark.record import RunRecord, group_name, read_record

ENVIRONMENT = ("views", "backbone", "weights", "reduced", "data")
"""Changes that concern every method alike, with those of the budget and the shared constants."""
POINTS = 50
"""Of a curve by epoch, at most."""

Confusion = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Run:
    """One run, without its counts."""

    name: str
    file: str
    protocol: str
    method: str
    seed: int
    status: str
    reason: str | None
    budget: str
    environment: str
    """What was changed for all methods alike, and the budget; runs of one environment may stand in one table."""
    variant: dict[str, Any]
    """What was changed in the method's own parameters."""
    group: str
    reference: bool
    """Whether the environment is the protocol's own."""
    setting: str
    stored: str
    command: str
    sizes: list[int]
    images: list[int]
    """Test images of each session's classes."""
    metrics: scoring.Metrics | None
    """None if the run diverged before it could be scored."""
    assignments: list[list[int]]
    curves: list[dict[str, Any]]
    """By session and phase: terms and diagnostics, thinned."""
    optimiser_steps: int
    provenance: dict[str, Any]
    confusion: Confusion | None
    """Test images by true class and class of the predicted row, after the last session, of a finished run."""

    @property
    def commit(self) -> str:
        return self.provenance["commit"] or "unknown"

    @property
    def dirty(self) -> bool:
        """Whether the code was not, or not surely, what the commit says."""
        return self.provenance["dirty"] is not False


def of_environment(key: str) -> bool:
    return key in ENVIRONMENT or key.startswith(("budget.", "shared."))


def summary(record: RunRecord, file: str) -> Run:
    question, changed = record.question, record.changed
    shared = {key: value for key, value in changed.items() if of_environment(key)}
    assignments = [list(session.assignment) for session in record.sessions]
    counts = record.counts()
    images = np.split(counts[-1].sum(axis=1), np.cumsum(record.sizes)[:-1]) if counts else []
    return Run(
        name=f"{question.protocol['name']}/{question.method}/seed{question.seed}-{record.key[:8]}",
        file=file,
        protocol=question.protocol["name"],
        method=question.method,
        seed=question.seed,
        status=record.status,
        reason=record.reason,
        budget=record.budget_name,
        environment=group_name(record.budget_name, shared),
        variant={key: value for key, value in changed.items() if key not in shared},
        group=record.group,
        reference=record.budget_name == "paper" and not shared,
        setting=record.setting,
        stored=record.stored_per_class,
        command=record.command,
        sizes=record.sizes,
        images=[int(part.sum()) for part in images],
        metrics=scoring.score(counts, assignments) if counts else None,
        assignments=assignments,
        curves=[
            {
                "session": number,
                "phase": phase.name,
                "epochs": phase.epochs,
                "terms": thinned(phase.terms),
                "diagnostics": thinned(phase.diagnostics),
            }
            for number, session in enumerate(record.sessions)
            for phase in session.phases
        ],
        optimiser_steps=record.optimiser_steps,
        provenance=json.loads(record.provenance.model_dump_json()),  # what is no number becomes null
        confusion=by_class(counts[-1], assignments) if record.status == "done" else None,
    )


def thinned(curves: dict[str, list[float | None]]) -> dict[str, list[tuple[int, float]]]:
    """At most so many points (epoch, value) a curve, the last one always among them; those without a value left out."""
    kept = {}
    for name, values in curves.items():
        step = math.ceil(len(values) / POINTS)
        chosen = range((len(values) - 1) % step, len(values), step) if values else range(0)
        kept[name] = [(k + 1, value) for k in chosen if (value := values[k]) is not None]
    return kept


def by_class(counts: scoring.Counts, assignments: list[list[int]]) -> Confusion:
    """Columns by the class that a row stands for, instead of by row."""
    confusion = np.zeros(counts.shape, dtype=np.int32)
    confusion[:, scoring.row_classes(assignments)] = counts
    return confusion


@contextmanager
def without_collector() -> Iterator[None]:
    """Records are trees of many small tuples: looking for cycles among them takes longer than reading them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read_runs(results: Path) -> tuple[list[Run], list[str]]:
    """All runs below a folder in a fixed order, and a sentence for each file that is no record."""
    runs, refused, seen = [], [], dict[str, str]()
    with without_collector():
        for path in sorted((results / "runs").rglob("*.json")):
            file = path.relative_to(results).as_posix()
            try:
                record = read_record(path)
            except UsageError as error:
                refused.append(str(error))
                continue
            if record.key in seen:
                refused.append(f"{path} is a second record of the run in {seen[record.key]}")
                continue
            seen[record.key] = file
            runs.append(summary(record, file))
    return runs, refused
