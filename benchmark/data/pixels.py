"""Decoded images in one order, kept on disk: whatever they were read from, equal images give equal bytes.

Order: by the SHA-256 of an image's pixels, over the whole split; labels lie in files of their own. So a dataset from
class folders and from its archive has the same ids, the same digest, the same views and the same tokens, and nothing
about an image's place says what class it is of. The arrays are memory-mapped; a run holds none.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmark.data.layout import Layout, SplitName
from benchmark.digests import Checked, is_whole, move_aside, sealed
from benchmark.errors import DataError
from benchmark.files import NoLock, atomic_write, file_digest, lock_at, make_folder, naming, unshared
from benchmark.protocol.models import DatasetSpec

FORMAT = 2
SPLITS: tuple[SplitName, ...] = ("train", "test")
TOGETHER = 1024
"""Images that are copied at once."""
MOST_IN_BOTH = 0.01
"""Complete CIFAR-100 has 10 of its 10,000 test images among its training images: a few are reported, more refused."""


@dataclass(frozen=True)
class Pixels:
    """A dataset's decoded images and what was found out about them."""

    names: tuple[str, ...]
    digest: str
    in_both: int
    """Test images that are training images too, pixel by pixel."""
    images: dict[SplitName, npt.NDArray[np.uint8]]
    labels: dict[SplitName, npt.NDArray[np.int64]]


def image_digests(images: npt.NDArray[np.uint8]) -> list[bytes]:
    return [hashlib.sha256(image.tobytes()).digest() for image in images]


def pixel_order(digests: Sequence[bytes], labels: Sequence[int]) -> list[int]:
    """Places in order of the digest. Equal images are told apart by nothing but their labels: any order will do."""
    return sorted(range(len(digests)), key=lambda place: (digests[place], labels[place]))


def data_digest(*splits: tuple[Sequence[bytes], Sequence[int]]) -> str:
    """SHA-256 over images (by their digests, in order) and labels of the splits."""
    whole = hashlib.sha256(f"cncd pixels {FORMAT}".encode())
    for digests, labels in splits:
        whole.update(f"\n{len(digests)}:".encode())
        for digest, label in zip(digests, labels, strict=True):
            whole.update(digest + int(label).to_bytes(4, "little"))
    return whole.hexdigest()


def signature(spec: DatasetSpec, layout: Layout) -> str:
    """Changes when a file is added, removed or written: says whether images decoded earlier can be used."""
    parts = [FORMAT, spec.name, spec.side, str(layout.place.resolve())]
    parts += [] if spec.pictures is None else [spec.pictures.model_dump(mode="json", exclude={"folder", "title"})]
    digest = hashlib.sha256(json.dumps(parts).encode())
    for path in layout.files():
        try:
            stat = path.stat()
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from None
        # the last two change when files of equal size and time change places
        known = f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ctime_ns}\0{stat.st_ino}\n"
        digest.update(known.encode(errors="surrogateescape"))
    return digest.hexdigest()[:24]


def open_pixels(spec: DatasetSpec, layout: Layout, cache: Path) -> Pixels:
    """Images decoded earlier, or now."""
    folder = make_folder(cache / "pixels") / f"{spec.name}-{signature(spec, layout)}"
    found = read_store(folder)
    if found is not None:
        return found
    with lock_at(folder.with_name(f".{folder.name}.lock")) as lock:  # one decodes, the others wait for it
        if not isinstance(lock, NoLock):
            for left in folder.parent.glob(f"{folder.name}.*.part"):  # by a decoder that was killed
                shutil.rmtree(left, ignore_errors=True)
        return read_store(folder) or decode_all(spec, layout, folder)


def file_names() -> dict[tuple[str, SplitName], str]:
    return {(kind, split): f"{split}-{kind}.npy" for kind in ("images", "labels") for split in SPLITS}


