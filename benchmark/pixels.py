"""Decoded images in one canonical order, kept on disk: whatever they were read from, equal images give equal bytes.

Order: by label, then by the SHA-256 of an image's pixels. So a dataset from class folders and from its archive has the
same positions, the same digest, the same views and the same tokens. The arrays are memory-mapped; a run holds none.
"""

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import filelock
import numpy as np
import numpy.typing as npt

from benchmark.errors import DataError
from benchmark.files import atomic_write, make_folder
from benchmark.layouts import Layout, SplitName, side_of
from benchmark.protocol import DatasetSpec

FORMAT = 1
SPLITS: tuple[SplitName, ...] = ("train", "test")
MOST_IN_BOTH = 0.01
"""Complete CIFAR-100 has 10 of its 10,000 test images among its training images: a few are told, more refused."""


@dataclass(frozen=True)
class Pixels:
    """A dataset's decoded images and what was found out about them."""

    names: tuple[str, ...]
    counts: dict[str, list[int]]
    """Images of every class, by split."""
    digest: str
    in_both: int
    """Test images that are training images too, pixel by pixel."""
    images: dict[SplitName, npt.NDArray[np.uint8]]

    def labels(self, split: SplitName) -> npt.NDArray[np.int64]:
        counts = self.counts[split]
        return np.repeat(np.arange(len(counts), dtype=np.int64), counts)


def signature(spec: DatasetSpec, layout: Layout) -> str:
    """Changes when a file is added, removed or written: says whether images decoded earlier can be used."""
    digest = hashlib.sha256(json.dumps([FORMAT, spec.name, spec.side, str(layout.place.resolve())]).encode())
    for path in layout.files():
        try:
            stat = path.stat()
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from None
        digest.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:24]


def open_pixels(spec: DatasetSpec, layout: Layout, cache: Path) -> Pixels:
    """Images decoded earlier, or now."""
    folder = make_folder(cache / "pixels") / f"{spec.name}-{signature(spec, layout)}"
    found = read_store(folder)
    if found is not None:
        return found
    with filelock.FileLock(folder.with_name(f".{folder.name}.lock")):  # one decodes, the others wait for it
        return read_store(folder) or decode_all(spec, layout, folder)


def read_store(folder: Path) -> Pixels | None:
    """A finished store; none if there is none or it is damaged."""
    try:
        told = json.loads((folder / "pixels.json").read_text(encoding="utf-8"))
        images = {split: np.load(folder / f"{split}.npy", mmap_mode="r", allow_pickle=False) for split in SPLITS}
        found = Pixels(tuple(told["names"]), told["counts"], told["digest"], told["in_both"], images)
        complete = all(len(images[split]) == sum(found.counts[split]) for split in SPLITS)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if complete and told.get("format") == FORMAT else None


def decode_all(spec: DatasetSpec, layout: Layout, folder: Path) -> Pixels:
    """Decode, check and store; a folder under the final name is always complete."""
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # of a decoder that was killed
    part.mkdir()
    try:
        told = write_store(spec, layout, part)
        atomic_write(part / "pixels.json", json.dumps(told).encode())
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one: a good one would have been used
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    found = read_store(folder)
    assert found is not None
    return found


def write_store(spec: DatasetSpec, layout: Layout, folder: Path) -> dict[str, Any]:
    """Write the arrays of both splits; what is known of them afterwards."""
    whole = hashlib.sha256(f"cncd pixels {FORMAT}, {spec.side} a side".encode())
    counts: dict[str, list[int]] = {split: [] for split in SPLITS}
    seen: dict[str, list[bytes]] = {split: [] for split in SPLITS}
    check_names(spec, layout)
    for split in SPLITS:
        with (folder / f"{split}.npy").open("wb") as file:
            write_header(file, 0, side_of(spec))
            for label, name in enumerate(layout.names):
                pictures = layout.images(split, label)
                check_count(spec, layout, split, name, len(pictures))
                by_digest = sorted((hashlib.sha256(p.tobytes()).digest(), k) for k, p in enumerate(pictures))
                whole.update(f"\n{split} {label} {len(pictures)}:".encode())
                for digest, k in by_digest:
                    whole.update(digest)
                    file.write(pictures[k].tobytes())
                counts[split].append(len(pictures))
                seen[split] += [digest for digest, _ in by_digest]
            file.seek(0)
            write_header(file, len(seen[split]), side_of(spec))
            file.flush()
            os.fsync(file.fileno())
    in_train = set(seen["train"])
    in_both = sum(digest in in_train for digest in seen["test"])
    if in_both > MOST_IN_BOTH * len(seen["test"]):
        raise DataError(
            f"{layout.place}: {in_both} of {len(seen['test'])} test images are training images too: "
            "nothing could be measured on them"
        )
    return {
        "format": FORMAT,
        "names": layout.names,
        "counts": counts,
        "digest": whole.hexdigest(),
        "in_both": in_both,
    }


def write_header(file: BinaryIO, images: int, side: int) -> None:
    """An npy header whose length does not depend on the number of images, so that it can be written over."""
    shape = f"({images:>12}, {side}, {side}, 3)"
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"
    text = text.ljust(128 - 10 - 1) + "\n"
    file.write(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode())


def check_names(spec: DatasetSpec, layout: Layout) -> None:
    if len(layout.names) != spec.classes:
        raise DataError(f"{layout.place} has {len(layout.names)} classes, {spec.title} has {spec.classes}")


def check_count(spec: DatasetSpec, layout: Layout, split: SplitName, name: str, found: int) -> None:
    whole = spec.train if split == "train" else spec.test
    assert whole is not None
    if found == 0:
        raise DataError(f"{layout.place}: class '{name}' has no {split} image")
    if found > whole:
        raise DataError(f"{layout.place}: class '{name}' has {found} {split} images, {spec.title} has {whole}")
