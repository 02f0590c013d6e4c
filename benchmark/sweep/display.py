"""What a person who waits for a sweep sees, on stderr: a table of what runs on a terminal, else a line a step."""

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table

from benchmark.errors import DivergedError
from benchmark.sweep.steps import Note, last_line, log_path

if TYPE_CHECKING:
    from benchmark.sweep.local import Pool


def duration(seconds: float) -> str:
    """`45 s`, `3 min`, `2.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class SweepDisplay:
    """Shows a pool at work."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True)
        self.quiet = quiet
        self.live = Live(console=self.console, refresh_per_second=2, transient=True) if self.is_live() else None
        self.shown_at = 0.0

    def is_live(self) -> bool:
        return self.console.is_terminal and not self.quiet

    def __enter__(self) -> "SweepDisplay":
        if self.live:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.live.stop()

    def say(self, text: str) -> None:
        if not self.quiet:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def ended(self, pool: "Pool", note: Note) -> None:
        """A line for every step that has ended."""
        diverged = note.code == DivergedError.code
        state = "diverged" if diverged else "failed" if note.failed else "stopped" if note.code else "done"
        outcome = note.reason if note.failed else figure_of(pool, note) if not note.code else "its state is kept"
        done = len(pool.notes)
        self.say(f"[{done}/{len(pool.steps)}] {state} {note.step}, {duration(note.seconds)}: {outcome}")

    def show(self, pool: "Pool") -> None:
        if self.live is None or time.monotonic() - self.shown_at < 0.5:
            return
        self.shown_at = time.monotonic()
        self.live.update(self.table(pool))

    def table(self, pool: "Pool") -> Table:
        failed = f", {len(pool.failed)} failed" if pool.failed else ""
        title = f"{len(pool.notes)} of {len(pool.steps)} steps ended{failed}, {len(pool.waiting)} waiting"
        table = Table(title=title, box=None, title_justify="left")
        for heading in ("running", "since", "about to go", "last said"):
            table.add_column(heading, no_wrap=True)
        for running in pool.running.values():
            since = time.monotonic() - running.began
            left = "?" if running.step.seconds is None else duration(max(0.0, running.step.seconds - since))
            table.add_row(running.step.name, duration(since), left, last_line(log_path(pool.folder, running.step.name)))
        return table


def figure_of(pool: "Pool", note: Note) -> str:
    """The average accuracy of a finished run, which its log says; else its last line."""
    try:
        lines = log_path(pool.folder, note.step).read_text(encoding="utf-8", errors="replace").splitlines()[-20:]
    except OSError:
        return note.said
    figures = [line for line in lines if line.startswith("average accuracy")]
    return " ".join(figures[-1].split()) if figures else note.said
