"""Tokens on disk: computed once, shared by all methods, seeds and runs.

    <cache>/bank/<dataset>-<backbone>-<key>/train-v0003/s0012.tokens     view 3 of the 13th part of the training images

A bank's key is the digest of all that decides its content: backbone weights, pixels, augmentation, picture size, number
format, and which images a protocol uses. A file holds some hundred images in the dataset's order, that of the pixels'
digests: it says nothing about classes. It is a header, then for each image its class token (float32) and its other
tokens (float16 or float32), then the SHA-256 of that payload. A file under its final name is complete; a killed builder
loses the one it was at. A file is read and compared with its digest before it is used, once on every machine; a damaged
one is moved aside and made again.
"""

import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
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
from benchmark.files import NoLock, atomic_write, lock_at, make_folder, naming, sync_folder, unshared
from benchmark.intact import Checked, canonical, digest_of, move_aside
from benchmark.layouts import SplitName
from benchmark.processes import die_with
from benchmark.progress import Display, Stop
from benchmark.slabs import Slabs
from benchmark.stream import Tokens
from benchmark.views import CLEAN, Render

FORMAT = 2
HEADER, FOOTER = 4096, 32
SHARD = 256
"""Images of a file."""
CHUNK = 64
"""Images that are drawn, computed and written together."""
WORKERS = 4
"""Processes that draw pictures, at most; none for a few pictures."""
FEW = 1024
ROUNDS = 3
"""How often files are made again that are damaged when they are read back."""
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
    selection: str
    """`all`, or the digest of the ids of the images that are in the bank."""

    @property
    def key(self) -> str:
        asked = {name: value for name, value in vars(self).items() if name not in ("dataset", "backbone")}
        return hashlib.sha256(canonical(asked | {"format": FORMAT})).hexdigest()

    @property
    def folder(self) -> str:
        return f"{self.dataset}-{self.backbone}-{self.key[:16]}"


class Piece(NamedTuple):
    """One file of a bank: a view of some images."""

    split: SplitName
    view: int
    shard: int

    @property
    def name(self) -> str:
        return f"{self.split}-v{self.view:04d}/s{self.shard:04d}.tokens"


class Chunk(NamedTuple):
    """Images `start` to `stop` of a piece."""

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
    members: dict[SplitName, npt.NDArray[np.int64]]
    """Ids of the images of each split, in order."""

    def path(self, piece: Piece) -> Path:
        return self.folder / piece.name

    def lock_path(self, piece: Piece) -> Path:
        return make_folder(self.folder / "locks") / f"{piece.name.replace('/', '-')}.lock"

    def header(self, piece: Piece) -> bytes:
        told = {
            "magic": "cncd-bank",
            "format": FORMAT,
            "bank": self.recipe.key,
            "split": piece.split,
            "view": piece.view,
            "shard": piece.shard,
            "images": self.images(piece),
            "tokens": self.shape.tokens,
            "width": self.shape.width,
            "precision": self.shape.precision,
        }
        return json.dumps(told).encode().ljust(HEADER)

    def ids(self, piece: Piece) -> npt.NDArray[np.int64]:
        """Images of a file."""
        return self.members[piece.split][piece.shard * SHARD : (piece.shard + 1) * SHARD]

    def images(self, piece: Piece) -> int:
        return len(self.ids(piece))

    def payload(self, piece: Piece) -> int:
        return self.images(piece) * self.shape.image_bytes

    def missing(self, pieces: list[Piece]) -> list[Piece]:
        return [piece for piece in pieces if not self.path(piece).exists()]

    def is_sound(self, piece: Piece, checked: Checked) -> bool:
        """Whether a file is what was written: its header and size, and once on every machine all it holds."""
        path, size = self.path(piece), self.payload(piece)
        try:
            with path.open("rb") as file:
                if file.read(HEADER) != self.header(piece):
                    return False
                if os.fstat(file.fileno()).st_size != HEADER + size + FOOTER:
                    return False
                if not checked.knows(path):
                    if payload_digest(file, size) != file.read():
                        return False
                    checked.remember(path)
        except FileNotFoundError:  # another run has moved it aside: it will be made again
            return False
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from None
        return True

    def open(self, piece: Piece) -> Tokens:
        """All tokens of a file, mapped into memory; nothing is read before it is used."""
        size = HEADER + self.payload(piece)
        # torch maps the file and closes it: a bank has more files than a process may hold open
        whole = torch.from_file(str(self.path(piece)), shared=False, size=size, dtype=torch.uint8)
        return self.shape.unpack(whole[HEADER:].view(self.images(piece), self.shape.image_bytes))


