"""What `bench sweep` and `bench step` do."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmark.digests import digest_of
from benchmark.display import Stop
from benchmark.errors import InterruptedRunError, LockedError, PartlyFailedError, UsageError
from benchmark.protocol.models import NAME
from benchmark.protocol.reading import suggest, validated
from benchmark.records.reading import read_record
from benchmark.records.record import RunRecord
from benchmark.sweep import slurm
from benchmark.sweep.display import SweepDisplay
from benchmark.sweep.local import PAUSE, Pool, Slots, visible_gpus
from benchmark.sweep.plan import Kind, Plan, Step, believed_state, published_twin, read_plan
from benchmark.sweep.planner import Shares, make_plan, usable_cores
from benchmark.sweep.steps import LOGS, Note, blocked_by, blocked_note, note_path, read_note, start, write_note
from benchmark.sweep.suites import Block, Common, Wanted, load_suite, seeds_of, several, wanted_runs

MEMORY_A_RUN = 3e9
"""Bytes: with less memory for each, fewer runs are started at once than there are cores."""


@dataclass(frozen=True)
class Choice:
    """Which runs: a suite, or methods, protocols and seeds, or both; `--set` with several values makes a grid."""

    suite: str | None
    methods: list[str]
    protocols: list[str]
    seeds: str | None
    params: list[str]
    settings: list[str]
    common: Common
    name: str | None = None

    def blocks(self) -> tuple[Block, ...]:
        grid: dict[str, tuple[object, ...]] = {}
        for key, values in map(several, self.settings):
            if key in grid:
                raise UsageError(f"--set: '{key}' is given twice: write its values in one, divided by commas")
            grid[key] = tuple(values)
        if self.suite is None:
            asked = {"methods": self.methods or ["fea"], "protocols": self.protocols or ["digits-t2"]}
            chosen = asked | {"seeds": self.seeds or "0", "params": self.params, "grid": grid}
            return (validated(Block, chosen, "sweep"),)
        runs = load_suite(self.suite).runs
        for option, wanted in (("methods", self.methods), ("protocols", self.protocols)):
            known = {name for block in runs for name in getattr(block, option)}
            odd = [name for name in wanted if name not in known]
            if odd:
                raise UsageError(f"--{option}: the suite '{self.suite}' has no '{odd[0]}'{suggest(odd[0], known)}")
        found = [narrowed(block, self) for block in runs]
        blocks = tuple(replaced(block, self, grid) for block in found if block is not None)
        if not blocks:
            raise UsageError(f"the suite '{self.suite}' has no such runs: leave --methods or --protocols out")
        return blocks

    def title(self, blocks: tuple[Block, ...]) -> str:
        """The name of its folder: the suite's, if it is taken as it is."""
        if self.name is not None:
            return checked_name(self.name)
        asked = [[block.model_dump(mode="json") for block in blocks], {k: str(v) for k, v in vars(self.common).items()}]
        if self.suite is not None:
            suite = load_suite(self.suite)
            if blocks == suite.runs and self.common == Common(data_dir=self.common.data_dir):
                return suite.name
            return f"{suite.name}-{digest_of(asked)[:8]}"
        return f"sweep-{digest_of(asked)[:8]}"

    @property
    def is_empty(self) -> bool:
        return not (self.suite or self.methods or self.protocols or self.seeds or self.settings or self.params)


def checked_name(name: str) -> str:
    if not re.fullmatch(NAME, name):
        raise UsageError(f"--name: '{name}': use small letters, digits, '.', '_' and '-' only")
    return name


def narrowed(block: Block, choice: Choice) -> Block | None:
    """A block of a suite with the methods and protocols that were asked for; none if it has none of them."""
    changes = {}
    for name, wanted in (("methods", choice.methods), ("protocols", choice.protocols)):
        kept = tuple(one for one in getattr(block, name) if not wanted or one in wanted)
        if not kept:
            return None
        changes[name] = kept
    return block.model_copy(update=changes)


def replaced(block: Block, choice: Choice, grid: dict[str, tuple[object, ...]]) -> Block:
    changes: dict[str, object] = {"seeds": tuple(seeds_of(choice.seeds))} if choice.seeds else {}
    changes |= {"params": tuple(choice.params)} if choice.params else {}
    return block.model_copy(update=changes | ({"grid": block.grid | grid} if grid else {}))


