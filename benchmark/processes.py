"""Processes that must not outlive those that started them."""

import os
import signal
import sys

DIES_WITH = "CNCD_DIES_WITH"
"""In the environment of a step of a sweep: the process without which it must not go on."""
PR_SET_PDEATHSIG = 1


def die_with(parent: int, number: int) -> None:
    """Ask the kernel for a signal once our parent is dead, however it died; on Linux, elsewhere nothing is done."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes  # noqa: PLC0415 - most commands do not need it

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it died before we asked
        os.kill(os.getpid(), number)


def die_with_sweep() -> None:
    """A step of a sweep ends, its state saved, when the sweep is killed: it would go on unseen."""
    parent = os.environ.get(DIES_WITH, "")
    if parent.isdigit():
        die_with(int(parent), signal.SIGTERM)
