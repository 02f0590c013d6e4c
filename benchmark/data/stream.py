"""A protocol laid over a dataset: which images arrive in which session.

Hidden labels live here; only the engine reads them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmark.data.datasets import Dataset
from benchmark.protocol.protocols import Protocol


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
