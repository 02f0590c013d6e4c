"""Archives are unpacked by Python's own modules, after one check of all names, kinds and sizes."""

import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from benchmark.errors import DataError

MOST_MEMBERS, MOST_BYTES, MOST_RATIO = 1_000_000, 50_000_000_000, 200
"""What an archive may unpack to: members, bytes, and bytes for each byte of the archive."""
BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError)
"""What a broken archive may raise while it is read; RuntimeError is what zipfile says of an encrypted one."""

CONTRADICTIONS = (FileExistsError, IsADirectoryError, NotADirectoryError)
"""What an archive leads to that holds a file and a folder of one name."""


@dataclass(frozen=True)
class Entry:
    """One entry of an archive."""

    name: str
    size: int
    kind: str
    """`file`, `folder`, or what else it is."""


def tar_entries(archive: tarfile.TarFile) -> Iterator[Entry]:
    for member in archive:
        kind = "folder" if member.isdir() else "file" if member.isreg() else "link or device"
        # of a sparse file more may be written than its size says
        yield Entry(member.name, member.size, "sparse file" if member.issparse() else kind)


def readable(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
    """What Python's own filter makes of a member, for everybody to read, as what comes out of a zip."""
    return tarfile.data_filter(member, folder).replace(mode=0o755 if member.isdir() else 0o644)


def zip_entries(archive: zipfile.ZipFile) -> Iterator[Entry]:
    for info in archive.infolist():
        is_link = stat.S_ISLNK(info.external_attr >> 16)
        yield Entry(info.filename, info.file_size, "folder" if info.is_dir() else "link" if is_link else "file")


def unpack(path: Path, root: Path) -> None:
    """Unpack below `root`; what appears there under its own name is complete."""
    part = root / f".unpack-{path.name}"
    shutil.rmtree(part, ignore_errors=True)  # of somebody who was killed
    part.mkdir()
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as zipped:
                check(zip_entries(zipped), path)
                zipped.extractall(part)  # noqa: S202 - just checked
        else:
            with tarfile.open(path) as tarred:
                check(tar_entries(tarred), path)
                tarred.extractall(part, filter=readable)  # noqa: S202 - just checked, and filtered
        for entry in sorted(part.iterdir()):
            if (root / entry.name).exists():
                raise DataError(f"{path} holds '{entry.name}', which is already in {root}: move it away")
            entry.rename(root / entry.name)
    except BROKEN as error:
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, CONTRADICTIONS):
            raise  # the disk's fault, not the archive's
        raise DataError(f"{path} is damaged or cut short ({error}): remove it and fetch it again") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def check(entries: Iterator[Entry], path: Path) -> None:
    """Refuse an archive before anything of it is written.

    It may hold plain files and folders, inside its folder, every file once, and no more than an archive of its size
    should. Neither module writes more of such a file than the archive says that it has.
    """
    most, total = min(MOST_BYTES, MOST_RATIO * path.stat().st_size), 0
    names: set[PurePosixPath] = set()
    for number, entry in enumerate(entries):
        name = PurePosixPath(entry.name)
        if entry.kind not in ("file", "folder"):
            raise DataError(f"{path} is refused: '{entry.name}' in it is a {entry.kind}")
        if name.is_absolute() or ".." in name.parts or any(sign in entry.name for sign in ("\\", ":", "\0")):
            raise DataError(f"{path} is refused: '{entry.name}' in it would be written outside its folder")
        if entry.kind == "file" and name in names:
            raise DataError(f"{path} is refused: '{entry.name}' is in it twice")
        names.add(name)
        total += entry.size
        if number >= MOST_MEMBERS or total > most:
            raise DataError(f"{path} is refused: it would unpack to more than an archive of its size should")
