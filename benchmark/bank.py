"""Tokens on disk: computed once, shared by all methods, seeds and runs.

    <cache>/bank/<dataset>-<backbone>-<key>/train-v0003/c012.tokens     view 3 of the training images of class 12

A bank's key is the digest of all that decides its content: backbone weights, pixels, augmentation, picture size and
number format. A file is a header, then for each image its class token (float32) and its other tokens (float16 or
float32), then the SHA-256 of that payload. Images are written in order and synced chunk by chunk, so a killed builder
leaves a `.part` whose length says what is done. A file under its final name is complete.
"""

import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import filelock
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from benchmark.backbone import Trunk, images_to_tokens
from benchmark.data import Split
from benchmark.errors import DataError, InterruptedRunError, ResourceError
from benchmark.files import atomic_write, make_folder, sync_folder
from benchmark.layouts import SplitName
from benchmark.progress import Display, Stop
from benchmark.record import canonical
from benchmark.slabs import Slabs
from benchmark.stream import Tokens
from benchmark.views import CLEAN, Render

FORMAT = 1
HEADER, FOOTER = 4096, 32
CHUNK = 64
"""Images that are drawn, computed and written together."""
WORKERS = 4
"""Processes that draw pictures, at most; none for a few pictures."""
FEW = 1024
SPARE_BYTES = 200_000_000
"""Room on the disk that a bank leaves to others."""

Precision = Literal["float16", "float32"]


@dataclass(frozen=True)
class Recipe:
    """All that decides what a bank holds."""

    dataset: str
    data_digest: str
    backbone: str
    weights: str
    network: dict[str, Any]
    """Architecture, depth, picture size, normalisation of pixels: whatever else makes the trunk."""
    augmentation: str
    precision: Precision
    normalised: bool
    """Whether tokens other than the class token are kept normalised, as the class-token path takes them."""

    @property
    def key(self) -> str:
        asked = {name: value for name, value in vars(self).items() if name not in ("dataset", "backbone")}
        return hashlib.sha256(canonical(asked | {"format": FORMAT})).hexdigest()

    @property
    def folder(self) -> str:
        return f"{self.dataset}-{self.backbone}-{self.key[:16]}"


class Piece(NamedTuple):
    """One file of a bank: a view of all images of a class."""

    split: SplitName
    view: int
    label: int

    @property
    def name(self) -> str:
        return f"{self.split}-v{self.view:04d}/c{self.label:03d}.tokens"


class Chunk(NamedTuple):
    """Images `start` to `stop` of a piece's class."""

    piece: Piece
    start: int
    stop: int


@dataclass(frozen=True)
class Shape:
    """Numbers of one image: `tokens` beside the class token, of `width` numbers each."""

    tokens: int
    width: int
    precision: Precision

    @property
    def dtype(self) -> torch.dtype:
        return torch.float16 if self.precision == "float16" else torch.float32

    @property
    def cls_bytes(self) -> int:
        return 4 * self.width

    @property
    def image_bytes(self) -> int:
        return self.cls_bytes + self.tokens * self.width * self.dtype.itemsize

    def pack(self, tokens: Tokens) -> npt.NDArray[np.uint8]:
        """Tokens as rows of bytes, one for each image."""
        rest = tokens.rest.to("cpu", self.dtype)
        if not bool(torch.isfinite(rest).all() and torch.isfinite(tokens.cls).all()):
            raise DataError(f"the trunk's tokens do not fit {self.precision}: use --set shared.bank=float32")
        parts = (tokens.cls.cpu().contiguous(), rest.flatten(1).contiguous())
        return np.concatenate([part.view(torch.uint8).numpy() for part in parts], axis=1)

    def unpack(self, rows: Tensor) -> Tokens:
        """A view, not a copy: rows of bytes (images, image_bytes) as tokens."""
        cls = rows[:, : self.cls_bytes].view(torch.float32)
        return Tokens(cls, rows[:, self.cls_bytes :].view(self.dtype).unflatten(1, (self.tokens, self.width)))


