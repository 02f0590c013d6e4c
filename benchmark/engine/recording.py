"""What is written down of a run while it goes on: the record after every session, and what `--keep` asks for."""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save as serialise

from benchmark.display import Display
from benchmark.engine.checkpoint import Progress
from benchmark.engine.world import World
from benchmark.files import atomic_write
from benchmark.records import provenance, scoring
from benchmark.records.record import RunRecord
from benchmark.records.results import PhaseLog, Provenance, SessionResult, SparseCounts
from methods.contract import Method


@dataclass(frozen=True)
class Predictions:
    """Ids of images, their class in order of arrival, and the row a method put them on."""

    ids: npt.NDArray[np.int64]
    truth: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]

    def counts(self, rows: int) -> scoring.Counts:
        counts = np.zeros((rows, rows), dtype=np.int64)
        np.add.at(counts, (self.truth, self.row), 1)
        return counts


def provenance_of(
    world: World, progress: Progress, *, started: str, commit: tuple[str | None, bool | None], base_cached: bool
) -> Provenance:
    """When, where and by which code the run is made, and what it took."""
    return Provenance(
        commit=commit[0],
        dirty=commit[1],
        engine_source=provenance.engine_source(),
        method_source=world.request.method.digest,
        versions=provenance.versions(),
        platform=provenance.processor(),
        machine=provenance.machine(),
        given=world.request.given,
        device=str(world.device),
        threads=torch.get_num_threads(),
        started=started,
        finished=provenance.now(),
        seconds=round(sum(progress.session_seconds), 2),
        attempts=progress.attempts,
        session_seconds=progress.session_seconds,
        peak_memory_mb=provenance.peak_memory_mb(),
        own_memory_mb=provenance.own_memory_mb(),
        trunk_images=world.source.trunk_images + world.test_source.trunk_images,
        bank_seconds=round(world.bank_seconds, 2),
        base_session="cached" if base_cached else "trained",
    )


def keep_weights(path: Path, method: Method) -> None:
    weights = {name: tensor.detach().clone().contiguous() for name, tensor in method.state_dict().items()}
    atomic_write(path, serialise(weights))


def keep_predictions(path: Path, predictions: dict[str, Predictions]) -> None:
    """Image ids, true classes and predicted rows, as plain arrays."""
    arrays = {f"{split}_{name}": array for split, p in predictions.items() for name, array in vars(p).items()}
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    atomic_write(path, content.getvalue())


def session_result(
    world: World, number: int, predictions: dict[str, Predictions], progress: Progress, method: Method
) -> SessionResult:
    known, new = world.stream.known(number), world.stream.new(number)
    counts, train_counts = (predictions[split].counts(known + new) for split in ("test", "train"))
    solved = [
        list(range(new)) if number == 0 else scoring.assign(scoring.new_block(matrix, known, new))
        for matrix in (counts, train_counts)
    ]
    names = ["base"] if number == 0 else [phase.name for phase in method.phases()]
    logs = [
        PhaseLog(name=name, **shape, terms=terms, diagnostics=figures)
        for name, shape, terms, figures in zip(
            names, progress.shapes, progress.terms, progress.diagnostics, strict=True
        )
    ]
    return SessionResult(
        classes=world.stream.sessions[number],
        counts=SparseCounts.of(counts),
        train_counts=SparseCounts.of(train_counts),
        probe=SparseCounts.of(predictions["probe"].counts(known + new)) if "probe" in predictions else None,
        assignment=tuple(solved[0]),
        train_assignment=tuple(solved[1]),
        phases=tuple(logs),
    )


def announce(display: Display, record: RunRecord) -> None:
    """One line about the session that has just ended."""
    metrics, number = record.metrics(), len(record.sessions) - 1
    row = metrics.accuracy[-1]
    text = f"session {number}: overall {metrics.overall[-1]:.2f} %, base {row[0]:.2f} %"
    if number:
        text += f", novel {sum(row[1:]) / number:.2f} %, {record.provenance.session_seconds[-1]:.1f} s"
    display.say(text)
