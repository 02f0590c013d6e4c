"""Where tokens come from: `source.get(position, view)`, one interface whatever stands behind it.

`Live` sends pictures through the trunk each time; `Kept` does so once per view and keeps the tokens in memory;
`BankSource` (bank.py) reads them from disk, where all runs share them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmark.backbone import Trunk, images_to_tokens
from benchmark.errors import UsageError
from benchmark.stream import Clean, Tokens
from benchmark.views import CLEAN, Render

CHUNK = 256
"""Images whose clean tokens are handed out together."""


class TokenSource(Protocol):
    """Tokens of training images by dataset position and view."""

    @property
    def trunk_images(self) -> int:
        """Pictures that went through the trunk so far."""

    def get(self, position: Tensor, view: Tensor) -> Tokens: ...


class Live:
    """Every picture anew through the trunk."""

    def __init__(self, trunk: Trunk, images: npt.NDArray[np.uint8], render: Render) -> None:
        self.trunk, self.images, self.render = trunk, images, render
        self.trunk_images = 0

    def get(self, position: Tensor, view: Tensor) -> Tokens:
        position, view = position.cpu(), view.cpu()
        self.trunk_images += len(position)
        pixels = self.render(self.images[position.numpy()], position, view, self.trunk.spec.image_size)
        return images_to_tokens(self.trunk, pixels)


class Kept:
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

    def get(self, position: Tensor, view: Tensor) -> Tokens:
        wanted = view.unique().tolist()
        for number in wanted:
            if number not in self.views:
                everything = torch.arange(len(self.live.images))
                self.views[number] = self.live.get(everything, torch.full_like(everything, number))
        if len(wanted) == 1:
            return self.views[wanted[0]][position]
        sample = self.views[wanted[0]]
        cls = sample.cls.new_empty(len(position), *sample.cls.shape[1:])
        rest = sample.rest.new_empty(len(position), *sample.rest.shape[1:])
        for number in wanted:
            here = torch.nonzero(view == number).squeeze(1)
            kept = self.views[number]
            cls[here], rest[here] = kept.cls[position[here]], kept.rest[position[here]]
        return Tokens(cls, rest)


@dataclass
class CleanFromBank:
    """Augmented pictures anew through the trunk, clean ones out of the bank: they never change."""

    bank: TokenSource
    live: Live

    @property
    def trunk_images(self) -> int:
        return self.bank.trunk_images + self.live.trunk_images

    def get(self, position: Tensor, view: Tensor) -> Tokens:
        return (self.bank if bool((view == CLEAN).all()) else self.live).get(position, view)


def clean_tokens(source: TokenSource, position: Tensor) -> Tokens:
    return source.get(position, torch.full_like(position, CLEAN))


@dataclass
class CleanReader:
    """Reads clean images of a session and of the exemplars a method holds; no label can be reached from it.

    Once the session is over it reads nothing more, so that a method cannot keep images by keeping the session.
    """

    source: TokenSource
    positions: dict[int, int]
    """Dataset position by id, the session's own images first."""
    own: int
    device: torch.device
    closed: bool = False

    def clean(self) -> Iterator[Clean]:
        return self._read(torch.tensor([*self.positions][: self.own], dtype=torch.long))

    def recall(self, index: Tensor) -> Iterator[Clean]:
        wanted = index.cpu()
        strange = [number for number in wanted.tolist() if number not in self.positions]
        if strange:
            raise UsageError(
                f"the method asks for image {strange[0]}, which is neither of this session nor in its memory"
            )
        return self._read(wanted)

    def close(self) -> None:
        self.closed = True

    def _read(self, ids: Tensor) -> Iterator[Clean]:
        for part in ids.split(CHUNK):
            if self.closed:
                raise UsageError("the method reads images of a session that is over: keep some of them as its memory")
            position = torch.tensor([self.positions[number] for number in part.tolist()], dtype=torch.long)
            yield Clean(part.to(self.device), clean_tokens(self.source, position))