def read_store(folder: Path) -> Pixels | None:
    """A finished store, its files read once on this machine; none if there is none or it is damaged."""
    try:
        description = json.loads((folder / "pixels.json").read_text(encoding="utf-8"))
        if not is_whole(description) or description["format"] != FORMAT:
            return None
        checked = Checked(folder)
        for name in file_names().values():
            if not checked.knows(folder / name):
                if file_digest(folder / name) != description["files"][name]:
                    return None
                checked.remember(folder / name)
        checked.save()
        loaded = {key: np.load(folder / name, mmap_mode="r") for key, name in file_names().items()}
        images = {split: loaded["images", split] for split in SPLITS}
        labels = {split: np.array(loaded["labels", split]) for split in SPLITS}
        return Pixels(tuple(description["names"]), description["digest"], description["in_both"], images, labels)
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None
    except OSError as error:  # not damage: nothing is thrown away for it
        raise DataError(f"cannot read {folder}: {error.strerror or error}") from None


def decode_all(spec: DatasetSpec, layout: Layout, folder: Path) -> Pixels:
    """Decode, check and store; a folder under the final name is complete. A damaged one is moved aside."""
    part = folder.with_name(f"{folder.name}.{unshared()}.part")
    part.mkdir()
    try:
        description = write_store(spec, layout, part)
        atomic_write(part / "pixels.json", json.dumps(sealed(description)).encode())
        if read_store(folder) is None:  # where there are no locks, another may have been faster
            if folder.exists():
                move_aside(folder, "images are decoded again")
            part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    found = read_store(folder)
    if found is None:
        raise DataError(f"{folder} was written and cannot be read back: is the disk sound?")
    return found


def write_store(spec: DatasetSpec, layout: Layout, folder: Path) -> dict[str, Any]:
    """Write the arrays of both splits; what is known of them afterwards."""
    check_names(spec, layout)
    digests: dict[str, list[bytes]] = {}
    labels: dict[str, list[int]] = {}
    for split in SPLITS:
        digests[split], labels[split] = write_split(spec, layout, split, folder)
    in_train = set(digests["train"])
    in_both = sum(digest in in_train for digest in digests["test"])
    if in_both > MOST_IN_BOTH * len(digests["test"]):
        raise DataError(
            f"{layout.place}: {in_both} of {len(digests['test'])} test images are training images too: "
            "nothing could be measured on them"
        )
    return {
        "format": FORMAT,
        "names": layout.names,
        "digest": data_digest(*((digests[split], labels[split]) for split in SPLITS)),
        "in_both": in_both,
        "files": {name: file_digest(folder / name) for name in file_names().values()},
    }


def write_split(spec: DatasetSpec, layout: Layout, split: SplitName, folder: Path) -> tuple[list[bytes], list[int]]:
    """Decode class by class into a file that is then sorted: a whole split need not fit into memory."""
    digests: list[bytes] = []
    labels: list[int] = []
    unsorted = folder / f"{split}.unsorted"
    with naming(unsorted), unsorted.open("wb") as file:
        for label, name in enumerate(layout.names):
            pictures = layout.images(split, label)
            check_count(spec, layout, split, name, len(pictures))
            for picture in pictures:
                content = picture.tobytes()
                file.write(content)
                digests.append(hashlib.sha256(content).digest())
                labels.append(label)
    order = pixel_order(digests, labels)
    shape = (len(order), *layout.shape, 3)
    source = np.memmap(unsorted, dtype=np.uint8, mode="r", shape=shape)
    target = folder / file_names()["images", split]
    # written, not mapped: a full disk would crash whoever maps
    with naming(target), target.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, len(order), TOGETHER):
            file.write(source[order[start : start + TOGETHER]].tobytes())
        file.flush()
        os.fsync(file.fileno())
    np.save(folder / file_names()["labels", split], np.array(labels, dtype=np.int64)[order])
    del source
    unsorted.unlink()
    return [digests[place] for place in order], [labels[place] for place in order]


def check_names(spec: DatasetSpec, layout: Layout) -> None:
    if len(layout.names) != spec.classes:
        raise DataError(f"{layout.place} has {len(layout.names)} classes, {spec.title} has {spec.classes}")


def check_count(spec: DatasetSpec, layout: Layout, split: SplitName, name: str, found: int) -> None:
    if found == 0:
        raise DataError(f"{layout.place}: class '{name}' has no {split} image")
    span = spec.span(split)
    if span is not None and found > span[1]:
        raise DataError(f"{layout.place}: class '{name}' has {found} {split} images, {spec.title} has {span[1]}")
