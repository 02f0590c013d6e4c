"""Datasets: images by index, labels, class names. Only this module knows where images come from."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files

import numpy as np
import numpy.typing as npt

from benchmark.errors import DataError

CLASSES = {"digits": 10, "digits-holdout": 6, "cifar10": 10, "cifar100": 100, "tiny-imagenet": 200}
"""Number of classes of every dataset a protocol may name."""


@dataclass(frozen=True)
class Split:
    """Images (n, height, width, channels) as bytes, and their labels."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: npt.NDArray[np.int64]) -> "Split":
        return Split(self.images[index], self.labels[index])


@dataclass(frozen=True)
class Dataset:
    name: str
    classes: tuple[str, ...]
    train: Split
    test: Split

    @cached_property
    def digest(self) -> str:
        """SHA-256 over pixels and labels of both splits, in order."""
        digest = hashlib.sha256()
        for split in (self.train, self.test):
            digest.update(np.ascontiguousarray(split.images).tobytes())
            digest.update(np.ascontiguousarray(split.labels, dtype="<i8").tobytes())
        return digest.hexdigest()


def digits() -> Dataset:
    """Scikit-learn's 1,797 hand-written digits (8 x 8), with the committed split: 60 test images a class."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - a second of import time that most commands do not need

    bunch = load_digits()
    whole = Split((bunch.images * 15).astype(np.uint8)[..., None], bunch.target.astype(np.int64))
    test = np.array(json.loads((files("protocols") / "splits" / "digits.json").read_text())["test"], dtype=np.int64)
    train = np.setdiff1d(np.arange(len(whole)), test)
    return Dataset("digits", tuple(map(str, range(10))), whole.take(train), whole.take(test))


def digits_holdout() -> Dataset:
    """For choosing between readings: training images of the base digits 0-5 only, every third one held out for scoring.

    No test image of `digits` and no image of a digit that is novel there takes part.
    """
    train = digits().train
    base = np.flatnonzero(train.labels < 6)
    held_out = np.zeros(len(base), dtype=bool)
    for label in range(6):
        held_out[np.flatnonzero(train.labels[base] == label)[::3]] = True
    names = tuple(map(str, range(6)))
    return Dataset("digits-holdout", names, train.take(base[~held_out]), train.take(base[held_out]))


READERS: dict[str, Callable[[], Dataset]] = {"digits": digits, "digits-holdout": digits_holdout}


def open_dataset(name: str) -> Dataset:
    if name not in READERS:
        raise DataError(f"dataset '{name}' cannot be read by this version: only {', '.join(READERS)} can")
    return READERS[name]()