def complete_file(folder: Path, pieces: list[Piece]) -> Path:
    """Says that all of these files were there once. Sweeps ask for it; whoever reads tokens looks at each file."""
    return folder / f"complete-{digest_of([piece.name for piece in pieces])[:12]}"


def payload_digest(file: BinaryIO, size: int) -> bytes:
    """Digest of the next `size` bytes."""
    digest = hashlib.sha256()
    while size > 0 and (block := file.read(min(size, 1 << 22))):
        digest.update(block)
        size -= len(block)
    return digest.digest()


class PartFile:
    """A file of a bank while it is written. What a dead builder left is not believed."""

    def __init__(self, bank: Bank, piece: Piece) -> None:
        self.bank, self.piece = bank, piece
        self.final = bank.path(piece)
        self.path = self.final.with_name(f"{self.final.stem}.{unshared()}.part")
        make_folder(self.path.parent)
        self.digest = hashlib.sha256()
        self.file = self.path.open("wb")
        self.file.write(bank.header(piece))
        self.done = 0

    def append(self, tokens: Tokens) -> None:
        rows = self.bank.shape.pack(tokens)
        content = rows.data
        with naming(self.path):
            self.file.write(content)
        self.digest.update(content)
        self.done += len(rows)

    def finish(self) -> None:
        with naming(self.path):
            self.file.write(self.digest.digest())
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
        self.path.replace(self.final)
        sync_folder(self.final.parent)

    def close(self) -> None:
        self.file.close()
        self.path.unlink(missing_ok=True)


class Pictures(Dataset[tuple[Chunk, npt.NDArray[Any]]]):
    """Draws the pictures of a chunk; runs in worker processes."""

    def __init__(self, splits: dict[SplitName, Split], bank: Bank, render: Render, size: int) -> None:
        self.splits, self.bank, self.render, self.size = splits, bank, render, size

    def __getitem__(self, chunk: Chunk) -> tuple[Chunk, npt.NDArray[Any]]:
        piece = chunk.piece
        members = self.bank.ids(piece)[chunk.start : chunk.stop]
        images, ids = self.splits[piece.split].images[members], torch.from_numpy(members)
        drawn = self.render(images, ids, torch.full_like(ids, piece.view), self.size)
        return chunk, drawn.numpy()  # arrays go through a pipe: a container's shared memory may be small


