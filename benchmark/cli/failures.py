"""Whatever goes wrong becomes one sentence on stderr and a documented exit code."""

import errno
import os
import signal
import sys
import traceback

import typer

from benchmark.cli.app import app
from benchmark.errors import BenchError, InterruptedRunError, ResourceError, UsageError, ran_out

AT_ONCE = "interrupted at once; a state that was saved before is still there, the same command resumes"


def guarded() -> int:
    try:
        words = sys.argv[1:]
        result = app([*words, "--help"] if words in ([], ["new"]) else words, standalone_mode=False)
    except Exception as error:  # noqa: BLE001 - the one place where everything that went wrong becomes a sentence
        if "--verbose" in sys.argv:
            traceback.print_exc()
        return code_of(error)
    except KeyboardInterrupt:
        return fail(AT_ONCE, 130)
    if result == 130:  # the library of the command line has taken Ctrl-C for an answer
        return fail(AT_ONCE, 130)
    return result if isinstance(result, int) else 0


def code_of(error: Exception) -> int:
    """Say in one sentence what went wrong; the exit code that goes with it."""
    match error:
        case InterruptedRunError():
            return fail(str(error), 130 if error.signal == signal.SIGINT else error.code)
        case BenchError():
            return fail(str(error), error.code)
        case typer.TyperException():  # wrong options, found while parsing
            return fail(f"{error.format_message().rstrip('.')} (see bench --help)", UsageError.code)
        case typer.Exit():
            return error.exit_code
        case typer.Abort():
            return fail("interrupted", 130)
        case UnicodeError():
            return fail(f"a name or a text cannot be read: {error.reason if hasattr(error, 'reason') else error}", 2)
        case OSError():
            return fail_for_resource(error)
        case MemoryError() | RuntimeError() if isinstance(error, MemoryError) or ran_out(str(error)):
            return fail("out of memory: try a smaller batch (--set budget.batch=32) or fewer views", ResourceError.code)
    hint = "--verbose shows where; " if sys.argv[1:2] == ["run"] else ""
    return fail(f"unexpected {type(error).__name__}: {error} ({hint}please report it if it is ours)", 1)


def fail_for_resource(error: OSError) -> int:
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader went away; say nothing more
        return 0
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        where = error.filename or "a file"
        return fail(f"no space left writing {where}: free some, then the same command resumes", ResourceError.code)
    if error.errno == errno.EIO:
        what = f"the disk failed writing {error.filename or 'a file'} ({error.strerror})"
        return fail(f"{what}: what was saved before is kept, the same command resumes", ResourceError.code)
    return fail(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "), UsageError.code)


def fail(sentence: str, code: int) -> int:
    typer.echo(f"bench: {' '.join(sentence.split())}", err=True)
    return code
