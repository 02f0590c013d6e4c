"""The user's own images: a folder per class, pictures of any size."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from benchmark.data.layout import FORMATS, Found, Picture, SplitName, in_threads, visible
from benchmark.errors import DataError
from benchmark.protocol.models import DatasetSpec, Pictures
from benchmark.protocol.protocols import has_splits, refuse_unsplit

LARGEST = 512
"""Pixels of the shorter side: larger images are made smaller when they are decoded, all crops are smaller anyway."""


def turned(path: Path) -> Image.Image:
    """An image file, opened; turned upright if the camera noted how it was held."""
    image = Image.open(path, formats=FORMATS)
    return ImageOps.exif_transpose(image)


def readable(look: Callable[[Path], Found], path: Path) -> Found:
    """What a look at an image file gives; whatever is wrong with it becomes a sentence."""
    try:
        return look(path)
    except Exception as error:  # noqa: BLE001 - a broken image may raise anything
        raise DataError(f"{path} cannot be read as an image ({error}): remove it or get it again") from None


def size_of(path: Path) -> tuple[int, int]:
    """Height and width."""
    with turned(path) as image:
        return image.size[1], image.size[0]


def fitted_into(path: Path, shape: tuple[int, int]) -> Picture:
    """An image as RGB bytes of a shape; one of another shape is scaled to cover it and cut around its middle."""
    with turned(path) as image:
        colours = in_colours(image)
    size = (shape[1], shape[0])
    if colours.size != size:
        colours = ImageOps.fit(colours, size, Image.Resampling.BICUBIC)
    return np.asarray(colours)


def in_colours(image: Image.Image) -> Image.Image:
    """As RGB: what is transparent on white, 16 bits a pixel brought to 8."""
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) // 257).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise ValueError("it has 32 bits a pixel, whose range nobody knows: save it with 8 or 16")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        layered = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered).convert("RGB")
    return image.convert("RGB")


def image_files(folder: Path) -> list[Path]:
    """Images of one class, by their suffix; other files are left alone, folders inside are refused."""
    known = {suffix for suffix, name in Image.registered_extensions().items() if name in FORMATS}
    found = visible(folder)
    inside = [entry for entry in found if entry.is_dir()]
    if inside:
        raise DataError(f"{inside[0]} is a folder inside a class: move its images up, or the folder away")
    return [entry for entry in found if entry.suffix.lower() in known]


@dataclass
class OwnFolders:
    """The user's own images: `train/<class>/*` and `test/<class>/*`, or `<class>/*` with a share held out."""

    place: Path
    pictures: Pictures
    paths: dict[tuple[SplitName, int], list[Path]]
    """By split and label; where a share is held out, all images of a class stand under `train`."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.pictures.classes

    @cached_property
    def shape(self) -> tuple[int, int]:
        """That of all images, if they have one and it is not too large; else squares of the side that was asked for."""
        found = {*in_threads(lambda path: readable(size_of, path), self.files())}
        one = next(iter(found)) if len(found) == 1 else None
        return one if one is not None and min(one) <= LARGEST else (self.pictures.side, self.pictures.side)

    def files(self) -> list[Path]:
        return [path for paths in self.paths.values() for path in paths]

    def images(self, split: SplitName, label: int) -> list[Picture]:
        shape = self.shape
        held = split if self.pictures.test_share is None else "train"
        found = in_threads(lambda path: readable(lambda p: fitted_into(p, shape), path), self.paths[held, label])
        share = self.pictures.test_share
        return found if share is None else held_out(found, share, self.pictures.split_seed)[split]


def held_out(pictures: list[Picture], share: float, seed: int) -> dict[SplitName, list[Picture]]:
    """A class split in two by its pixels and a seed, not by names of files. Equal images stay together."""
    groups: dict[bytes, list[Picture]] = {}
    for picture in pictures:
        groups.setdefault(hashlib.sha256(f"{seed}:".encode() + picture.tobytes()).digest(), []).append(picture)
    wanted = max(1, round(share * len(pictures)))
    splits: dict[SplitName, list[Picture]] = {"train": [], "test": []}
    for _, equal in sorted(groups.items()):
        splits["test" if len(splits["test"]) + len(equal) <= wanted else "train"] += equal
    return splits


def own_folders(spec: DatasetSpec, place: Path) -> OwnFolders:
    """The folders of the classes that the protocol lists."""
    pictures = spec.pictures
    assert pictures is not None
    folders: dict[SplitName, Path] = {"train": place / "train", "test": place / "test"}
    refuse_unsplit(place, pictures.test_share)
    paths: dict[tuple[SplitName, int], list[Path]] = {}
    if not has_splits(place):
        folders = {"train": place}
    for split, folder in folders.items():
        for label, name in enumerate(pictures.classes):
            if not (folder / name).is_dir():
                raise DataError(f"{folder} has no folder '{name}', which is a class of the protocol")
            paths[split, label] = image_files(folder / name)
    return OwnFolders(place, pictures, paths)
