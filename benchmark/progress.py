"""What a person who waits for a run sees, on stderr: a bar with the time left on a terminal, else a line a session."""

import sys
import time
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars


@dataclass
class Stop:
    """Set by a signal handler: the run saves its state at the next step and ends."""

    signal: int | None = None


class Display:
    """Shows one run."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True)
        self.quiet = quiet
        self.bars: Bars | None = None
        if self.console.is_terminal and not quiet:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.bars = Bars(*columns, console=self.console, transient=True)
        self.shown_at = 0.0

    def __enter__(self) -> "Display":
        if self.bars:
            self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bars:
            self.bars.stop()

    def say(self, text: str) -> None:
        """One line, whatever the output is."""
        if self.quiet:
            return
        if self.bars:
            self.console.print(text, highlight=False, markup=False)
        else:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def start(self, title: str, total: int, done: int) -> None:
        if self.bars:
            for task in self.bars.task_ids:
                self.bars.remove_task(task)
            self.bars.add_task(title, total=total, completed=done)

    def step(self, done: int) -> None:
        if self.bars and self.bars.task_ids and time.monotonic() - self.shown_at > 0.1:
            self.shown_at = time.monotonic()
            self.bars.update(self.bars.task_ids[-1], completed=done)
