"""Writing files so that a reader, or a run killed at any moment, sees the old content or the new, nothing between."""

import errno
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import filelock
import platformdirs

from benchmark.errors import InterruptedRunError, UsageError

if TYPE_CHECKING:
    from benchmark.display import Display, Stop


def atomic_write(path: Path, content: bytes, before: Path | None = None) -> None:
    """Write beside the target, flush to disk, rename over it; a failed attempt leaves nothing behind.

    What was there is kept as `before`, if that is given.
    """
    part = path.with_name(f"{path.name}.{unshared()}.part")
    try:
        with naming(path), part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if before is not None:
            keep(path, before)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    sync_folder(path.parent)


def keep(path: Path, before: Path) -> None:
    """Give a file that is about to be replaced a second name; at no moment is there none under the first."""
    older = before.with_name(f"{before.name}.{unshared()}.part")
    try:
        os.link(path, older)
        older.replace(before)
    except FileNotFoundError:
        return  # there is none
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV, errno.ENOSYS):
            raise
        with suppress(FileNotFoundError):  # a file system without second names
            path.replace(before)
    finally:
        older.unlink(missing_ok=True)


def unshared() -> str:
    """Letters that no other writer has, on this machine or another: two that write the same file do no harm."""
    return secrets.token_hex(6)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """A full disk is reported with the name of the file: the system does not say which it was."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def sync_folder(path: Path) -> None:
    """Make a rename in this folder last through a power cut."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_folder(path: Path) -> Path:
    """Create a folder and those above it, or say in one sentence why that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"cannot create folder {path}: a regular file is in the way") from None
    except PermissionError:
        raise UsageError(f"cannot create folder {path}: permission denied") from None
    return path


def cache_folder() -> Path:
    """Where banks, base sessions, decoded images and downloads are kept: `$CNCD_CACHE`, else the user's cache."""
    return Path(os.environ.get("CNCD_CACHE") or platformdirs.user_cache_dir("cncd-bench"))


class NoLock:
    """For file systems without locks. Work that is done twice is harmless; a lock that outlives its holder is not."""

    def acquire(self, timeout: float = 0) -> Self:  # noqa: ARG002 - as a lock has it
        return self

    def release(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def lock_at(path: Path) -> filelock.BaseFileLock | NoLock:
    """A lock of the kernel, which is free once its holder is dead; or none, where the file system has none."""
    try:
        with path.with_name(".lockable").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            return NoLock()
    return filelock.FileLock(path)


def is_held(path: Path) -> bool:
    """Whether somebody has a lock right now. Asked where nothing may be written, too."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no such file, or no locks
        return False
    return False


def waiting_lock(path: Path, doing: str, display: "Display", stop: "Stop") -> AbstractContextManager[Any]:
    """Take a lock, waiting for whoever has it, and still obeying signals; the kernel frees it when its holder dies."""
    lock, said = lock_at(path), False
    while stop.signal is None:
        try:
            return lock.acquire(timeout=1 if said else 0)
        except filelock.Timeout:
            if not said:
                display.say(f"waiting: another process is {doing}")
            said = True
    raise InterruptedRunError(stop.signal, "nothing was begun, so nothing had to be saved")
