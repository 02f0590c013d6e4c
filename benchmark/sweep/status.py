"""How a sweep stands, read off files: from anywhere, while it runs or long after. Locks say what runs."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from benchmark.errors import UsageError
from benchmark.files import is_held
from benchmark.sweep.plan import KINDS, PLAN, SWEEPS, Plan, Step, read_plan, state_of_proof
from benchmark.sweep.steps import INTERRUPTED, log_path, read_note

STATES = ("done", "diverged", "running", "failed", "stopped", "waiting")


@dataclass(frozen=True)
class State:
    """Where a step stands, and why if it failed."""

    step: Step
    state: str
    said: str = ""


def state_of(step: Step, folder: Path) -> State:
    proof = state_of_proof(step)
    if proof in ("done", "diverged"):
        return State(step, proof)
    if step.lock and is_held(Path(step.lock)):
        return State(step, "running")
    note = read_note(folder, step.name)
    if note is not None and note.failed:
        return State(step, "failed", note.reason)
    return State(step, "stopped" if proof or (note is not None and note.code in INTERRUPTED) else "waiting")


@dataclass(frozen=True)
class Status:
    """All steps of a plan."""

    folder: Path
    states: list[State]

    def count(self, state: str) -> int:
        return sum(each.state == state for each in self.states)

    @property
    def failed(self) -> list[State]:
        return [each for each in self.states if each.state == "failed"]

    def text(self) -> str:
        counted = Counter((each.step.kind, each.state) for each in self.states)
        kinds = [kind for kind in KINDS if any(each.step.kind == kind for each in self.states)]
        rows = [[kind, *(counted[kind, state] or "" for state in STATES)] for kind in kinds]
        parts = [f"{self.folder}", tabulate(rows, headers=["step", *STATES], disable_numparse=True)]
        some = self.failed[:10]
        parts += [
            f"failed {each.step.name}: {each.said} (log: {log_path(self.folder, each.step.name)})" for each in some
        ]
        parts += [f"... and {len(self.failed) - 10} more" for _ in [0] if len(self.failed) > 10]
        return "\n".join([parts[0], "", parts[1], *([""] if some else []), *parts[2:]])

    def document(self) -> dict[str, Any]:
        steps = [
            {"name": e.step.name, "kind": e.step.kind, "state": e.state, "said": e.said, "command": e.step.command}
            for e in self.states
        ]
        return {"sweep": str(self.folder), "counts": {s: self.count(s) for s in STATES}, "steps": steps}


def read_status(folder: Path) -> Status:
    """Of the plan that was written last. A step that nobody needs any more counts as done."""
    states = [state_of(step, folder) for step in read_plan(folder / PLAN)]
    needed = {need for each in states if each.state not in ("done", "diverged") for need in each.step.needs}
    return Status(
        folder,
        [
            State(each.step, "done") if each.step.kind != "run" and each.step.name not in needed else each
            for each in states
        ],
    )


def known_sweeps(out: Path) -> list[Path]:
    return sorted(path.parent for path in (out / SWEEPS).glob(f"*/{PLAN}"))


def chosen_sweep(out: Path, name: str | None) -> Path:
    """The folder of a sweep by name, or of the only one there is."""
    found = known_sweeps(out)
    if name is not None:
        found = [folder for folder in found if folder.name == name]
    if len(found) == 1:
        return found[0]
    names = ", ".join(folder.name for folder in known_sweeps(out)[:10])
    if not found:
        raise UsageError(
            f"there is no sweep{f' {name!r}' if name else ''} in {out}{f' (there are: {names})' if names else ''}"
        )
    raise UsageError(
        f"there are several sweeps in {out}: add the options of one of them, or --name with one of {names}"
    )


def plan_text(plan: Plan, jobs: int) -> str:
    """What a sweep would do, for `--dry-run`."""
    rows = []
    for kind in KINDS:
        steps = plan.of(kind)
        if steps:
            known = [step.seconds for step in steps if step.seconds is not None]
            time = (
                f"{sum(known) / 3600:.2f} h"
                if len(known) == len(steps)
                else "?"
                if not known
                else "more than " + (f"{sum(known) / 3600:.2f} h")
            )
            cores = sorted({step.cores for step in steps})
            rows.append([kind, len(steps), " or ".join(map(str, cores)), time])
    lines = [
        f"{plan.name}: {plan.runs} runs, {plan.done} done, {plan.diverged} diverged, {len(plan.of('run'))} to do",
        "",
        tabulate(rows, headers=["step", "to do", "cores", "time, one after the other"], disable_numparse=True),
        "",
    ]
    lines += [f"to be fetched first: {', '.join(plan.missing)}"] if plan.missing else []
    whole = plan.seconds(jobs)
    lines.append(
        f"with {jobs} at once: " + (f"about {whole / 3600:.2f} h" if whole is not None else "nobody knows how long")
    )
    lines.append(
        f"base sessions shared: {plan.shared_base}; tokens to be written: {plan.bytes / 1e9:.2f} GB "
        f"({plan.free / 1e9:.0f} GB are free)"
    )
    return "\n".join(lines)
