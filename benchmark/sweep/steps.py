"""Carrying out one step: a process with a log of its own, and a note of how it ended.

The note says why a step failed, for people. Whether it is done, the file that proves it says.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter

from benchmark.errors import DivergedError, InterruptedRunError, LockedError, PartlyFailedError
from benchmark.files import atomic_write, make_folder
from benchmark.processes import DIES_WITH
from benchmark.records import provenance
from benchmark.sweep.plan import Step, state_of_proof

LOGS, NOTES = "logs", "notes"
INTERRUPTED = (InterruptedRunError.code, 130)
"""Exit codes of steps that were asked to stop, and saved their state."""


@dataclass(frozen=True)
class Note:
    """How a step ended."""

    step: str
    code: int
    """The exit code; less than zero: killed by that signal."""
    said: str
    """The last line that it wrote."""
    seconds: float
    ended: str

    @property
    def failed(self) -> bool:
        return self.code not in (0, *INTERRUPTED, LockedError.code)

    @property
    def reason(self) -> str:
        """Why it failed."""
        if self.code >= 0:
            return self.said.removeprefix("bench: ")
        known = {-each: each.name for each in signal.Signals}
        return f"killed by {known.get(self.code, f'signal {-self.code}')}"


NOTE = TypeAdapter(Note)


def file_name(step: str) -> str:
    return step.replace("/", "--")


def log_path(folder: Path, step: str) -> Path:
    return folder / LOGS / f"{file_name(step)}.log"


def note_path(folder: Path, step: str) -> Path:
    return folder / NOTES / f"{file_name(step)}.json"


def read_note(folder: Path, step: str) -> Note | None:
    try:
        return NOTE.validate_json(note_path(folder, step).read_bytes())
    except (OSError, ValueError):
        return None


def write_note(folder: Path, note: Note) -> None:
    path = note_path(folder, note.step)
    make_folder(path.parent)
    atomic_write(path, (json.dumps(asdict(note)) + "\n").encode())


def last_line(log: Path) -> str:
    """The last line of a log that says something."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4000))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    said = [line.strip() for line in lines if line.strip()]
    return "".join(letter if letter.isprintable() else " " for letter in said[-1])[:500] if said else ""


def bench() -> list[str]:
    """The command that this process is, whatever lies in the current folder or first on the path."""
    return [sys.executable, "-P", "-m", "benchmark.cli"]


@dataclass
class Running:
    """A step under way."""

    step: Step
    process: subprocess.Popen[bytes]
    began: float
    folder: Path
    log: IO[bytes]

    def ended(self) -> Note | None:
        """A note of how it ended, written down; none while it goes on."""
        code = self.process.poll()
        if code is None:
            return None
        self.log.close()
        seconds = round(time.monotonic() - self.began, 1)
        said = last_line(log_path(self.folder, self.step.name))
        if code == 0 and self.step.kind == "run" and state_of_proof(self.step) != "done":
            code, said = 1, f"it ended without leaving {self.step.proof}: was a file that it uses changed meanwhile?"
        note = Note(self.step.name, code, said, seconds, provenance.now())
        write_note(self.folder, note)
        return note


def start(step: Step, folder: Path, environment: dict[str, str]) -> Running:
    """Start a step. It is not in our group of processes: a Ctrl-C in the terminal is ours to pass on."""
    path = log_path(folder, step.name)
    make_folder(path.parent)
    log = path.open("ab")
    log.write(f"\n{provenance.now()} {step.command}\n".encode())
    log.flush()
    threads = {name: str(step.cores) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    process = subprocess.Popen(  # noqa: S603 - a bench command of a plan that the user named
        [*bench(), *step.words],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=os.environ | threads | environment | {DIES_WITH: str(os.getpid())},
        start_new_session=True,
        cwd=step.folder or None,
    )
    return Running(step, process, time.monotonic(), folder, log)


def blocked_by(step: Step, folder: Path, steps: dict[str, Step]) -> str | None:
    """The step that this one needs and that failed.

    What was killed or interrupted, this one does itself; what diverged, it meets itself, and records it.
    """
    for need in step.needs:
        note = read_note(folder, need)
        hopeless = note is not None and note.failed and note.code > 0 and note.code != DivergedError.code
        if hopeless and need in steps and state_of_proof(steps[need]) != "done":
            return need
    return None


def blocked_note(step: Step, need: str) -> Note:
    return Note(step.name, PartlyFailedError.code, f"not begun: it needs {need}, which failed", 0.0, provenance.now())
