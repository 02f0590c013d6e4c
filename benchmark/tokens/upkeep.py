"""Looking after the banks of a cache: what is there, what a protocol would take, what is damaged, what can go."""

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmark.files import is_held
from benchmark.protocol.models import Backbone, DatasetSpec
from benchmark.protocol.protocols import Protocol
from benchmark.tokens.bank import FOOTER, HEADER, Bank, Piece, Shape, payload_digest, shards, wanted_pieces

DAY = 86400.0


@dataclass(frozen=True)
class Plan:
    """What the tokens of a protocol take on disk."""

    protocol: str
    of: Literal["here", "complete"]
    """Whether the images that are here were counted, or those of the complete dataset."""
    backbone: str
    views: int | str
    images: int
    bytes_an_image: int
    files: int
    bytes: int
    free: int
    missing_images: int
    missing_bytes: int


def plan(
    protocol: Protocol,
    data: DatasetSpec,
    spec: Backbone,
    views: int | str,
    shape: Shape,
    folder: Path,
    bank: Bank | None,
) -> Plan:
    """Counted, not measured: of all images the dataset has, or of those that are here if the bank is known."""
    classes = sum(map(len, protocol.classes))
    if bank is None:
        counts = {"train": classes * data.most("train"), "test": classes * data.most("test")}
    else:
        counts = {split: len(ids) for split, ids in bank.members.items()}
    augmented = 0 if views == "live" else int(views)
    images = counts["train"] * (1 + augmented) + counts["test"]
    pieces = shards(counts["train"]) * (1 + augmented) + shards(counts["test"])
    missing = [] if bank is None else bank.missing(wanted_pieces(bank, views))
    lacking = images if bank is None else sum(map(bank.images, missing))
    absent = pieces if bank is None else len(missing)
    return Plan(
        protocol=protocol.name,
        of="complete" if bank is None else "here",
        backbone=spec.name,
        views=views,
        images=images,
        bytes_an_image=shape.image_bytes,
        files=pieces,
        bytes=images * shape.image_bytes + pieces * (HEADER + FOOTER),
        free=shutil.disk_usage(existing(folder)).free,
        missing_images=lacking,
        missing_bytes=lacking * shape.image_bytes + absent * (HEADER + FOOTER),
    )


def existing(path: Path) -> Path:
    """The folder, or the first one above it that is there."""
    return path if path.exists() else existing(path.parent)


def token_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.tokens"))


def listing(cache: Path) -> list[dict[str, Any]]:
    """A row for every bank."""
    rows = []
    for folder in bank_folders(cache):
        files = token_files(folder)
        rows.append(
            {
                "name": folder.name,
                "files": len(files),
                "bytes": sum(file.stat().st_size for file in files),
                "unused_days": round(unused_days(folder), 1),
            }
        )
    return rows


def bank_folders(cache: Path) -> list[Path]:
    return sorted(path for path in (cache / "bank").glob("*") if path.is_dir())


def unused_days(folder: Path) -> float:
    """Days since a run opened the bank, which marks its description."""
    description = folder / "bank.json"
    return (time.time() - description.stat().st_mtime) / DAY if description.exists() else 0.0


def faults(folder: Path, *, contents: bool) -> Iterator[tuple[Path, str]]:
    """Files that are not what their header says: their size and, if asked, the digest of all they hold."""
    for path in token_files(folder):
        with path.open("rb") as file:
            try:
                header = json.loads(file.read(HEADER))
                shape = Shape(header["tokens"], header["width"], header["precision"])
                payload = header["images"] * shape.image_bytes
                named = Piece(header["split"], header["view"], header["shard"]).name
                whole = HEADER + payload + FOOTER
                ours = header["magic"] == "cncd-bank" and folder.name.endswith(header["bank"][:16])
            except (ValueError, KeyError, TypeError):
                yield path, "its header cannot be read"
                continue
            if path.stat().st_size != whole:
                yield path, "its size is wrong"
            elif f"{path.parent.name}/{path.name}" != named or not ours:
                yield path, "it belongs under another name"
            elif contents and payload_digest(file, payload) != file.read():
                yield path, "its content has changed"


def prune(cache: Path, *, unused: float | None, contents: bool) -> list[tuple[Path, int]]:
    """Remove damaged files, what dead builders left, and banks unused for so many days; what went, with its bytes."""
    gone: list[tuple[Path, int]] = []
    for folder in bank_folders(cache):
        if unused is not None and unused_days(folder) >= unused and not any(map(is_held, folder.glob("locks/*"))):
            size = sum(path.stat().st_size for path in folder.glob("**/*") if path.is_file())
            shutil.rmtree(folder)
            gone.append((folder, size))
            continue
        for path in folder.glob("*/*.part"):
            shard = path.name.partition(".")[0]
            if not is_held(folder / "locks" / f"{path.parent.name}-{shard}.tokens.lock"):  # else somebody is writing it
                gone += removed(path)
        for path in (*folder.glob("*/*.damaged*"), *(path for path, _ in faults(folder, contents=contents))):
            gone += removed(path)
            for claim in folder.glob("complete-*"):
                claim.unlink(missing_ok=True)
    return gone


def removed(path: Path) -> list[tuple[Path, int]]:
    """The file and its size, now that it is gone; nothing if it went by itself."""
    try:
        size = path.stat().st_size
        path.unlink()
    except FileNotFoundError:
        return []
    return [(path, size)]
