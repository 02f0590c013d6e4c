"""From record files to what the report needs of each run; a record is read, summarised and let go, one at a time."""

import dataclasses
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

from benchmark.digests import digest_of
from benchmark.errors import BenchError, UsageError
from benchmark.records import scoring
from benchmark.records.audit import refuted
from benchmark.records.question import Given
from benchmark.records.reading import read_record
from benchmark.records.record import NOT_SET, OWN, PUBLISHED, RunRecord, group_name
from benchmark.records.results import SparseCounts

ENVIRONMENT = NOT_SET
"""Changes that concern every method alike, with those of the budget and the shared constants."""
POINTS = 50
"""Of a curve by epoch, at most."""

OWN_MARK = " (own)"
"""Behind the name of a method in the user's own runs."""

Confusion = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Run:
    """One run, without its counts."""

    name: str
    file: str
    protocol: str
    dataset: str
    """What its images are called."""
    planned: list[int]
    """Classes of every session of the protocol."""
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
    stored: tuple[float, float]
    """Images and numbers per class."""
    extra_weights: int
    """Beside the trained block and head."""
    command: str
    sizes: list[int]
    images: list[int]
    """Test images of each session's classes."""
    metrics: scoring.Metrics | None
    """None if the run diverged before it could be scored."""
    probe: scoring.Metrics | None
    """What a linear discriminant makes of the method's features (benchmark/engine/probe.py); none: an older record."""
    assignments: list[list[int]]
    on_new_rows: list[float]
    """Share of a session's own training images on the rows that it created, in percent; session by session."""
    curves: list[dict[str, Any]]
    """By session and phase: terms and diagnostics, thinned."""
    optimiser_steps: int
    provenance: dict[str, Any]
    confusion: Confusion | None
    """Test images by true class and class of the predicted row, after the last session, of a finished run."""
    key: str
    base: str
    """The method's own name; `method` also tells its versions apart, and own runs from published ones."""
    version: int
    source: str
    """Digest of the files of an own method; empty: one of the suite."""
    suite: bool
    """Whether the method is one of the suite, in its latest version: its figures may stand beside the paper's."""
    own: bool
    """Whether the run is the user's, not a published one."""

    def figures(self) -> dict[str, float | None]:
        """The three figures; none of a run that has not finished."""
        metrics = self.metrics if self.status == "done" else None
        return {metric.name: getattr(metrics, metric.name) if metrics else None for metric in scoring.METRICS}

    @property
    def commit(self) -> str:
        return self.provenance["commit"] or "unknown"

    @property
    def dirty(self) -> bool:
        """Whether the code was not, or not surely, what the commit says."""
        return self.provenance["dirty"] is not False


def visible(text: str) -> str:
    """A record's text on one line and without letters that command a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()


def visible_tree(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {visible(key): visible_tree(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [*map(visible_tree, tree)]
    return visible(tree) if isinstance(tree, str) else tree


def of_environment(key: str) -> bool:
    return key in ENVIRONMENT or key.startswith(("budget.", "shared."))


def summary(record: RunRecord, file: str, *, own: bool) -> Run:
    question, changed = record.question, record.changed
    shared = {key: value for key, value in changed.items() if of_environment(key)}
    assignments = [list(session.assignment) for session in record.sessions]
    counts = record.counts()
    images = np.split(counts[-1].sum(axis=1), np.cumsum(record.sizes)[:-1]) if counts else []
    return Run(
        name=f"{question.protocol['name']}/{question.method}/seed{question.seed}-{record.key[:8]}",
        file=file,
        protocol=question.protocol["name"],
        dataset=visible(record.protocol.data.title),
        planned=[len(classes) for classes in question.protocol["classes"]],
        method=question.method if question.method_source is None else f"{question.method}@{question.method_source[:8]}",
        seed=question.seed,
        status=record.status,
        reason=None if record.reason is None else visible(record.reason),
        budget=record.budget_name,
        environment=group_name(record.budget_name, shared),
        variant={key: value for key, value in changed.items() if key not in shared},
        group=record.group,
        reference=record.budget_name == "paper" and not shared,
        setting=record.setting,
        stored=record.stored_per_class,
        extra_weights=record.stored.parameters,
        command=record.command,
        sizes=record.sizes,
        images=[int(part.sum()) for part in images],
        metrics=scoring.score(counts, assignments) if counts else None,
        probe=record.probe_metrics() if record.status == "done" else None,
        assignments=assignments,
        on_new_rows=[
            on_new_rows(session.train_counts, sum(record.sizes[:t])) for t, session in enumerate(record.sessions)
        ],
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
        provenance=shown_provenance(record),
        confusion=by_class(counts[-1], assignments) if record.status == "done" else None,
        key=record.key,
        base=question.method,
        version=question.method_version,
        source=question.method_source or "",
        suite=question.method_source is None,
        own=own,
    )


def on_new_rows(counts: SparseCounts, known: int) -> float:
    """Of images whose classes are new, the percentage that is on a new row."""
    true, row, images = (np.asarray(part, dtype=np.int64) for part in (counts.true, counts.row, counts.images))
    new = true >= known
    return 100 * float(images[new & (row >= known)].sum()) / max(1, int(images[new].sum()))


def shown_provenance(record: RunRecord) -> dict[str, Any]:
    """Provenance without the user's paths, which are in the command; what is no number becomes null."""
    visible: dict[str, Any] = visible_tree(json.loads(record.provenance.model_dump_json(exclude={"given"})))
    return visible


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