@dataclass(frozen=True)
class Machine:
    """How many runs at once, with how many threads each; what is not given follows from the machine."""

    jobs: int
    shares: Shares
    gpus: list[str]

    @staticmethod
    def here(jobs: int | None, threads: int | None, cores: int | None, device: str) -> "Machine":
        there, gpus = cores or usable_cores(), visible_gpus(device)
        most = max(64, 4 * (os.cpu_count() or 1))
        if threads is not None and threads > most:
            raise UsageError(f"--threads: {threads}: this machine has {os.cpu_count()} cores, give at most {most}")
        if jobs is None:
            by_memory = max(1, int(total_memory() // MEMORY_A_RUN))
            jobs = len(gpus) or max(1, min(there // (threads or 1), by_memory))
        return Machine(jobs, Shares(threads or max(1, there // jobs), there, device), gpus)

    @staticmethod
    def of_cluster(threads: int | None, cores: int | None, device: str) -> "Machine":
        return Machine(1, Shares(threads or 4, cores or 8, device), [])


def total_memory() -> float:
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError, AttributeError):
        return 16e9


def planned(choice: Choice, out: Path, machine: Machine) -> Plan:
    blocks = choice.blocks()
    return make_plan(choice.title(blocks), wanted_runs(blocks, choice.common), out, machine.shares)


def brought_here(plan: Plan, again: Callable[[], Plan], stop: Stop) -> Plan:
    """What is missing, fetched on this machine (nodes of a cluster often have no network); then the plan anew."""
    from benchmark.data.fetch import FetchOptions, fetch, silence  # noqa: PLC0415 - slow to import
    from benchmark.display import Display  # noqa: PLC0415

    if not plan.missing:
        return plan
    for step in plan.of("fetch"):
        words = step.words
        data_dir = Path(words[words.index("--data-dir") + 1]) if "--data-dir" in words else None
        with Display() as display:
            fetch(words[1], data_dir, FetchOptions(timeout=silence()), display, stop)
    return again()


def only_failed(plan: Plan) -> Plan:
    """Of a plan, the steps that failed before, and what they need."""
    notes = {step.name: read_note(plan.folder, step.name) for step in plan.steps}
    wanted = {name for name, note in notes.items() if note is not None and note.failed}
    if not wanted:
        raise UsageError(f"no step of {plan.folder} has failed: leave --retry-failed out to go on with it")
    by_name = {step.name: step for step in plan.steps}
    for name in [*wanted]:
        wanted |= {*by_name[name].needs}
    return replace(plan, steps=[step for step in plan.steps if step.name in wanted])


def carried_out(plan: Plan, machine: Machine, *, fail_fast: bool, display: SweepDisplay, stop: Stop) -> Pool:
    """The plan carried out on this machine, as far as it went."""
    for step in plan.steps:  # what went wrong before says nothing about this time
        note_path(plan.folder, step.name).unlink(missing_ok=True)
    cores = max(machine.shares.cores, machine.jobs * machine.shares.threads)
    pool = Pool(plan.steps, plan.folder, Slots(cores, machine.jobs, machine.gpus), display, stop, fail_fast)
    pool.carry_out()
    return pool


def records_of(
    name: str, wanted: list[Wanted], out: Path, jobs: int, display: SweepDisplay, stop: Stop
) -> list[RunRecord]:
    """The records of these runs, in their order; what is not done yet is made here, on the CPU, one thread each.

    A run that diverged has a record, which says so.
    """
    machine = Machine(jobs, Shares(1, jobs, "cpu"), [])
    plan = make_plan(name, wanted, out, machine.shares)
    plan.write()
    pool = carried_out(plan, machine, fail_fast=False, display=display, stop=stop)
    raise_for(pool, plan)
    return [read_record(path if path.exists() else published_twin(path)) for path in plan.records]


def raise_for(pool: Pool, plan: Plan) -> None:
    """What was stopped or failed, in one sentence; nothing if all has come to its end."""
    if pool.last_signal is not None and (pool.waiting or any(note.code for note in pool.notes.values())):
        raise InterruptedRunError(pool.last_signal, "finished runs and the state of the others are kept")
    if pool.failed:
        first = pool.failed[0]
        raise PartlyFailedError(
            f"{len(pool.failed)} of {len(plan.steps)} steps failed, the first was {first.step}: {first.reason} "
            f"(logs: {plan.folder / LOGS}); the same command tries them again"
        )


def raise_for_diverged(pool: Pool, plan: Plan) -> None:
    """Runs that diverged, now or before, are not done, whatever else is."""
    diverged = plan.diverged + len(pool.diverged)
    if diverged:
        raise PartlyFailedError(
            f"{diverged} of {plan.runs} runs diverged and are recorded so, all others are done; the same seed gives "
            "the same end, so they are not tried again"
        )


def submitted(plan: Plan, cluster: slurm.Cluster) -> list[str]:
    """Scripts written and handed to Slurm; what to say about it."""
    waiting = slurm.queued(plan.folder)
    if waiting:
        raise UsageError(
            f"jobs of this sweep are still in the queue ({waiting[0]}{', ...' if len(waiting) > 1 else ''}): wait for "
            "them, or scancel them first"
        )
    submission = slurm.write_scripts(plan, cluster)
    jobs = slurm.submit(submission)
    return [f"{submission.folder / name}: job {job}" for name, job in jobs.items()]


def sweep_of(plan: Path) -> Path:
    """The folder of a sweep; plans of its submissions lie one level below."""
    return plan.parent.parent if plan.parent.name.startswith("slurm-") else plan.parent


def chosen_steps(
    plan: Path, names: list[str], kind: Kind | None, task: int | None, per_task: int, skip: int
) -> tuple[list[Step], dict[str, Step]]:
    """Steps by name, or those of one task of an array of a kind."""
    steps = read_plan(plan)
    by_name = {step.name: step for step in steps}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise UsageError(f"{plan} has no step '{unknown[0]}'{suggest(unknown[0], [*by_name][:1000])}")
    if names:
        return [by_name[name] for name in names], by_name
    of_kind = [step for step in steps if kind is None or step.kind == kind]
    if task is None:
        return of_kind, by_name
    start_at = skip + task * per_task
    return of_kind[start_at : start_at + per_task], by_name


def run_steps(plan: Path, steps: list[Step], known: dict[str, Step], stop: Stop, say: Callable[[str], None]) -> int:
    """Steps one after the other, in processes of their own; the exit code of the first that failed."""
    folder, worst = sweep_of(plan), 0
    for step in steps:
        state = believed_state(step)
        if state in ("done", "diverged"):
            say(f"{step.name} is {state}")
            continue
        note = carried(step, folder, known, stop)
        say(f"{step.name}: exit code {note.code}: {note.said}")
        if stop.signal is not None:
            if stop.signal == signal.SIGUSR1:
                requeue(say)
            raise InterruptedRunError(stop.signal, "the state is kept")
        worst = worst or (note.code if note.code > 0 else 1 if note.code else 0)
    return worst


def carried(step: Step, folder: Path, known: dict[str, Step], stop: Stop) -> Note:
    """One step; while another process is at it, it is waited for."""
    need = blocked_by(step, folder, known)
    if need is not None:
        blocked = blocked_note(step, need)
        write_note(folder, blocked)
        return blocked
    while True:
        running, warned = start(step, folder, {}), False
        while (note := running.ended()) is None:
            if stop.signal is not None and not warned:
                running.process.send_signal(signal.SIGTERM)
                warned = True
            time.sleep(PAUSE)
        if note.code != LockedError.code or stop.signal is not None:
            return note
        time.sleep(5)


def requeue(say: Callable[[str], None]) -> None:
    """Put this job back into Slurm's queue, where its time was up; elsewhere, nothing."""
    job = os.environ.get("SLURM_JOB_ID")
    if job and job.isdigit() and shutil.which("scontrol"):
        say(f"time is up: job {job} goes back into the queue")
        subprocess.run(["scontrol", "requeue", job], check=False)  # noqa: S603, S607 - a number that Slurm gave us
