"""Fills a bank: worker processes draw pictures, one trunk turns them into tokens."""

import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import filelock
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from benchmark.data.datasets import Split
from benchmark.data.layout import SplitName
from benchmark.data.views import Render
from benchmark.digests import Checked, move_aside
from benchmark.display import Display, Stop
from benchmark.errors import DataError, InterruptedRunError, ResourceError
from benchmark.files import NoLock, atomic_write, lock_at, make_folder, naming, sync_folder, unshared
from benchmark.processes import die_with
from benchmark.tokens.backbone import Trunk, images_to_tokens
from benchmark.tokens.bank import FOOTER, HEADER, Bank, Piece, complete_file
from methods.contract import Tokens

CHUNK = 64
"""Images that are drawn, computed and written together."""
WORKERS = 4
"""Processes that draw pictures, at most; none for a few pictures."""
FEW = 1024
ROUNDS = 3
"""How often files are made again that are damaged when they are read back."""
SPARE_BYTES = 200_000_000
"""Room on the disk that a bank leaves to others."""


class Chunk(NamedTuple):
    """Images `start` to `stop` of a piece."""

    piece: Piece
    start: int
    stop: int


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
        pictures = self.render(images, ids, torch.full_like(ids, piece.view), self.size)
        return chunk, pictures.numpy()  # arrays go through a pipe: a container's shared memory may be small


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
            description = vars(self.bank.recipe) | vars(self.bank.shape)
            atomic_write(path, (json.dumps(description, indent=1) + "\n").encode())


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
    """Refuse to begin what cannot end; the disk may still fill up later, which is reported when it happens."""
    need = sum(HEADER + bank.payload(piece) + FOOTER for piece in missing)
    room = shutil.disk_usage(make_folder(bank.folder)).free
    if need + SPARE_BYTES > room:
        raise ResourceError(
            f"the tokens need {need / 1e9:.1f} GB in {bank.folder.parent}, where {room / 1e9:.1f} GB are free: "
            "use fewer --views, or point $CNCD_CACHE at a larger disk"
        )
