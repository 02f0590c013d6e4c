"""`bench publish`: own records become published ones, if anybody could make them again."""

import dataclasses
import subprocess
from pathlib import Path

from benchmark.errors import UsageError
from benchmark.files import make_folder
from benchmark.records.question import Given
from benchmark.records.reading import read_record
from benchmark.records.record import OWN, PUBLISHED, RunRecord
from benchmark.records.reference import is_registered
from benchmark.report.runs import Run, require_records
from benchmark.report.single import chosen_among


def publish(results: Path, wanted: list[str]) -> list[Path]:
    """Move these own records over, all or none; what stands in the way is named for each."""
    found = require_records(results)
    own = dataclasses.replace(found, runs=[run for run in found.runs if run.own])
    runs = {run.key: run for run in (chosen_among(own, results, text) for text in wanted)}
    obstacles = []
    for run in runs.values():
        reasons = missing_for(read_record(results / run.file), results)
        reasons += ["there is a published file of that name"] if target_of(results, run).exists() else []
        obstacles += [f"{run.name}: {reason}" for reason in reasons]
    if obstacles:
        raise UsageError("nothing was published: " + "; ".join(obstacles))
    return [moved(results, run) for run in runs.values()]


def target_of(results: Path, run: Run) -> Path:
    return results / PUBLISHED / Path(run.file).relative_to(OWN)


def moved(results: Path, run: Run) -> Path:
    """Written anew without the paths of the user's files: anybody can fetch what a published run needs."""
    record = read_record(results / run.file)
    clean = record.provenance.model_copy(update={"given": Given()})
    make_folder(target_of(results, run).parent)
    target = record.model_copy(update={"provenance": clean}).save(results, PUBLISHED)
    (results / run.file).unlink()
    return target


def missing_for(record: RunRecord, results: Path) -> list[str]:
    """What a record lacks before others can rely on it."""
    question, provenance, reasons = record.question, record.provenance, []
    if record.status == "partial":
        reasons.append("it is not finished")
    if question.method_source is not None:
        reasons.append("its method is a file of your own: put it into methods/ first")
    if record.own.protocol is not None:
        reasons.append("its protocol is a file of your own: put it into protocols/ first")
    if provenance.commit is None:
        reasons.append("the commit of the code that made it is not known: run from a checkout (pip install -e .)")
    elif provenance.dirty is not False:
        reasons.append("the code that made it had uncommitted changes")
    elif not is_in_history(provenance.commit, results):
        reasons.append(f"its commit {provenance.commit[:12]} is not in the history of HEAD")
    if record.data_spec.registered != question.data.digest:
        first = record.data_spec.first
        part = "the complete" if first is None else f"those {first} images per class of"
        reasons.append(f"its data is not {part} {record.data_spec.name} that the suite knows")
    if not is_registered(question.backbone["name"], question.backbone["weights"]):
        reasons.append(f"its weights are not those the suite knows for backbone '{question.backbone['name']}'")
    return reasons


def is_in_history(commit: str, place: Path) -> bool:
    """Whether HEAD of the checkout that a folder lies in contains a commit."""
    words = ["git", "-C", str(place), "merge-base", "--is-ancestor", commit, "HEAD"]
    try:
        return subprocess.run(words, capture_output=True, check=False, timeout=20).returncode == 0  # noqa: S603 - a record's commit is 40 hexadecimal digits
    except (OSError, subprocess.SubprocessError):
        return False