def distinctly_named(runs: list[Run]) -> list[Run]:
    """Runs that share names but not their question (another version of a method) get names of their own.

    The latest version keeps the plain name, if that settles it. Own runs are marked as such.
    """
    cells: dict[tuple[str, ...], dict[str, int]] = {}
    for run in runs:
        cells.setdefault((run.group, run.protocol, run.method), {})[run.setting] = run.version
    plain = {}
    for cell, settings in cells.items():
        latest = [setting for setting, version in settings.items() if version == max(settings.values())]
        plain[cell] = latest[0] if len(latest) == 1 else ""
    named = []
    for run in runs:
        is_plain = run.setting == plain[run.group, run.protocol, run.method]
        name = run.method if is_plain else f"{run.method}@{run.setting[:6]}"
        mark = OWN_MARK if run.own else ""
        named.append(dataclasses.replace(run, method=f"{name}{mark}", suite=run.suite and is_plain))
    return named


@dataclass(frozen=True)
class Found:
    """What lies in a results folder."""

    runs: list[Run]
    refused: list[str]
    """A sentence for each file that is no record, or cannot be true."""
    repeated: list[str]
    """A sentence for each own run that a published one answers too: whether its counts are the same."""


def read_runs(results: Path, *, own: bool = True) -> Found:
    """The published runs of a folder in a fixed order, and the user's own if wanted."""
    runs: list[Run] = []
    refused: list[str] = []
    repeated: list[str] = []
    by_key: dict[str, tuple[str, Any]] = {}
    with without_collector():
        for path in record_files(results, own=own):
            file = path.relative_to(results).as_posix()
            try:
                record = read_record(path)
                reason = refuted(record)
                if not file.startswith(f"{OWN}/") and record.provenance.given != Given():
                    reason = reason or "a published record must not name files of somebody's machine"
                if reason is not None:
                    refused.append(visible(f"{path} is refused: {reason}"))
                    continue
                run = summary(record, file, own=file.startswith(f"{OWN}/"))
            except BenchError as error:
                refused.append(visible(str(error)))
                continue
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                refused.append(visible(f"{path} cannot be scored: {error}"))
                continue
            measured = measured_in(record)
            if run.key in by_key:
                first, there = by_key[run.key]
                same = "its counts are the same" if measured == there else "its counts are others"
                repeats = run.own and first.startswith(f"{PUBLISHED}/")
                text = (
                    f"{path} repeats {first}: {same}" if repeats else f"{path} is a second record of the run in {first}"
                )
                (repeated if repeats else refused).append(visible(text))
                continue
            by_key[run.key] = (file, measured)
            runs.append(run)
    return Found(distinctly_named(runs), refused, repeated)


def measured_in(record: RunRecord) -> str:
    """Digest of all counts of a record."""
    return digest_of([[s.counts.model_dump(), s.train_counts.model_dump()] for s in record.sessions])


def record_files(results: Path, *, own: bool) -> list[Path]:
    """Published records first."""
    return [
        path for folder in (PUBLISHED, *([OWN] if own else [])) for path in sorted((results / folder).rglob("*.json"))
    ]


def require_records(results: Path, *, own: bool = True) -> Found:
    """What lies in a results folder, or a sentence that nothing does."""
    found = read_runs(results, own=own)
    if not found.runs:
        why = (
            f" ({len(found.refused)} files were refused, the first because {found.refused[0]})" if found.refused else ""
        )
        how = "make one with `bench run`" if own else "`bench publish` moves your own there"
        raise UsageError(f"there are no {'' if own else 'published '}records in {results}: {how}{why}")
    return found
