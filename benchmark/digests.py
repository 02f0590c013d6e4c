"""Files that are not believed unchecked: digests inside them, and damaged ones moved aside to be made again."""

import hashlib
import json
import logging
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmark.files import atomic_write

LOG = logging.getLogger(__name__)
SEAL = "sha256"
"""Key under which a document holds the digest of all its other keys."""


def canonical(tree: Any) -> bytes:
    """JSON in one spelling, for digests."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest_of(tree: Any) -> str:
    return hashlib.sha256(canonical(tree)).hexdigest()


def sealed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the digest of all it says."""
    rest = {key: value for key, value in document.items() if key != SEAL}
    return {**rest, SEAL: digest_of(rest)}


def is_whole(document: Any) -> bool:
    """Whether a sealed document still says what was sealed."""
    try:
        return isinstance(document, dict) and SEAL in document and sealed(document)[SEAL] == document[SEAL]
    except (ValueError, RecursionError):  # a number that JSON does not have, or a tree without end
        return False


def move_aside(path: Path, consequence: str) -> None:
    """Put a damaged file out of the way, under a name that nothing reads, and say so; nothing is deleted."""
    number, target = 1, path.with_name(f"{path.name}.damaged")
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.damaged{number}")
    path.rename(target)
    LOG.warning("%s is damaged: moved aside to %s, %s", path, target.name, consequence)


def machine() -> str:
    """This machine, in letters that say nothing about it."""
    try:
        identity = Path("/etc/machine-id").read_text(encoding="utf-8").strip()
    except OSError:
        identity = ""
    return hashlib.sha256((identity or str(uuid.getnode())).encode()).hexdigest()[:12]


@dataclass
class Checked:
    """Which large files below a folder were read and found whole on this machine.

    A file is read again when its size or one of its times is another: the kernel sets the time of the last change, and
    a program that restores the others cannot.
    """

    folder: Path
    _known: dict[str, list[int]] | None = field(default=None, repr=False)

    @property
    def path(self) -> Path:
        return self.folder / f"checked-{machine()}.json"

    @property
    def known(self) -> dict[str, list[int]]:
        if self._known is None:
            try:
                stored = json.loads(self.path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                stored = {}
            self._known = stored if isinstance(stored, dict) else {}
        return self._known

    def knows(self, file: Path) -> bool:
        return self.known.get(file.relative_to(self.folder).as_posix()) == stamp(file)

    def remember(self, file: Path) -> None:
        self.known[file.relative_to(self.folder).as_posix()] = stamp(file)

    def save(self) -> None:
        """Write it down, if that can be done: a cache that can only be read is checked every time."""
        with suppress(OSError):
            atomic_write(self.path, (json.dumps(self.known, sort_keys=True) + "\n").encode())


def stamp(file: Path) -> list[int]:
    about = file.stat()
    return [about.st_size, about.st_mtime_ns, about.st_ctime_ns]
