"""What a person who waits for a run sees, on stderr: a bar with the time left on a terminal, else a line a session."""

import sys
import time
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

SECONDS_BETWEEN_LINES = 30.0
"""Where there is no terminal, work counted in a unit is reported this often."""


@dataclass
class Stop:
    """Set by a signal handler: the run saves its state at the next step and ends."""

    signal: int | None = None


@dataclass(frozen=True)
class Work:
    """Something that takes a while."""

    title: str
    total: int
    first: int
    unit: str | None
    began: float

    def line(self, done: int, now: float) -> str:
        """How far it got, how fast it goes, how long it will take."""
        rate = (done - self.first) / max(1e-9, now - self.began)
        minutes = (self.total - done) / max(1e-9, rate) / 60
        if not self.total:
            return f"{self.title}: {done:,} {self.unit}, {rate:,.0f} {self.unit}/s"
        left = f"about {minutes:.0f} min left" if done < self.total else "done"
        return f"{self.title}: {done:,} of {self.total:,} {self.unit}, {rate:.0f} {self.unit}/s, {left}"


class RateColumn(TextColumn):
    """Units a second, for work that is counted in units."""

    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: Task) -> Text:
        unit = task.fields.get("unit")
        return Text(f"{task.speed or 0:.0f} {unit}/s" if unit else "")


class Display:
    """Shows one run."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True)
        self.quiet = quiet
        self.bars: Bars | None = None
        if self.console.is_terminal and not quiet:
            counted = (MofNCompleteColumn(), RateColumn(), TimeRemainingColumn())
            self.bars = Bars(
                TextColumn("{task.description}"), BarColumn(), *counted, console=self.console, transient=True
            )
        self.shown_at = 0.0
        self.work = Work("", 0, 0, None, 0.0)

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

    def start(self, title: str, total: int, done: int, unit: str | None = None) -> None:
        """Begin to show some work; with a unit it is also reported in lines where there is no terminal."""
        self.work = Work(title, total, done, unit, time.monotonic())
        self.shown_at = time.monotonic() if unit else 0.0
        if self.bars:
            for task in self.bars.task_ids:
                self.bars.remove_task(task)
            self.bars.add_task(title, total=total, completed=done, unit=unit)

    def step(self, done: int) -> None:
        age = time.monotonic() - self.shown_at
        if self.bars and self.bars.task_ids and age > 0.1:
            self.shown_at = time.monotonic()
            self.bars.update(self.bars.task_ids[-1], completed=done)
        elif not self.bars and self.work.unit and age > SECONDS_BETWEEN_LINES:
            self.shown_at = time.monotonic()
            self.say(self.work.line(done, time.monotonic()))
