"""Carries out a plan on this machine: as many steps at once as cores, or GPUs, allow."""

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmark.display import Stop
from benchmark.errors import DivergedError, LockedError
from benchmark.files import is_held
from benchmark.sweep.display import SweepDisplay
from benchmark.sweep.plan import Step, believed_state
from benchmark.sweep.steps import Note, Running, blocked_by, blocked_note, start, write_note

PAUSE = 0.1
"""Seconds between two looks at what is going on."""
ELSEWHERE = 5.0
"""Seconds to wait before a step is tried again that another process is at."""


@dataclass
class Slots:
    """What the machine has: cores, and GPUs if runs are to use them, one each."""

    cores: int
    jobs: int
    gpus: list[str] = field(default_factory=list)
    """As `CUDA_VISIBLE_DEVICES` names them."""
    busy: dict[str, tuple[int, str | None]] = field(default_factory=dict)

    def room_for(self, step: Step) -> bool:
        used = sum(cores for cores, _ in self.busy.values())
        if len(self.busy) >= self.jobs or (self.gpus and not self.free_gpus()):
            return False
        return not self.busy or used + step.cores <= self.cores

    def free_gpus(self) -> list[str]:
        taken = [gpu for _, gpu in self.busy.values()]
        return [gpu for gpu in self.gpus if gpu not in taken]

    def take(self, step: Step) -> dict[str, str]:
        """Variables of the step's environment."""
        gpu = next(iter(self.free_gpus()), None)
        self.busy[step.name] = (step.cores, gpu)
        return {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}

    def give_back(self, step: Step) -> None:
        del self.busy[step.name]


def visible_gpus(device: str) -> list[str]:
    """GPUs that runs may share out among them; none if they compute on the CPU."""
    if device.partition(":")[0] not in ("auto", "cuda"):
        return []
    import torch  # noqa: PLC0415

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if device.startswith("cuda:") or not torch.cuda.is_available():
        return []
    return named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]


@dataclass
class Pool:
    """A plan under way."""

    steps: list[Step]
    folder: Path
    slots: Slots
    display: SweepDisplay
    stop: Stop
    fail_fast: bool = False
    waiting: dict[str, Step] = field(default_factory=dict)
    running: dict[str, Running] = field(default_factory=dict)
    notes: dict[str, Note] = field(default_factory=dict)
    later: dict[str, float] = field(default_factory=dict)
    """Steps that another process is at, and when to look again."""
    last_signal: int | None = None
    asked: int = 0
    """How often somebody asked to stop: after the first time nothing is begun, after the second nothing goes on."""
    gave_up: bool = False
    """Nothing more is begun, because a step failed and that was to be the end."""

    def carry_out(self) -> None:
        self.waiting = {step.name: step for step in self.steps}
        try:
            with self.display:
                while self.running or (self.waiting and not self.is_ending):
                    self.obey()
                    self.collect()
                    self.begin()
                    self.display.show(self)
                    time.sleep(PAUSE)
        finally:  # whatever ends us, nothing goes on unseen
            self.signal_all(signal.SIGTERM)
            for running in self.running.values():
                running.process.wait()

    @property
    def is_ending(self) -> bool:
        return bool(self.asked) or self.gave_up

    def obey(self) -> None:
        """A first Ctrl-C lets what runs come to its end; a second, or another signal, ends it with its state kept."""
        if self.stop.signal is None:
            return
        number, self.stop.signal = self.stop.signal, None
        self.last_signal = number
        self.asked = self.asked + 1 if number == signal.SIGINT else max(2, self.asked)
        if self.asked == 1:
            self.display.say("stopping: what runs comes to its end, nothing more is begun; Ctrl-C again ends it now")
        else:
            self.display.say("stopping: runs save their state and end; the same command goes on from there")
            self.signal_all(signal.SIGTERM if self.asked < 4 else signal.SIGKILL)

    def signal_all(self, number: int) -> None:
        for running in self.running.values():
            running.process.send_signal(number)

    def collect(self) -> None:
        """Take note of what has ended."""
        for name, running in [*self.running.items()]:
            note = running.ended()
            if note is None:
                continue
            del self.running[name]
            self.slots.give_back(running.step)
            if note.code == LockedError.code:
                self.waiting[name] = running.step
                if name not in self.later:
                    self.display.say(f"waiting: another process is at {name}")
                self.later[name] = time.monotonic() + ELSEWHERE
                continue
            self.conclude(note)

    def conclude(self, note: Note) -> None:
        self.notes[note.step] = note
        self.display.ended(self, note)
        if note.failed and self.fail_fast and not self.is_ending:
            self.gave_up = True
            self.display.say("stopping: a step failed (--fail-fast); what runs comes to its end")

    def begin(self) -> None:
        """Start what is ready, in order. What does not fit is waited for, so that large steps get their turn."""
        if self.is_ending:
            return
        known = {step.name: step for step in self.steps}
        for name, step in [*self.waiting.items()]:
            if any(need in self.running or need in self.waiting for need in step.needs):
                continue
            if name in self.later and not self.is_free(step):
                continue
            need = blocked_by(step, self.folder, known)
            if need is not None:
                note = blocked_note(step, need)
                write_note(self.folder, note)
                del self.waiting[name]
                self.conclude(note)
                continue
            if not self.slots.room_for(step):
                return
            del self.waiting[name]
            if believed_state(step) == "done":
                self.conclude(Note(step.name, 0, "done by another process", 0.0, ""))
                continue
            self.running[name] = start(step, self.folder, self.slots.take(step))

    def is_free(self, step: Step) -> bool:
        """Whether another process that was at a step is no longer."""
        if self.later[step.name] > time.monotonic():
            return False
        if step.lock and is_held(Path(step.lock)):
            self.later[step.name] = time.monotonic() + ELSEWHERE
            return False
        return True

    @property
    def failed(self) -> list[Note]:
        """Steps that failed; a run that diverged has a record, and is none of them."""
        return [note for note in self.notes.values() if note.failed and note not in self.diverged]

    @property
    def diverged(self) -> list[Note]:
        runs = {step.name for step in self.steps if step.kind == "run"}
        return [note for note in self.notes.values() if note.code == DivergedError.code and note.step in runs]
