"""What a record holds of the sessions, of what was stored, and of where it came from."""

from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from benchmark.protocol.models import Spec
from benchmark.records import scoring
from benchmark.records.question import Amount, Given, Place


class PhaseLog(Spec):
    """A stretch of a session: its steps, and by epoch the mean of every loss term and what the method says of itself.

    Null where a term was absent.
    """

    name: str
    epochs: int = Field(ge=0)
    steps: int = Field(ge=0, description="per epoch")
    images: int = Field(ge=0, description="of the session, per step")
    memory: int = Field(ge=0, description="exemplars per step")
    terms: dict[str, list[float | None]]
    diagnostics: dict[str, list[float | None]]

    @model_validator(mode="after")
    def _a_value_per_epoch(self) -> "PhaseLog":
        if any(len(curve) > self.epochs for curve in (*self.terms.values(), *self.diagnostics.values())):
            raise ValueError("a curve has more values than there were epochs")
        return self


class SparseCounts(Spec):
    """A matrix of counts, most of which are zero: true class, predicted row and number of images, entry by entry."""

    true: list[Place]
    row: list[Place]
    images: list[Amount]

    @model_validator(mode="after")
    def _entries_are_whole(self) -> "SparseCounts":
        if not len(self.true) == len(self.row) == len(self.images):
            raise ValueError("the three lists differ in length")
        if len({*zip(self.true, self.row, strict=True)}) != len(self.true):
            raise ValueError("counts name a place twice")
        return self

    @property
    def size(self) -> int:
        """Classes and rows that are named, at least."""
        return 1 + max([*self.true, *self.row], default=-1)

    def dense(self, size: int) -> scoring.Counts:
        counts = np.zeros((size, size), dtype=np.int64)
        counts[self.true, self.row] = self.images
        return counts

    @staticmethod
    def of(counts: scoring.Counts) -> "SparseCounts":
        true, row = np.nonzero(counts)
        return SparseCounts(true=true.tolist(), row=row.tolist(), images=counts[true, row].tolist())


class SessionResult(Spec):
    """What was measured at the end of a session."""

    classes: tuple[int, ...] = Field(description="dataset labels of the classes that arrived")
    counts: SparseCounts = Field(description="test images, classes in order of arrival")
    train_counts: SparseCounts = Field(description="the session's own training images, likewise")
    assignment: tuple[int, ...] = Field(description="class (within the session) of each row it created")
    train_assignment: tuple[int, ...] = Field(description="the same, solved on training images: a diagnostic")
    phases: tuple[PhaseLog, ...]
    probe: SparseCounts | None = Field(
        None,
        description="test images as the probe predicts them (probe.py); none: an older record, or no features",
    )

    def assignments(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.assignment, self.train_assignment


class Stored(Spec):
    """What a method holds at the end beside the trained block and a head of its rows, counted by the engine."""

    images: int = Field(0, ge=0, description="exemplars")
    numbers: int = Field(0, ge=0, description="in buffers")
    parameters: int = Field(0, ge=0, description="weights of teachers, projectors, further heads")


class Provenance(Spec):
    """Where a record came from. No host and no user name."""

    commit: str | None = Field(None, pattern=r"^[0-9a-f]{40}$")
    dirty: bool | None = None
    engine_source: str = Field("", description="digest of the suite's own files")
    method_source: str = Field("", description="digest of the method's file, or of all own files it imports")
    versions: dict[str, str] = Field({})
    platform: str = ""
    machine: str = Field("", description="processor and kernels to the last detail: on one kind, the same bits")
    device: str = ""
    threads: int = Field(0, ge=0)
    started: str = ""
    finished: str = ""
    seconds: float = Field(0.0, ge=0)
    attempts: int = Field(1, ge=0)
    session_seconds: list[float] = Field([])
    peak_memory_mb: float = 0.0
    own_memory_mb: float | None = None
    trunk_images: int = Field(0, ge=0)
    bank_seconds: float = Field(0.0, ge=0)
    base_session: Literal["trained", "cached"] = "trained"
    given: Given = Given()
