"""Sessions as types. What a method must not know has no field to be read from.

`Labelled` is session 0. `Unlabelled` is a discovery session: sizes, and the images' tokens in an order that says
nothing about their classes. Hidden labels and test images live in `Stream`, which only the engine holds.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol as Interface

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmark.data import Dataset
from benchmark.protocol import Protocol


@dataclass(frozen=True)
class Tokens:
    """What the trunk says of n pictures: the raw class token (n, d) and the other tokens (n, l, d).

    The other tokens are already normalised (without scale and shift) if the last block takes the class-token path,
    raw otherwise; out of a float16 bank they come as they are stored. Methods pass tokens to the block and need not
    know.
    """

    cls: Tensor
    rest: Tensor

    def __len__(self) -> int:
        return len(self.cls)

    def __getitem__(self, index: Tensor | slice) -> "Tokens":
        return Tokens(self.cls[index], self.rest[index])

    @staticmethod
    def cat(parts: "list[Tokens]") -> "Tokens":
        return Tokens(torch.cat([part.cls for part in parts]), torch.cat([part.rest for part in parts]))


@dataclass(frozen=True)
class Clean:
    """Some of a session's images in the clean view."""

    index: Tensor
    tokens: Tokens


class Reader(Interface):
    """Reads images of a session in the clean view, as long as the session lasts."""

    def clean(self) -> Iterator[Clean]: ...

    def recall(self, index: Tensor) -> Iterator[Clean]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Unlabelled:
    """A discovery session as a method sees it."""

    number: int
    known: int
    new: int
    reader: Reader = field(repr=False)

    @property
    def total(self) -> int:
        return self.known + self.new

    @property
    def new_rows(self) -> slice:
        return slice(self.known, self.total)

    def clean(self) -> Iterator[Clean]:
        """All images in a fixed order, some at a time: what `prepare` and `end` may look at."""
        return self.reader.clean()

    def recall(self, index: Tensor) -> Iterator[Clean]:
        """The images with these ids, in that order: of this session, or exemplars the method came with."""
        return self.reader.recall(index)


@dataclass(frozen=True)
class Labelled(Unlabelled):
    """Session 0, the only one whose labels (as output rows, in the order of `clean().index`) are known."""

    labels: Tensor


@dataclass(frozen=True)
class MemoryBatch:
    """Two views of exemplars and the output rows they were stored under."""

    both: Tokens
    row: Tensor

    @property
    def a(self) -> Tokens:
        return self.both[: len(self.both) // 2]

    @property
    def b(self) -> Tokens:
        return self.both[len(self.both) // 2 :]


@dataclass(frozen=True)
class Batch:
    """Two views of the same images. `both` is view a on top of view b, for one pass through the block, not two."""

    both: Tokens
    index: Tensor
    epoch: int
    epochs: int
    memory: MemoryBatch | None = None

    @property
    def a(self) -> Tokens:
        return self.both[: len(self.index)]

    @property
    def b(self) -> Tokens:
        return self.both[len(self.index) :]


@dataclass(frozen=True)
class LabelledBatch:
    """One view of labelled images, for the base session."""

    tokens: Tokens
    labels: Tensor


@dataclass(frozen=True)
class Stream:
    """A protocol laid over a dataset: which images arrive in which session, and what only the evaluator may know.

    An image's id is its place in the order of arrival. Within a session that order is a fixed shuffle, because
    datasets are often stored class by class and a place in the file would then give the label away.
    """

    sessions: tuple[tuple[int, ...], ...]
    position: npt.NDArray[np.int64]
    """Dataset position of every id."""
    first: tuple[int, ...]
    """First id of every session, and the end of the last."""
    hidden: npt.NDArray[np.int64]
    """Class of every id, as place in the order of arrival."""
    test_position: npt.NDArray[np.int64]
    test_class: npt.NDArray[np.int64]

    def ids(self, session: int) -> Tensor:
        return torch.arange(self.first[session], self.first[session + 1])

    def known(self, session: int) -> int:
        return sum(len(classes) for classes in self.sessions[:session])

    def new(self, session: int) -> int:
        return len(self.sessions[session])


def lay_out(protocol: Protocol, dataset: Dataset) -> Stream:
    """Sort a dataset's images into the sessions of a protocol."""
    sessions = protocol.classes
    arrival = np.full(len(dataset.classes), -1)
    arrival[[label for classes in sessions for label in classes]] = np.arange(sum(map(len, sessions)))
    positions, first = [], [0]
    for number, classes in enumerate(sessions):
        members = np.flatnonzero(np.isin(dataset.train.labels, classes))
        positions.append(np.random.default_rng([0xC0C0, number]).permutation(members))
        first.append(first[-1] + len(members))
    position = np.concatenate(positions)
    test_class = arrival[dataset.test.labels]
    kept = np.flatnonzero(test_class >= 0)
    return Stream(sessions, position, tuple(first), arrival[dataset.train.labels[position]], kept, test_class[kept])
