"""Sessions as types. What a method must not know has no field to be read from.

`Labelled` is session 0. `Unlabelled` is a discovery session: sizes, and the images' tokens in an order that says
nothing about their classes. Hidden labels and test images live in `Stream`, which only the engine holds.

An image's id is its place in its split, which is ordered by the SHA-256 of the pixels (data.py).
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmark.data import Dataset
from benchmark.errors import UsageError
from benchmark.protocol import Protocol

OVER = "the method reads images in begin or of a session that is over: read in prepare and end, keep some as memory"
CHUNK = 256
"""Images whose clean tokens are handed out together."""


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


def plain(tensor: object, what: str) -> Tensor:
    """A tensor from a method, if it is one of torch's own: a subclass could answer the engine's questions itself."""
    if type(tensor) is not Tensor:
        raise UsageError(f"the method's {what} must be a plain torch.Tensor, not {type(tensor).__name__}")
    return tensor


Reading = Generator[Tokens | None, Tensor, None]
"""Takes ids, gives tokens. A generator, because no attribute of one leads to what it reads from (tokens.py)."""


@dataclass(frozen=True)
class Unlabelled:
    """A discovery session as a method sees it."""

    number: int
    known: int
    new: int
    index: Tensor
    """Ids of the session's images, in their fixed order."""
    reading: Reading = field(repr=False)

    @property
    def total(self) -> int:
        return self.known + self.new

    @property
    def new_rows(self) -> slice:
        return slice(self.known, self.total)

    def clean(self) -> Iterator[Clean]:
        """All images in a fixed order, some at a time: what `prepare` and `end` may look at."""
        return self.recall(self.index)

    def recall(self, index: Tensor) -> Iterator[Clean]:
        """The images with these ids, in that order: of this session, or exemplars the method came with."""
        for part in plain(index, "ids").split(CHUNK):
            try:
                tokens = self.reading.send(part)
            except StopIteration:
                raise UsageError(OVER) from None
            assert tokens is not None
            yield Clean(part, tokens)

    def close(self) -> None:
        """Once the session is over nothing more is read, so that a method cannot keep images by keeping the session."""
        self.reading.close()


@dataclass(frozen=True)
class Labelled(Unlabelled):
    """Session 0, the only one whose labels (as output rows, in the order of `index`) are known."""

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

    Classes are counted in order of arrival.
    """

    sessions: tuple[tuple[int, ...], ...]
    """Dataset labels of the classes of every session."""
    hidden: npt.NDArray[np.int64]
    """Class of every training image; -1: not in the protocol."""
    hidden_test: npt.NDArray[np.int64]
    """Likewise of every test image."""

    def known(self, session: int) -> int:
        return sum(len(classes) for classes in self.sessions[:session])

    def new(self, session: int) -> int:
        return len(self.sessions[session])

    def ids(self, session: int) -> Tensor:
        """Training images of a session."""
        known = self.known(session)
        return torch.from_numpy(np.flatnonzero((self.hidden >= known) & (self.hidden < known + self.new(session))))

    def test_ids(self, classes: int) -> Tensor:
        """Test images of the first so many classes."""
        return torch.from_numpy(np.flatnonzero((self.hidden_test >= 0) & (self.hidden_test < classes)))


def lay_out(protocol: Protocol, dataset: Dataset) -> Stream:
    """Sort a dataset's images into the sessions of a protocol."""
    arrival = np.full(len(dataset.classes), -1)
    labels = [label for classes in protocol.classes for label in classes]
    arrival[labels] = np.arange(len(labels))
    return Stream(protocol.classes, arrival[dataset.train.labels], arrival[dataset.test.labels])
