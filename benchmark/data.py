"""Datasets: images by index, labels, class names. Only this module knows where images come from."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmark.errors import MissingError
from benchmark.files import cache_folder
from benchmark.layouts import SplitName, find_layout
from benchmark.pixels import open_pixels
from benchmark.protocol import DatasetSpec, load_datasets


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
    pixel_digest: str | None = None
    """Digest of images read from files; embedded ones are digested when asked."""
    in_both: int = 0
    """Test images that are training images too."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 over pixels and labels of both splits: of the canonical order if they came from files."""
        if self.pixel_digest is not None:
            return self.pixel_digest
        digest = hashlib.sha256()
        for split in (self.train, self.test):
            digest.update(np.ascontiguousarray(split.images).tobytes())
            digest.update(np.ascontiguousarray(split.labels, dtype="<i8").tobytes())
        return digest.hexdigest()

    @property
    def splits(self) -> dict[SplitName, Split]:
        return {"train": self.train, "test": self.test}

    @property
    def counts(self) -> dict[str, list[int]]:
        """The fewest and the most images of a class, by split."""
        return {
            name: [int(counts.min()), int(counts.max())]
            for name, split in self.splits.items()
            for counts in [np.bincount(split.labels, minlength=len(self.classes))]
        }

    def shortfall(self, spec: DatasetSpec) -> str | None:
        """`300+60 images a class` where the complete dataset has more; none if this is the complete one."""
        if self.counts == {"train": [spec.train] * 2, "test": [spec.test] * 2}:
            return None
        texts = [f"{least}" if least == most else f"{least}-{most}" for least, most in self.counts.values()]
        return f"{'+'.join(texts)} images a class"


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


EMBEDDED: dict[str, Callable[[], Dataset]] = {"digits": digits, "digits-holdout": digits_holdout}


def data_folder(given: Path | None) -> Path:
    """Where datasets are: what was given, else `$CNCD_DATA`, else the user's cache."""
    if given is not None:
        return given
    return Path(os.environ["CNCD_DATA"]) if os.environ.get("CNCD_DATA") else cache_folder() / "data"


def open_dataset(name: str, data_dir: Path | None = None) -> Dataset:
    """A dataset by name; one that lies in files is decoded the first time it is opened."""
    spec = load_datasets()[name]
    if spec.layout == "embedded":
        return EMBEDDED[name]()
    root = data_folder(data_dir)
    layout = find_layout(spec, root)
    if layout is None:
        raise MissingError(f"{spec.title} is not in {root}: {how_to_get(spec)}")
    found = open_pixels(spec, layout, cache_folder())
    train, test = (Split(found.images[split], found.labels(split)) for split in ("train", "test"))
    return Dataset(name, found.names, train, test, found.digest, found.in_both)


def how_to_get(spec: DatasetSpec) -> str:
    assert spec.archive is not None
    layouts = "train/<class>/ and test/<class>/" if spec.layout == "cifar" else f"{spec.folders[0]}/train and val"
    return (
        f"`bench fetch {spec.name}` downloads it (about {spec.archive.megabytes} MB), "
        f"or point --data-dir (or $CNCD_DATA) at a folder with {spec.archive.file.removesuffix('.zip')} or {layouts}"
    )
