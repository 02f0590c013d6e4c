"""The plan of a sweep: from runs that are wanted to steps, each a `bench` command with the file that proves it done.

Steps are of four kinds: fetch (data, weights), bank (tokens), base (the base session that runs of one seed share), run.
Only what is not done is planned, and what only finished runs would need is not either.
"""

import json
import shlex
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, get_args

from pydantic import TypeAdapter

from benchmark.errors import UsageError
from benchmark.files import atomic_write, make_folder
from benchmark.records.reading import DamagedRecordError, read_record
from benchmark.records.record import OWN, PUBLISHED
from benchmark.sweep.past import status_of

Kind = Literal["fetch", "bank", "base", "run"]
KINDS: tuple[Kind, ...] = get_args(Kind)
PLAN = "plan.jsonl"
SWEEPS = "sweeps"


@dataclass(frozen=True)
class Step:
    """One line of a plan."""

    name: str
    kind: Kind
    command: str
    needs: tuple[str, ...] = ()
    proof: str = ""
    """The file that is there when the step is done; of a run, its record, which must also say so."""
    lock: str = ""
    """The file that is locked while somebody is at it."""
    folder: str = ""
    """Where the command is to be typed: its paths are seen from there."""
    cores: int = 1
    memory_mb: int = 1000
    seconds: float | None = None
    """As long as such steps took before; none: nobody knows."""

    def line(self) -> str:
        return json.dumps(asdict(self), allow_nan=False)

    @property
    def words(self) -> list[str]:
        """What follows `bench`."""
        return shlex.split(self.command)[1:]


LINES = TypeAdapter(Step)
"""Reads a line of a plan, and refuses what is none."""


@dataclass
class Plan:
    """What is to be done, in order, and what already is."""

    name: str
    out: Path
    steps: list[Step]
    """That are left."""
    finished: list[Step]
    """Runs that are not: done, or diverged."""
    runs: int
    """That were asked for."""
    done: int
    """Of them, with a record of this folder, published or own."""
    diverged: int
    shared_base: int
    """Base sessions that several runs share."""
    bytes: int
    """That tokens not yet there will take on disk."""
    free: int
    missing: list[str] = field(default_factory=list)
    """What must be fetched first."""
    records: list[Path] = field(default_factory=list)
    """Of every run that was asked for, in that order; done or not."""

    @property
    def folder(self) -> Path:
        return sweep_folder(self.out, self.name)

    def of(self, kind: Kind) -> list[Step]:
        return [step for step in self.steps if step.kind == kind]

    def seconds(self, jobs: int) -> float | None:
        """About how long it takes on so many slots; none if nobody knows how long one of the steps takes."""
        if any(step.seconds is None for step in self.steps if step.kind != "fetch"):
            return None
        return sum(step.seconds or 0.0 for step in self.steps if step.kind != "run") + sum(
            step.seconds or 0.0 for step in self.of("run")
        ) / max(1, jobs)

    def write(self) -> Path:
        """The plan as a file: steps that are left, then runs that are finished, so that it tells how all stand."""
        return write_steps(make_folder(self.folder) / PLAN, [*self.steps, *self.finished])


def sweep_folder(out: Path, name: str) -> Path:
    return out / SWEEPS / name


def write_steps(path: Path, steps: list[Step]) -> Path:
    atomic_write(path, "".join(f"{step.line()}\n" for step in steps).encode())
    return path


def read_plan(path: Path) -> list[Step]:
    """The steps of a plan; whatever is wrong with it becomes one sentence."""
    try:
        steps = [LINES.validate_json(line) for line in path.read_bytes().splitlines()]
        odd = any(step.kind == "run" and Path(step.proof).parts[-4:-3] != (OWN,) for step in steps)
        commands = [shlex.split(step.command)[:1] for step in steps]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError:
        raise UsageError(f"{path} is not a plan: write it anew with `bench sweep`") from None
    if odd or any(words != ["bench"] for words in commands):
        raise UsageError(f"{path} is not a plan: it holds something else than bench commands")
    return steps


def state_of_proof(step: Step) -> str:
    """`done`, `diverged`, `partial` or nothing, read off the file that proves a step."""
    if step.kind == "run":
        own = Path(step.proof)
        return status_of(own) or status_of(published_twin(own)) or ""
    return "done" if step.proof and Path(step.proof).exists() else ""


def believed_state(step: Step) -> str:
    """The same, the record of a run read whole: a damaged one is made again."""
    state = state_of_proof(step)
    if state != "done" or step.kind != "run":
        return state
    own = Path(step.proof)
    try:
        return read_record(own if own.exists() else published_twin(own)).status
    except (DamagedRecordError, UsageError):
        return ""


def published_twin(record: Path) -> Path:
    """Where a record would be if it were published: .../runs/p/m/x.json -> .../published/p/m/x.json."""
    results = record.parents[3]
    return results / PUBLISHED / record.relative_to(results / OWN)
