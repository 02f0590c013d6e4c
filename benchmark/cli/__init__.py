"""The `bench` command: parses, calls, prints, decides nothing. Data goes to stdout, everything else to stderr.

Heavy imports wait inside the commands, so that `bench --help` answers at once.
"""

import sys  # noqa: I001 - commands come in the order of `bench --help`

from benchmark.cli import running, reading, making, sweeping
from benchmark.cli.failures import guarded
from benchmark.processes import die_with_sweep

__all__ = ["guarded", "main", "making", "reading", "running", "sweeping"]


def main() -> None:
    """Run the command; every expected failure becomes one sentence and its documented exit code."""
    die_with_sweep()
    sys.exit(guarded())
