"""Datasets: images, labels, class names. Only this module knows where images come from.

Images are ordered by the SHA-256 of their pixels, over the whole split. Datasets are often stored class by class; in
this order a place says nothing about a class, so a place can serve as an image's id everywhere.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmark.data.layout import SplitName
from benchmark.data.layouts import find_layout
from benchmark.data.pixels import data_digest, image_digests, open_pixels, pixel_order
from benchmark.errors import DataError, MissingError
from benchmark.files import cache_folder
from benchmark.protocol.catalogue import load_datasets
from benchmark.protocol.models import DatasetSpec


@dataclass(frozen=True)
class Split:
    """Images (n, height, width, channels) as bytes, and their labels, which lie apart."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, places: npt.NDArray[np.int64]) -> "Split":
        return Split(self.images[places], self.labels[places])

    def in_order(self) -> "Split":
        """By the SHA-256 of the pixels."""
        digests = image_digests(self.images)
        return self.take(np.array(pixel_order(digests, self.labels.tolist()), dtype=np.int64))


@dataclass(frozen=True)
class Dataset:
    name: str
    classes: tuple[str, ...]
    train: Split
    test: Split
    digest: str
    """Over pixels and labels of both splits."""
    in_both: int = 0
    """Test images that are training images too."""

    @property
    def splits(self) -> dict[SplitName, Split]:
        return {"train": self.train, "test": self.test}

    @property
    def counts(self) -> dict[str, tuple[int, int]]:
        """The fewest and the most images of a class, by split."""
        return {
            name: (int(counts.min()), int(counts.max()))
            for name, split in self.splits.items()
            for counts in [np.bincount(split.labels, minlength=len(self.classes))]
        }


def digits_as_shipped() -> tuple[Split, Split]:
    """Training and test images of scikit-learn's 1,797 hand-written digits (8 x 8), in scikit-learn's order."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - a second of import time that most commands do not need

    bunch = load_digits()
    whole = Split((bunch.images * 15).astype(np.uint8)[..., None], bunch.target.astype(np.int64))
    test = np.array(json.loads((files("protocols") / "splits" / "digits.json").read_text())["test"], dtype=np.int64)
    train = np.setdiff1d(np.arange(len(whole)), test)
    return whole.take(train), whole.take(test)


def digits() -> Dataset:
    """Scikit-learn's digits with the committed split: 60 test images a class."""
    return embedded("digits", 10, *digits_as_shipped())


def embedded(name: str, classes: int, train: Split, test: Split) -> Dataset:
    """A dataset of the package, in order."""
    train, test = train.in_order(), test.in_order()
    parts = [(image_digests(split.images), split.labels.tolist()) for split in (train, test)]
    return Dataset(name, tuple(map(str, range(classes))), train, test, data_digest(*parts))


def digits_holdout() -> Dataset:
    """For choosing between readings: training images of the base digits 0-5 only, every third one held out for scoring.

    No test image of `digits` and no image of a digit that is novel there takes part.
    """
    train, _ = digits_as_shipped()
    base = np.flatnonzero(train.labels < 6)
    held_out = np.zeros(len(base), dtype=bool)
    for label in range(6):
        held_out[np.flatnonzero(train.labels[base] == label)[::3]] = True
    return embedded("digits-holdout", 6, train.take(base[~held_out]), train.take(base[held_out]))


def held_out(spec: DatasetSpec, whole: Dataset) -> Dataset:
    """For choosing between readings: training images of the first classes alone; the last ones of each are its test.

    Last in the order of the pixels' digests, which is as good as drawn. Nothing of `whole`'s test split takes part, and
    nothing of another class.
    """
    labels, keep = whole.train.labels, spec.most("train")
    own = [np.flatnonzero(labels == label) for label in range(spec.classes)]
    few = [label for label, ids in enumerate(own) if len(ids) <= keep]
    if few:
        raise DataError(
            f"class '{whole.classes[few[0]]}' of {whole.name} has {len(own[few[0]])} training images here, of which "
            f"{keep} are to be trained on: none can be held out"
        )
    parts = [np.sort(np.concatenate(each)) for each in ([ids[:keep] for ids in own], [ids[keep:] for ids in own])]
    train, test = (whole.train.take(ids) for ids in parts)
    return put_together(spec.name, whole.classes[: spec.classes], train, test)


def first_of_each(whole: Dataset, count: int) -> Dataset:
    """The first so many training images of every class, in the order of their digests; all test images."""
    own = [np.flatnonzero(whole.train.labels == label) for label in range(len(whole.classes))]
    few = [label for label, ids in enumerate(own) if len(ids) < count]
    if few:
        raise DataError(
            f"class '{whole.classes[few[0]]}' of {whole.name} has {len(own[few[0]])} training images here, "
            f"and shared.images asks for {count}"
        )
    train = whole.train.take(np.sort(np.concatenate([ids[:count] for ids in own])))
    return put_together(whole.name, whole.classes, train, whole.test)


def put_together(name: str, classes: tuple[str, ...], train: Split, test: Split) -> Dataset:
    """A dataset made of parts of another, which are in order already."""
    digests = {"train": image_digests(train.images), "test": image_digests(test.images)}
    digest = data_digest((digests["train"], train.labels.tolist()), (digests["test"], test.labels.tolist()))
    return Dataset(name, classes, train, test, digest, len({*digests["train"]} & {*digests["test"]}))


EMBEDDED: dict[str, Callable[[], Dataset]] = {"digits": digits, "digits-holdout": digits_holdout}


def data_folder(given: Path | None) -> Path:
    """Where datasets are: what was given, else `$CNCD_DATA`, else the user's cache."""
    if given is not None:
        return given
    return Path(os.environ["CNCD_DATA"]) if os.environ.get("CNCD_DATA") else cache_folder() / "data"


def open_dataset(spec: DatasetSpec, data_dir: Path | None = None) -> Dataset:
    """A dataset; one that lies in files is decoded the first time it is opened."""
    if spec.first is not None:
        return first_of_each(open_dataset(spec.whole, data_dir), spec.first)
    if spec.layout == "embedded":
        return EMBEDDED[spec.name]()
    if spec.held_out_of is not None:
        return held_out(spec, open_dataset(load_datasets()[spec.held_out_of], data_dir))
    root = dataset_folder(spec, data_dir)
    layout = find_layout(spec, root)
    if layout is None:
        raise MissingError(f"{spec.title} is not in {root}: {how_to_get(spec)}")
    found = open_pixels(spec, layout, cache_folder())
    train, test = (Split(found.images[split], found.labels[split]) for split in ("train", "test"))
    return Dataset(spec.name, found.names, train, test, found.digest, found.in_both)


def dataset_folder(spec: DatasetSpec, given: Path | None) -> Path:
    """Where a dataset is looked for: own images where the protocol says they are, unless another folder is given."""
    if spec.pictures is None or given is not None:
        return data_folder(given)
    if spec.pictures.folder is None:
        raise MissingError(f"nobody says where {spec.title} is: give its folder with --data-dir")
    return Path(spec.pictures.folder)


def how_to_get(spec: DatasetSpec) -> str:
    if spec.archive is None:
        return "correct the folder in the protocol, or give another with --data-dir"
    layouts = "train/<class>/ and test/<class>/" if spec.layout == "cifar" else f"{spec.folders[0]}/train and val"
    return (
        f"`bench fetch {spec.name}` downloads it (about {spec.archive.megabytes} MB), "
        f"or point --data-dir (or $CNCD_DATA) at a folder with {spec.archive.file.removesuffix('.zip')} or {layouts}"
    )
