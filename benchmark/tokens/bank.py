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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmark.data.datasets import Split
from benchmark.data.layout import SplitName
from benchmark.data.views import CLEAN
from benchmark.digests import Checked, canonical, digest_of
from benchmark.errors import DataError
from benchmark.files import make_folder
from methods.contract import Tokens

FORMAT = 2
HEADER, FOOTER = 4096, 32
SHARD = 256
"""Images of a file."""

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
        header = {
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
        return json.dumps(header).encode().ljust(HEADER)

    def ids(self, piece: Piece) -> npt.NDArray[np.int64]:
        """Images of a file."""
        return self.members[piece.split][piece.shard * SHARD : (piece.shard + 1) * SHARD]

    def places(self, split: SplitName, ids: npt.NDArray[np.int64]) -> tuple[list[int], list[int]]:
        """Which file of a view each image is in, and where in it."""
        files, offsets = np.divmod(np.searchsorted(self.members[split], ids), SHARD)
        return files.tolist(), offsets.tolist()

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