@dataclass
class Bank:
    """A folder of token files and what belongs in each."""

    folder: Path
    recipe: Recipe
    shape: Shape
    members: dict[SplitName, list[npt.NDArray[np.int64]]]
    """Positions of every class's images in a split: their order in its files."""

    def path(self, piece: Piece) -> Path:
        return self.folder / piece.name

    def header(self, piece: Piece) -> bytes:
        told = {
            "magic": "cncd-bank",
            "format": FORMAT,
            "bank": self.recipe.key,
            "split": piece.split,
            "view": piece.view,
            "label": piece.label,
            "images": self.images(piece),
            "tokens": self.shape.tokens,
            "width": self.shape.width,
            "precision": self.shape.precision,
        }
        return json.dumps(told).encode().ljust(HEADER)

    def images(self, piece: Piece) -> int:
        return len(self.members[piece.split][piece.label])

    def payload(self, piece: Piece) -> int:
        return self.images(piece) * self.shape.image_bytes

    def missing(self, pieces: list[Piece]) -> list[Piece]:
        return [piece for piece in pieces if not self.path(piece).exists()]

    def check(self, piece: Piece) -> None:
        """Size and header of a file that is there; a damaged one is told with the way out."""
        path = self.path(piece)
        try:
            with path.open("rb") as file:
                good = file.read(HEADER) == self.header(piece)
                good = good and os.fstat(file.fileno()).st_size == HEADER + self.payload(piece) + FOOTER
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from None
        if not good:
            raise DataError(f"{path} is damaged (size or header): `bench bank --prune` removes it, then build again")

    def open(self, piece: Piece) -> Tokens:
        """All tokens of a file, mapped into memory; nothing is read before it is used."""
        self.check(piece)
        size = HEADER + self.payload(piece)
        # torch maps the file and closes it: a bank has more files than a process may hold open
        whole = torch.from_file(str(self.path(piece)), shared=False, size=size, dtype=torch.uint8)
        return self.shape.unpack(whole[HEADER:].view(self.images(piece), self.shape.image_bytes))


def payload_digest(file: BinaryIO, size: int) -> bytes:
    """Digest of the next `size` bytes."""
    digest = hashlib.sha256()
    while size > 0 and (block := file.read(min(size, 1 << 22))):
        digest.update(block)
        size -= len(block)
    return digest.digest()


