"""Folders of images: one folder per class, and Tiny-ImageNet's official layout."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from benchmark.data.layout import FORMATS, Picture, SplitName, in_threads, read_bytes, side_of, visible
from benchmark.errors import DataError
from benchmark.protocol.models import DatasetSpec


def decode(path: Path, side: int) -> Picture:
    """One image file as RGB bytes; grey and palette images too."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            size = image.size
            picture = np.asarray(image.convert("RGB")) if size == (side, side) else None
    except Exception as error:  # noqa: BLE001 - a broken image may raise anything
        raise DataError(f"{path} cannot be read as an image ({error}): remove it or get it again") from None
    if picture is None:
        raise DataError(f"{path} is {size[0]}x{size[1]} pixels, the dataset's images are {side}x{side}")
    return picture


@dataclass
class Folders:
    """Image files by (split, label), whatever folders they lie in."""

    place: Path
    names: tuple[str, ...]
    side: int
    paths: dict[tuple[SplitName, int], list[Path]]
    others: tuple[Path, ...] = ()
    """Files that were read beside the images."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.side, self.side

    def files(self) -> list[Path]:
        return [*self.others, *(path for paths in self.paths.values() for path in paths)]

    def images(self, split: SplitName, label: int) -> list[Picture]:
        return in_threads(lambda path: decode(path, self.side), self.paths[split, label])


def class_folders(spec: DatasetSpec, place: Path) -> Folders:
    """`train/<class>/*` and `test/<class>/*`; sorted names of folders are the order of labels."""
    names = {split: [entry.name for entry in visible(place / split) if entry.is_dir()] for split in ("train", "test")}
    if names["train"] != names["test"]:
        odd = min(set(names["train"]) ^ set(names["test"]))
        raise DataError(f"{place}: class '{odd}' is in only one of train/ and test/")
    paths: dict[tuple[SplitName, int], list[Path]] = {}
    splits: tuple[SplitName, ...] = ("train", "test")
    for split in splits:
        for label, name in enumerate(names["train"]):
            paths[split, label] = visible(place / split / name)
    return Folders(place, tuple(names["train"]), side_of(spec), paths)


def tiny_imagenet(spec: DatasetSpec, place: Path) -> Folders:
    """The official layout. Its test labels are not public, so `val` is the test split (spec section 8)."""
    wnids = [entry.name for entry in visible(place / "train") if entry.is_dir()]
    paths: dict[tuple[SplitName, int], list[Path]] = {}
    for label, wnid in enumerate(wnids):
        nested = place / "train" / wnid / "images"
        paths["train", label] = visible(nested if nested.is_dir() else nested.parent)
        paths["test", label] = []
    notes = place / "val" / "val_annotations.txt"
    if notes.is_file():
        label_of = {wnid: label for label, wnid in enumerate(wnids)}
        for number, line in enumerate(read_bytes(notes).decode(errors="replace").splitlines(), 1):
            name, _, rest = line.partition("\t")
            wnid = rest.partition("\t")[0]
            if wnid not in label_of or "/" in name or not name:
                raise DataError(f"{notes}, line {number}: '{line[:60]}' does not name an image and a class of train/")
            image = place / "val" / "images" / name
            if image.is_file():  # a subset may keep the whole list
                paths["test", label_of[wnid]].append(image)
        if (place / "val" / "images").is_dir():
            return Folders(place, tuple(wnids), side_of(spec), paths, (notes,))
    for label, wnid in enumerate(wnids):  # re-arranged into class folders, as many people do
        nested = place / "val" / wnid / "images"
        paths["test", label] = visible(nested if nested.is_dir() else nested.parent)
    return Folders(place, tuple(wnids), side_of(spec), paths)
