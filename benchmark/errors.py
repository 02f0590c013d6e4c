"""Everything that can go wrong for a reason the user can act on, each kind with its documented exit code.

The message is one sentence that says what to do; the command line prints it and nothing else.
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class BenchError(Exception):
    """Base of all expected failures."""

    code = 1


class UsageError(BenchError):
    """A wrong option, name, key or file."""

    code = 2


class DataError(BenchError):
    """Data or weights are missing or corrupt."""

    code = 3


class MissingError(DataError):
    """Data or weights that are simply not here yet."""


class RegressionError(BenchError):
    """Figures moved, or generated files do not follow from the records."""

    code = 4


class DivergedError(BenchError):
    """A loss or a weight stopped being finite; the last good state is kept."""

    code = 5


class ResourceError(BenchError):
    """No disk space or no memory left; the run can be resumed."""

    code = 6


class LockedError(BenchError):
    """Another process is working on the same run."""

    code = 7


class PartlyFailedError(BenchError):
    """Some steps of a sweep failed; the others are done."""

    code = 8


class InterruptedRunError(BenchError):
    """A signal asked to stop; what is kept is told, and the same command goes on from there."""

    code = 75

    def __init__(self, signal: int, kept: str) -> None:
        super().__init__(f"interrupted; {kept}, run the same command again to resume")
        self.signal = signal


@contextmanager
def naming_own_lines(folder: Path | None) -> Iterator[None]:
    """A mistake in the user's own method becomes a sentence with its file and line; none: the method is the suite's."""
    try:
        yield
    except (SystemExit, BrokenPipeError) as error:
        if folder is None:
            raise
        raise UsageError(f"--method: it ended the program with {type(error).__name__}") from error
    except (BenchError, OSError, MemoryError):
        raise
    except Exception as error:
        if folder is None or ran_out(str(error)):
            raise
        place = own_line(error, folder) or "the method does what the engine cannot follow"
        raise UsageError(f"--method: {place}: {type(error).__name__}: {error}") from error


def own_line(error: Exception, folder: Path) -> str | None:
    """`mine.py, line 12, in losses`: the innermost place below a folder that an error came through."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).resolve().is_relative_to(folder):
        return f"{Path(error.filename).name}, line {error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve().is_relative_to(folder)]
    own = [f for f in frames if Path(f.filename).is_file() and not is_ours(f.filename)]
    return f"{Path(own[-1].filename).name}, line {own[-1].lineno}, in {own[-1].name}" if own else None


def is_ours(file: str) -> bool:
    """Whether a file belongs to the suite or to an installed package, which may lie below the user's folder."""
    root = Path(__file__).resolve().parent
    if "site-packages" in Path(file).parts or "dist-packages" in Path(file).parts:
        return True
    return any(Path(file).resolve().is_relative_to(place) for place in (root, root.parent / "methods"))


def ran_out(text: str) -> bool:
    """Whether torch speaks of memory: it could not have some, or the kernel killed a worker for it."""
    return "allocate" in text.lower() or "is killed by signal" in text
