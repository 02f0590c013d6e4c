"""Archives, unpacked by name and bytes alone: no links, no paths that leave the folder, no more than a stated size."""

import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from benchmark.data.download import BLOCK
from benchmark.errors import DataError

MOST_MEMBERS, MOST_BYTES, MOST_RATIO = 1_000_000, 50_000_000_000, 200
"""What an archive may unpack to: members, bytes, and bytes for each byte of the archive."""
BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError)
"""What a broken archive may raise while it is read; RuntimeError is what zipfile says of an encrypted one."""


@dataclass(frozen=True)
class Entry:
    """One entry of an archive."""

    name: str
    size: int
    kind: str
    """`file`, `folder`, or what else it is."""


def tar_entries(archive: tarfile.TarFile) -> Iterator[tuple[Entry, IO[bytes] | None]]:
    for member in archive:
        kind = "file" if member.isreg() else "folder" if member.isdir() else "link or device"
        yield Entry(member.name, member.size, kind), archive.extractfile(member) if kind == "file" else None


def zip_entries(archive: zipfile.ZipFile) -> Iterator[tuple[Entry, IO[bytes] | None]]:
    for info in archive.infolist():
        mode = info.external_attr >> 16
        kind = "folder" if info.is_dir() else "link" if mode and stat.S_ISLNK(mode) else "file"
        yield Entry(info.filename, info.file_size, kind), archive.open(info) if kind == "file" else None


@contextmanager
def entries_of(path: Path) -> Iterator[Iterator[tuple[Entry, IO[bytes] | None]]]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as zipped:
            yield zip_entries(zipped)
    else:
        with tarfile.open(path) as tarred:
            yield tar_entries(tarred)


def unpack(path: Path, root: Path) -> None:
    """Unpack below `root`; what appears there under its own name is complete."""
    part = root / f".unpack-{path.name}"
    shutil.rmtree(part, ignore_errors=True)  # of somebody who was killed
    part.mkdir()
    try:
        with entries_of(path) as entries:
            unpack_into(entries, part, min(MOST_BYTES, MOST_RATIO * path.stat().st_size), path)
        for entry in sorted(part.iterdir()):
            if (root / entry.name).exists():
                raise DataError(f"{path} holds '{entry.name}', which is already in {root}: move it away")
            entry.rename(root / entry.name)
    except BROKEN as error:
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, FileExistsError):
            raise  # the disk's fault, not the archive's
        raise DataError(f"{path} is damaged or cut short ({error}): remove it and fetch it again") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def unpack_into(entries: Iterator[tuple[Entry, IO[bytes] | None]], folder: Path, most: int, path: Path) -> None:
    """Write plain files and folders; anything else, or more than allowed, stops it before it is written."""
    written = 0
    for number, (entry, content) in enumerate(entries):
        target = folder / safe_name(entry, path)
        if number >= MOST_MEMBERS or written + entry.size > most:
            raise DataError(f"{path} is refused: it would unpack to more than an archive of its size should")
        if entry.kind == "folder":
            target.mkdir(parents=True, exist_ok=True)
            continue
        assert content is not None
        target.parent.mkdir(parents=True, exist_ok=True)
        with content, target.open("xb") as file:
            while block := content.read(BLOCK):
                written += len(block)
                if written > most:  # sizes in an archive are only what it claims
                    raise DataError(f"{path} is refused: it unpacks to more than it says")
                file.write(block)


def safe_name(entry: Entry, path: Path) -> Path:
    """The entry's name, if it is a plain file or folder that stays inside."""
    name = PurePosixPath(entry.name.replace("\\", "/"))
    if entry.kind not in ("file", "folder"):
        raise DataError(f"{path} is refused: '{entry.name}' in it is a {entry.kind}")
    if name.is_absolute() or ".." in name.parts or ":" in entry.name or "\0" in entry.name:
        raise DataError(f"{path} is refused: '{entry.name}' in it would be written outside its folder")
    return Path(*name.parts)
