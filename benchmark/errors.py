"""Everything that can go wrong for a reason the user can act on, each kind with its documented exit code.

The message is one sentence that says what to do; the command line prints it and nothing else.
"""


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
    """A signal asked to stop; it says what is kept, and the same command goes on from there."""

    code = 75

    def __init__(self, signal: int, kept: str) -> None:
        super().__init__(f"interrupted; {kept}, run the same command again to resume")
        self.signal = signal


def ran_out(text: str) -> bool:
    """Whether torch speaks of memory: it could not have some, or the kernel killed a worker for it."""
    return "allocate" in text.lower() or "is killed by signal" in text