@dataclass
class Claims(Sampler[Chunk]):
    """Chunks of the files nobody else is building, claimed as the builder comes to them."""

    bank: Bank
    wanted: list[Piece]
    parts: dict[Piece, PartFile] = field(default_factory=dict)
    locks: dict[Piece, filelock.BaseFileLock | NoLock] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Chunk]:
        for piece in self.wanted:
            lock = lock_at(self.bank.lock_path(piece))
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout:
                continue
            if self.bank.path(piece).exists():
                lock.release()
                continue
            self.locks[piece] = lock
            if not isinstance(lock, NoLock):
                for left in self.bank.path(piece).parent.glob(f"{self.bank.path(piece).stem}.*.part"):
                    left.unlink()  # of a builder that was killed
            self.parts[piece] = PartFile(self.bank, piece)
            total = self.bank.images(piece)
            for start in range(0, total, CHUNK):
                yield Chunk(piece, start, min(start + CHUNK, total))

    def finish(self, piece: Piece) -> None:
        self.parts.pop(piece).finish()
        lock = self.locks.pop(piece)
        # whoever still waits for this lock finds the finished file, so the lock's own file may go
        self.bank.lock_path(piece).unlink(missing_ok=True)
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

    def build_sound(self, pieces: list[Piece]) -> None:
        """Make all of these files exist and be what was written; damaged ones are moved aside and made again."""
        checked = Checked(self.bank.folder)
        for _ in range(ROUNDS):
            self.build(pieces)
            damaged = [piece for piece in pieces if not self.bank.is_sound(piece, checked)]
            checked.save()
            if not damaged:
                atomic_write(complete_file(self.bank.folder, pieces), b"")
                return
            for piece in damaged:
                with lock_at(self.bank.lock_path(piece)):  # another run may have made it good meanwhile
                    if self.bank.path(piece).exists() and not self.bank.is_sound(piece, checked):
                        move_aside(self.bank.path(piece), "its tokens are computed again")
        raise DataError(f"{self.bank.path(damaged[0])} is damaged each time it was written: is the disk sound?")

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
            raise InterruptedRunError(self.stop.signal, "finished files of tokens are kept")

    def _describe(self) -> None:
        """Say in words what is in the folder, for people, and by the file's time when the bank was last used."""
        path = make_folder(self.bank.folder) / "bank.json"
        if path.exists():
            path.touch()
        else:
            told = vars(self.bank.recipe) | vars(self.bank.shape)
            atomic_write(path, (json.dumps(told, indent=1) + "\n").encode())


def _leave_signals_to_the_builder(_number: int) -> None:
    """A scheduler signals every process of a job, a terminal too: the builder decides, and ends its workers itself.

    If it is killed they go with it: they would wait for ever to hand over their last pictures.
    """
    die_with(os.getppid(), signal.SIGKILL)
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
    """Tokens of one split out of a bank, by id and view."""

    def __init__(self, bank: Bank, split: SplitName, device: torch.device) -> None:
        self.bank, self.split, self.device = bank, split, device
        self.trunk_images = 0
        self.opened: dict[Piece, Tokens] = {}
        self.slabs = Slabs()

    def get(self, ids: Tensor, view: Tensor) -> Tokens:
        """Gather a batch: each image is copied once, as it is stored; the block widens it."""
        places = np.searchsorted(self.bank.members[self.split], ids.cpu().numpy())
        shards, offsets = (part.tolist() for part in np.divmod(places, SHARD))
        shape = self.bank.shape
        cls = self.slabs.take((len(places), shape.width), torch.float32)
        rest = self.slabs.take((len(places), shape.tokens, shape.width), shape.dtype)
        for k, (shard, number, offset) in enumerate(zip(shards, view.tolist(), offsets, strict=True)):
            tokens = self._piece(Piece(self.split, number, shard))
            # numpy copies in this thread; torch would share it out, and two teams of threads get in each other's way
            cls[k].numpy()[:] = tokens.cls[offset].numpy()
            rest[k].numpy()[:] = tokens.rest[offset].numpy()
        return Tokens(cls.to(self.device), rest.to(self.device))

    def _piece(self, piece: Piece) -> Tokens:
        if piece not in self.opened:
            self.opened[piece] = self.bank.open(piece)
        return self.opened[piece]


def selection_of(members: Mapping[SplitName, npt.NDArray[np.int64]], splits: Mapping[SplitName, Split]) -> str:
    """`all` if a bank holds every image of its dataset, else a digest of which."""
    if all(len(members[name]) == len(split) for name, split in splits.items()):
        return "all"
    return digest_of({name: ids.tolist() for name, ids in members.items()})


def shards(images: int) -> int:
    return -(-images // SHARD)


def wanted_pieces(bank: Bank, views: int | str) -> list[Piece]:
    """What a run reads: all views of training images (the clean one if views are drawn live), test images clean."""
    augmented = 0 if views == "live" else int(views)
    train, test = (range(shards(len(bank.members[split]))) for split in ("train", "test"))
    return [
        *(Piece("train", view, shard) for view in range(CLEAN, CLEAN + 1 + augmented) for shard in train),
        *(Piece("test", CLEAN, shard) for shard in test),
    ]
