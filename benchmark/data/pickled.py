"""CIFAR's archive of pickles, read without running what is in them."""

import hashlib
import io
import pickle
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmark.data.layout import Picture, SplitName, read_bytes, side_of
from benchmark.errors import DataError
from benchmark.protocol.models import DatasetSpec, Members

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
        (meta,) = (self._contents[name] for name in self.members.names)
        return tuple(map(str, meta.get(self.members.names_key, ())))

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
