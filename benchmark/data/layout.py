"""What every way of keeping a dataset on disk offers.

A layout finds the files and decodes the images of one class at a time. It decides nothing: order, digests and checks of
what was read are the same for every layout (pixels.py).
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from benchmark.errors import DataError
from benchmark.protocol.models import DatasetSpec

SplitName = Literal["train", "test"]
Picture = npt.NDArray[np.uint8]


FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Formats of pixels alone: others, such as PostScript, would be run to be seen."""


class Layout(Protocol):
    """A dataset on disk."""

    @property
    def place(self) -> Path:
        """Folder or archive it lies in."""

    @property
    def names(self) -> tuple[str, ...]:
        """Class names in the order of their labels."""

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the decoded images."""

    def files(self) -> list[Path]:
        """Every file that is read, so that a change of any of them is noticed."""

    def images(self, split: SplitName, label: int) -> list[Picture]:
        """Decoded images (height, width, 3) of one class, in no particular order."""


def visible(folder: Path) -> list[Path]:
    """What a folder holds, in order of name, hidden files aside."""
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"cannot read folder {folder}: {error.strerror or error}") from None


Found = TypeVar("Found")


def in_threads(look: Callable[[Path], Found], paths: list[Path]) -> list[Found]:
    """What each file gives, several at a time: decoding leaves Python's lock."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(look, paths))


def side_of(spec: DatasetSpec) -> int:
    assert spec.side is not None
    return spec.side


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
