"""Mistakes in the user's own method become a sentence with its file and line."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmark.errors import BenchError, UsageError, ran_out
from methods.errors import ContractError


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
    except ContractError as error:
        place = None if folder is None else own_line(error, folder)
        raise UsageError(f"{error} (--method: {place})" if place else str(error)) from error
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
    root = Path(__file__).resolve().parent.parent
    if "site-packages" in Path(file).parts or "dist-packages" in Path(file).parts:
        return True
    return any(Path(file).resolve().is_relative_to(place) for place in (root, root.parent / "methods"))