class PartFile:
    """A file of a bank while it is written; takes up the work of a builder that died."""

    def __init__(self, bank: Bank, piece: Piece) -> None:
        self.bank, self.piece = bank, piece
        self.final = bank.path(piece)
        self.path = self.final.with_suffix(".part")
        make_folder(self.path.parent)
        self.digest = hashlib.sha256()
        header = bank.header(piece)
        self.file = self.path.open("r+b" if self.path.exists() else "w+b")
        self.done = 0
        if self.file.read(HEADER) == header:
            size = os.fstat(self.file.fileno()).st_size - HEADER
            # the last chunk may not have reached the disk whole when the machine went down
            whole = min(size // bank.shape.image_bytes, bank.images(piece))
            self.done = max(0, whole // CHUNK - 1) * CHUNK
            for _ in range(self.done // CHUNK):
                self.digest.update(self.file.read(CHUNK * bank.shape.image_bytes))
        else:
            self.file.seek(0)
            self.file.write(header)
        self.file.truncate(HEADER + self.done * bank.shape.image_bytes)
        self.file.seek(0, os.SEEK_END)

    def append(self, tokens: Tokens) -> None:
        rows = self.bank.shape.pack(tokens)
        content = rows.data
        self.file.write(content)
        self.digest.update(content)
        self.sync()
        self.done += len(rows)

    def sync(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())

    def finish(self) -> None:
        self.file.write(self.digest.digest())
        self.sync()
        self.file.close()
        self.path.replace(self.final)
        sync_folder(self.final.parent)

    def close(self) -> None:
        self.file.close()


class Pictures(Dataset[tuple[Chunk, npt.NDArray[Any]]]):
    """Draws the pictures of a chunk; runs in worker processes."""

    def __init__(self, splits: dict[SplitName, Split], bank: Bank, render: Render, size: int) -> None:
        self.splits, self.bank, self.render, self.size = splits, bank, render, size

    def __getitem__(self, chunk: Chunk) -> tuple[Chunk, npt.NDArray[Any]]:
        piece = chunk.piece
        members = self.bank.members[piece.split][piece.label][chunk.start : chunk.stop]
        images, position = self.splits[piece.split].images[members], torch.from_numpy(members)
        drawn = self.render(images, position, torch.full_like(position, piece.view), self.size)
        return chunk, drawn.numpy()  # arrays go through a pipe: a container's shared memory may be small


@dataclass
class Claims(Sampler[Chunk]):
    """Chunks of the files nobody else is building, claimed as the builder comes to them."""

    bank: Bank
    wanted: list[Piece]
    parts: dict[Piece, PartFile] = field(default_factory=dict)
    locks: dict[Piece, filelock.BaseFileLock] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Chunk]:
        for piece in self.wanted:
            lock = filelock.FileLock(self._lock_path(piece))
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout:
                continue
            if self.bank.path(piece).exists():
                lock.release()
                continue
            self.locks[piece] = lock
            part = self.parts[piece] = PartFile(self.bank, piece)
            total = self.bank.images(piece)
            for start in range(part.done, total, CHUNK):
                yield Chunk(piece, start, min(start + CHUNK, total))

    def _lock_path(self, piece: Piece) -> Path:
        return make_folder(self.bank.folder / "locks") / f"{piece.name.replace('/', '-')}.lock"

    def finish(self, piece: Piece) -> None:
        self.parts.pop(piece).finish()
        lock = self.locks.pop(piece)
        # whoever still waits for this lock finds the finished file, so the lock's own file may go
        self._lock_path(piece).unlink(missing_ok=True)
        lock.release()

    def give_up(self) -> None:
        for part in self.parts.values():
            part.close()
        for lock in self.locks.values():
            lock.release()


@dataclass
class Builder:
    """Fills a bank: worker processes draw pictures, one trunk turns them into tokens."""

    bank: Bank
    trunk: Trunk
    splits: dict[SplitName, Split]
    render: Render
    display: Display
    stop: Stop
    workers: int | None = None
    images: int = 0
    """Pictures that went through the trunk."""
    seconds: float = 0.0
    waited: bool = False

    def build(self, pieces: list[Piece]) -> None:
        """Make all of these files exist, together with whoever else is building them."""
        missing = self.bank.missing(pieces)
        self._describe()
        if not missing:
            return
        require_room(self.bank, missing)
        began, total = time.monotonic(), sum(map(self.bank.images, missing))
        self.display.start(f"tokens of {self.bank.recipe.dataset}", total, 0, unit="images")
        while missing:
            before = self.images
            self._pass(missing)
            missing = self.bank.missing(missing)
            if missing and self.images == before:
                if not self.waited:
                    self.display.say("waiting: another process is building the same tokens")
                self.waited = True
                self._obey()
                time.sleep(1)
        self.seconds += time.monotonic() - began

    def _pass(self, missing: list[Piece]) -> None:
        """Build every file that can be claimed; never waits, so that two builders cannot wait for each other."""
        claims = Claims(self.bank, missing)
        pictures = Pictures(self.splits, self.bank, self.render, self.trunk.spec.image_size)
        count = worker_count(sum(map(self.bank.images, missing))) if self.workers is None else self.workers
        if self.waited:
            count = 0  # others are at it: what they leave is little
        loader = DataLoader(
            pictures,
            batch_size=None,
            sampler=claims,
            num_workers=count,
            collate_fn=_as_it_is,
            multiprocessing_context="fork" if count else None,
            worker_init_fn=_leave_signals_to_the_builder,
        )
        with ExitStack() as stack:
            stack.callback(claims.give_up)
            for chunk, pixels in loader:
                self._obey()
                part = claims.parts[chunk.piece]
                part.append(images_to_tokens(self.trunk, torch.from_numpy(pixels)))
                self.images += chunk.stop - chunk.start
                if part.done == self.bank.images(chunk.piece):
                    claims.finish(chunk.piece)
                self.display.step(self.images)

    def _obey(self) -> None:
        if self.stop.signal is not None:
            raise InterruptedRunError(self.stop.signal)

    def _describe(self) -> None:
        """Say in words what is in the folder, for people, and by the file's time when the bank was last used."""
        path = make_folder(self.bank.folder) / "bank.json"
        if path.exists():
            path.touch()
        else:
            told = vars(self.bank.recipe) | vars(self.bank.shape)
            atomic_write(path, (json.dumps(told, indent=1) + "\n").encode())


def _leave_signals_to_the_builder(_number: int) -> None:
    """A scheduler signals every process of a job, a terminal too: the builder decides, and ends its workers itself."""
    for number in (signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGUSR1", signal.SIGTERM)):
        signal.signal(number, signal.SIG_IGN)


def _as_it_is(item: Any) -> Any:
    return item


def worker_count(images: int) -> int:
    if images < FEW or not hasattr(os, "fork"):
        return 0
    return min(WORKERS, os.cpu_count() or 1)


def require_room(bank: Bank, missing: list[Piece]) -> None:
    """Refuse to begin what cannot end; the disk may still fill up later, which is told when it happens."""
    need = sum(HEADER + bank.payload(piece) + FOOTER for piece in missing)
    room = shutil.disk_usage(make_folder(bank.folder)).free
    if need + SPARE_BYTES > room:
        raise ResourceError(
            f"the tokens need {need / 1e9:.1f} GB in {bank.folder.parent}, where {room / 1e9:.1f} GB are free: "
            "use fewer --views, or point $CNCD_CACHE at a larger disk"
        )


class BankSource:
    """Tokens of one split out of a bank, by position and view."""

    def __init__(self, bank: Bank, split: SplitName, device: torch.device) -> None:
        self.bank, self.split, self.device = bank, split, device
        self.trunk_images = 0
        members = bank.members[split]
        self.label, self.offset = np.empty((2, sum(map(len, members))), dtype=np.int64)
        for label, own in enumerate(members):
            self.label[own], self.offset[own] = label, np.arange(len(own))
        self.opened: dict[Piece, Tokens] = {}
        self.slabs = Slabs()

    def get(self, position: Tensor, view: Tensor) -> Tokens:
        """Gather a batch: each image is copied once, as it is stored; the block widens it."""
        places = position.cpu().numpy()
        labels, offsets = self.label[places].tolist(), self.offset[places].tolist()
        shape = self.bank.shape
        cls = self.slabs.take((len(places), shape.width), torch.float32)
        rest = self.slabs.take((len(places), shape.tokens, shape.width), shape.dtype)
        for k, (label, number, offset) in enumerate(zip(labels, view.tolist(), offsets, strict=True)):
            tokens = self._piece(Piece(self.split, number, label))
            # numpy copies in this thread; torch would share it out, and two teams of threads get in each other's way
            cls[k].numpy()[:] = tokens.cls[offset].numpy()
            rest[k].numpy()[:] = tokens.rest[offset].numpy()
        return Tokens(cls.to(self.device), rest.to(self.device))

    def _piece(self, piece: Piece) -> Tokens:
        if piece not in self.opened:
            self.opened[piece] = self.bank.open(piece)
        return self.opened[piece]


def members_of(split: Split, classes: int) -> list[npt.NDArray[np.int64]]:
    return [np.flatnonzero(split.labels == label) for label in range(classes)]


def wanted_pieces(labels: list[int], views: int | str) -> list[Piece]:
    """What a run reads: all views of training images (the clean one if views are drawn live), test images clean."""
    augmented = 0 if views == "live" else int(views)
    return [
        *(Piece("train", view, label) for view in range(CLEAN, CLEAN + 1 + augmented) for label in labels),
        *(Piece("test", CLEAN, label) for label in labels),
    ]
