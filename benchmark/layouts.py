"""How datasets lie on disk: class folders of images, CIFAR's pickled archive, Tiny-ImageNet's official layout.

A layout finds the files and decodes the images of one class at a time. It decides nothing: order, digests and checks of
what was read are the same for every layout (pixels.py).
"""

import hashlib
import io
import os
import pickle
import tarfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from benchmark.errors import DataError
from benchmark.protocol import DatasetSpec, Members, Pictures, has_splits, refuse_unsplit

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


def visible(folder: Path) -> list[Path]:
    """What a folder holds, in order of name, hidden files aside."""
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"cannot read folder {folder}: {error.strerror or error}") from None


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


Found = TypeVar("Found")


def in_threads(look: Callable[[Path], Found], paths: list[Path]) -> list[Found]:
    """What each file gives, several at a time: decoding leaves Python's lock."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(look, paths))


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


def side_of(spec: DatasetSpec) -> int:
    assert spec.side is not None
    return spec.side


ALLOWED_GLOBALS = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}
"""All that CIFAR's pickles need beside strings, numbers, lists and dictionaries."""


class PlainUnpickler(pickle.Unpickler):
    """Unpickles arrays and builtin containers; a pickle that asks for anything else is refused before it can act."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED_GLOBALS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


def unpickle(content: bytes, source: str) -> dict[str, Any]:
    try:
        found = PlainUnpickler(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # noqa: BLE001 - a broken pickle may raise anything
        raise DataError(f"{source} is refused: not a plain pickle of arrays ({error})") from None
    if not isinstance(found, dict):
        raise DataError(f"{source} is refused: not a dictionary of arrays")
    return found


@dataclass
class Pickled:
    """CIFAR's official files, in their folder or still in their archive; each is checked before it is unpickled."""

    place: Path
    spec: DatasetSpec

    @property
    def shape(self) -> tuple[int, int]:
        return side_of(self.spec), side_of(self.spec)

    @property
    def members(self) -> Members:
        assert self.spec.members is not None
        return self.spec.members

    @property
    def names(self) -> tuple[str, ...]:
        (told,) = (self._contents[name] for name in self.members.names)
        return tuple(map(str, told.get(self.members.names_key, ())))

    def files(self) -> list[Path]:
        return [self.place] if self.place.is_file() else [self.place / name for name in self.members.digests]

    def images(self, split: SplitName, label: int) -> list[Picture]:
        pictures, labels = self._whole[split]
        return list(pictures[labels == label])

    @cached_property
    def _contents(self) -> dict[str, dict[str, Any]]:
        return dict(self._checked())

    @cached_property
    def _whole(self) -> dict[SplitName, tuple[Picture, npt.NDArray[np.int64]]]:
        splits: dict[SplitName, dict[str, str]] = {"train": self.members.train, "test": self.members.test}
        return {split: self._decoded([self._contents[name] for name in names]) for split, names in splits.items()}

    def _decoded(self, batches: list[dict[str, Any]]) -> tuple[Picture, npt.NDArray[np.int64]]:
        side = side_of(self.spec)
        try:
            pixels = np.concatenate([np.asarray(batch["data"], dtype=np.uint8) for batch in batches])
            labels = np.concatenate([np.asarray(batch[self.members.label_key], dtype=np.int64) for batch in batches])
            pictures = pixels.reshape(len(labels), 3, side, side).transpose(0, 2, 3, 1)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{self.place} does not hold {self.spec.title}'s arrays ({error}): get it again") from None
        return np.ascontiguousarray(pictures), labels

    def _checked(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every member by name, its bytes checked, then unpickled."""
        expected = self.members.digests
        for name, content in self._bytes(set(expected)):
            source = f"{name} of {self.place}"
            found = hashlib.md5(content, usedforsecurity=False).hexdigest()
            if found != expected[name]:
                raise DataError(
                    f"{source} is damaged: its md5 is {found[:12]}…, published is {expected[name][:12]}…; get it again"
                )
            yield name, unpickle(content, source)

    def _bytes(self, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
        if not self.place.is_file():
            for name in sorted(wanted):
                yield name, read_bytes(self.place / name)
            return
        try:
            with tarfile.open(self.place) as archive:
                for member in archive:
                    folder, _, name = member.name.rpartition("/")
                    if folder == self.members.folder and name in wanted and member.isreg():
                        file = archive.extractfile(member)
                        assert file is not None
                        wanted.discard(name)
                        yield name, file.read()
        except (tarfile.TarError, EOFError, OSError, ValueError, zlib.error) as error:
            raise DataError(f"{self.place} is damaged or cut short ({error}): get it again") from None
        if wanted:
            raise DataError(f"{self.place} lacks '{min(wanted)}': get it again")


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def find_layout(spec: DatasetSpec, root: Path) -> Layout | None:
    """The dataset in `root` itself or, under one of its usual names, below it; none if it is not there."""
    if spec.layout == "own":
        return own_folders(spec, root) if root.is_dir() else None
    for place in (root, *(root / name for name in spec.folders)):
        if spec.layout == "tiny":
            if (place / "train").is_dir() and (place / "val").is_dir():
                return tiny_imagenet(spec, place)
            continue
        assert spec.members is not None
        if all((place / name).is_file() for name in spec.members.digests):
            return Pickled(place, spec)
        if (place / "train").is_dir() and (place / "test").is_dir():
            return class_folders(spec, place)
    archive = root if root.is_file() else root / spec.archive.file if spec.archive else root
    return Pickled(archive, spec) if spec.layout == "cifar" and archive.is_file() else None
