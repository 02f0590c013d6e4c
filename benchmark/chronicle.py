"""What is written down of a run while it goes on: the record after every session, and what `--keep` asks for."""

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save as serialise

from benchmark import provenance, scoring
from benchmark.checkpoint import Progress
from benchmark.files import atomic_write
from benchmark.progress import Display
from benchmark.record import PhaseLog, Provenance, RunRecord, SessionResult, SparseCounts, Stored
from benchmark.setting import Setting
from methods.base import Method


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


@dataclass
class Chronicle:
    """What is written down of a run while it goes on."""

    setting: Setting
    out: Path
    results: list[SessionResult]
    started: str
    commit: tuple[str | None, bool | None]
    base: Progress
    base_cached: bool = False
    stored: Stored = field(default_factory=Stored)
    """The most that the method held at the end of a session."""

    def write(
        self,
        status: Literal["done", "partial", "diverged"],
        progress: Progress,
        *,
        reason: str | None = None,
    ) -> RunRecord:
        """The record as it stands, whole, in one stroke."""
        setting, question = self.setting, self.setting.request.question
        told = Provenance(
            commit=self.commit[0],
            dirty=self.commit[1],
            engine_source=provenance.engine_source(),
            method_source=setting.request.method.digest,
            versions=provenance.versions(),
            platform=provenance.processor(),
            machine=provenance.machine(),
            given=setting.request.given,
            device=str(setting.device),
            threads=torch.get_num_threads(),
            started=self.started,
            finished=provenance.now(),
            seconds=round(sum(progress.session_seconds), 2),
            attempts=progress.attempts,
            session_seconds=progress.session_seconds,
            peak_memory_mb=provenance.peak_memory_mb(),
            own_memory_mb=provenance.own_memory_mb(),
            trunk_images=setting.source.trunk_images + setting.test_source.trunk_images,
            bank_seconds=round(setting.bank_seconds, 2),
            base_session="cached" if self.base_cached else "trained",
        )
        record = RunRecord(
            key=question.key,
            status=status,
            reason=reason,
            question=question,
            own=setting.request.own,
            stored=self.stored,
            sessions=tuple(self.results),
            provenance=told,
        )
        record.save(self.out)
        return record


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
    setting: Setting, number: int, predictions: dict[str, Predictions], progress: Progress, method: Method
) -> SessionResult:
    known, new = setting.stream.known(number), setting.stream.new(number)
    counts, train_counts = (predictions[split].counts(known + new) for split in ("test", "train"))
    solved = [
        list(range(new)) if number == 0 else scoring.assign(scoring.new_block(matrix, known, new))
        for matrix in (counts, train_counts)
    ]
    names = ["base"] if number == 0 else [phase.name for phase in method.phases()]
    logs = [
        PhaseLog(name=name, **shape, terms=terms, diagnostics=figures)
        for name, shape, terms, figures in zip(names, progress.shapes, progress.logs, progress.figures, strict=True)
    ]
    return SessionResult(
        classes=setting.stream.sessions[number],
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
