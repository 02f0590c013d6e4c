"""Where tokens come from: `source.get(ids, view)`, one interface whatever stands behind it.

`Live` sends pictures through the trunk each time; `InMemory` does so once per view and keeps the tokens in memory;
`BankSource` reads them from disk, where all runs share them.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmark.data.layout import SplitName
from benchmark.data.views import CLEAN, Render
from benchmark.errors import UsageError
from benchmark.tokens.backbone import Trunk, images_to_tokens
from benchmark.tokens.bank import Bank, Piece
from benchmark.tokens.memory import MemoryPool
from methods.contract import Reading, Tokens, plain


class TokenSource(Protocol):
    """Tokens of a split's images by id and view."""

    @property
    def trunk_images(self) -> int:
        """Pictures that went through the trunk so far."""

    def get(self, ids: Tensor, view: Tensor) -> Tokens: ...


class Live:
    """Every picture anew through the trunk."""

    def __init__(self, trunk: Trunk, images: npt.NDArray[np.uint8], render: Render) -> None:
        self.trunk, self.images, self.render = trunk, images, render
        self.trunk_images = 0

    def get(self, ids: Tensor, view: Tensor) -> Tokens:
        ids, view = ids.cpu(), view.cpu()
        self.trunk_images += len(ids)
        pixels = self.render(self.images[ids.numpy()], ids, view, self.trunk.spec.image_size)
        return images_to_tokens(self.trunk, pixels)


class InMemory:
    """Tokens of all images for every view asked for so far.

    A view is computed for all images at once: what a picture's tokens are must not depend on which run, session or
    resumed attempt asks first.
    """

    def __init__(self, live: Live) -> None:
        self.live = live
        self.views: dict[int, Tokens] = {}

    @property
    def trunk_images(self) -> int:
        return self.live.trunk_images

    def get(self, ids: Tensor, view: Tensor) -> Tokens:
        wanted = view.unique().tolist()
        for number in wanted:
            if number not in self.views:
                everything = torch.arange(len(self.live.images))
                self.views[number] = self.live.get(everything, torch.full_like(everything, number))
        if len(wanted) == 1:
            return self.views[wanted[0]][ids]
        sample = self.views[wanted[0]]
        cls = sample.cls.new_empty(len(ids), *sample.cls.shape[1:])
        rest = sample.rest.new_empty(len(ids), *sample.rest.shape[1:])
        for number in wanted:
            here = torch.nonzero(view == number).squeeze(1)
            kept = self.views[number]
            cls[here], rest[here] = kept.cls[ids[here]], kept.rest[ids[here]]
        return Tokens(cls, rest)


@dataclass
class CleanFromBank:
    """Augmented pictures anew through the trunk, clean ones out of the bank: they never change."""

    bank: TokenSource
    live: Live

    @property
    def trunk_images(self) -> int:
        return self.bank.trunk_images + self.live.trunk_images

    def get(self, ids: Tensor, view: Tensor) -> Tokens:
        return (self.bank if bool((view == CLEAN).all()) else self.live).get(ids, view)


def clean_tokens(source: TokenSource, ids: Tensor) -> Tokens:
    return source.get(ids, torch.full_like(ids, CLEAN))


def reading(source: TokenSource, readable: Tensor) -> Reading:
    """Serves clean tokens of the ids it is sent, if they are among the readable ones, until it is closed.

    The source lives in the generator's frame and in no attribute: what a method is handed must not lead to it.
    """
    tokens = None
    while True:
        wanted = plain((yield tokens), "ids").cpu()
        strange = wanted[~torch.isin(wanted, readable)]
        if len(strange):
            raise UsageError(
                f"the method asks for image {strange[0]}, which is neither of this session nor in its memory"
            )
        tokens = clean_tokens(source, wanted)


def opened_reading(source: TokenSource, readable: Tensor) -> Reading:
    """A reading that waits for its first ids."""
    waiting = reading(source, readable)
    next(waiting)
    return waiting


class BankSource:
    """Tokens of one split out of a bank, by id and view."""

    def __init__(self, bank: Bank, split: SplitName, device: torch.device) -> None:
        self.bank, self.split, self.device = bank, split, device
        self.trunk_images = 0
        self.opened: dict[Piece, Tokens] = {}
        self.pool = MemoryPool()

    def get(self, ids: Tensor, view: Tensor) -> Tokens:
        """Gather a batch: each image is copied once, as it is stored; the block widens it."""
        shards, offsets = self.bank.places(self.split, ids.cpu().numpy())
        shape = self.bank.shape
        cls = self.pool.take((len(shards), shape.width), torch.float32)
        rest = self.pool.take((len(shards), shape.tokens, shape.width), shape.dtype)
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
