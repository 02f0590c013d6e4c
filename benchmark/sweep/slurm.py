"""Carries out a plan on a Slurm cluster: short scripts, an array for each kind of step, submitted in order.

Nothing waits for a result: the shell that submitted may go. Arrays depend on each other by `afterany`, and every step
looks for itself at what it needs. A job whose time is almost up saves its state and puts itself back into the queue;
Slurm does so with the jobs of a node that is lost.
"""

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from benchmark.digests import digest_of
from benchmark.errors import UsageError
from benchmark.files import atomic_write, make_folder
from benchmark.sweep.plan import PLAN, Kind, Plan, Step, write_steps
from benchmark.sweep.steps import LOGS, bench

MOST_TASKS = 1000
"""Of an array: what clusters allow unless somebody raised it."""
WARNING_SECONDS = 120
"""Before its time is up, a job is warned."""
PASSED_ON = ("CNCD_CACHE", "CNCD_DATA", "CNCD_OFFLINE", "PYTHONPATH")
"""Variables that decide where things lie: jobs have them even where Slurm hands no environment on."""
LEAST_MINUTES, MOST_MINUTES = 15, 24 * 60


@dataclass(frozen=True)
class Cluster:
    """How jobs are asked for."""

    parallel: int = 0
    """Tasks of an array at once; 0: as many as there is room for."""
    runs_per_job: int = 1
    minutes: int | None = None
    """None: three times as long as such steps took before, a day if nobody knows."""
    options: tuple[str, ...] = ()
    """Further lines for sbatch, such as `--partition=gpu`."""
    gpu: bool = False


@dataclass(frozen=True)
class Script:
    """One array of jobs."""

    kind: Kind
    name: str
    text: str


@dataclass
class Submission:
    """Scripts of a plan, and the jobs they became."""

    folder: Path
    scripts: list[Script]
    jobs: dict[str, str] = field(default_factory=dict)


def chunks(steps: list[Step], size: int) -> list[list[Step]]:
    return [steps[start : start + size] for start in range(0, len(steps), size)]


def minutes_for(steps: list[Step], cluster: Cluster) -> int:
    if cluster.minutes is not None:
        return cluster.minutes
    known = [step.seconds for step in steps]
    if any(seconds is None for seconds in known):
        return MOST_MINUTES
    longest = cluster.runs_per_job * max(seconds or 0.0 for seconds in known)
    return max(LEAST_MINUTES, int(3 * longest / 60) + LEAST_MINUTES)


def quoted_pattern(path: Path) -> str:
    """A path for a line of sbatch, which expands % and divides at spaces."""
    return shlex.quote(str(path).replace("%", "%%"))


def script(plan: Plan, plan_file: Path, kind: Kind, number: int, steps: list[Step], cluster: Cluster) -> Script:
    """An array: task k carries out the steps from k * runs_per_job on."""
    per_job = cluster.runs_per_job if kind in ("base", "run") else 1
    tasks = -(-len(steps) // per_job)
    limit = f"%{cluster.parallel}" if cluster.parallel else ""
    minutes = minutes_for(steps, cluster)
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name=cncd-{plan.name}-{kind}",
        f"#SBATCH --array=0-{tasks - 1}{limit}",
        f"#SBATCH --cpus-per-task={max(step.cores for step in steps)}",
        f"#SBATCH --mem={max(step.memory_mb for step in steps)}M",
        f"#SBATCH --time={minutes // 60:02d}:{minutes % 60:02d}:00",
        *(["#SBATCH --gres=gpu:1"] if cluster.gpu else []),
        f"#SBATCH --signal=B:USR1@{WARNING_SECONDS}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        f"#SBATCH --output={quoted_pattern(plan.folder.resolve() / LOGS)}/slurm-%A_%a.out",
        *(f"#SBATCH {option}" for option in cluster.options),
        "",
        *(f"export {name}={shlex.quote(value)}" for name in PASSED_ON if (value := os.environ.get(name))),
        f"cd {shlex.quote(str(Path.cwd()))}",
        f"exec {shlex.join(bench())} step {shlex.quote(str(plan_file.resolve()))} --kind {kind} "
        f'--task "$SLURM_ARRAY_TASK_ID" --per-task {per_job} --skip {number * MOST_TASKS * per_job}',
        "",
    ]
    return Script(kind, f"{kind}-{number:02d}.sbatch", "\n".join(lines))


def write_scripts(plan: Plan, cluster: Cluster) -> Submission:
    """Scripts, and the plan they belong to, in a folder of their own: a later plan does not change it."""
    folder = make_folder(plan.folder / f"slurm-{digest_of([step.line() for step in plan.steps])[:8]}")
    make_folder(plan.folder / LOGS)
    plan_file = write_steps(folder / PLAN, plan.steps)
    scripts = []
    for kind in ("bank", "base", "run"):
        per_job = cluster.runs_per_job if kind != "bank" else 1
        for number, steps in enumerate(chunks(plan.of(kind), MOST_TASKS * per_job)):
            made = script(plan, plan_file, kind, number, steps, cluster)
            atomic_write(folder / made.name, made.text.encode())
            scripts.append(made)
    return Submission(folder, scripts)


def submit(submission: Submission) -> dict[str, str]:
    """Hand the scripts to sbatch, each kind after the one before; the job of each script."""
    if shutil.which("sbatch") is None:
        raise UsageError(
            f"there is no sbatch on this machine: submit the scripts in {submission.folder} where there is"
        )
    before: list[str] = []
    last: Kind | None = None
    current: list[str] = []
    for made in submission.scripts:
        if made.kind != last:
            before, current, last = current or before, [], made.kind
        dependency = [f"--dependency=afterany:{':'.join(before)}"] if before else []
        words = ["sbatch", "--parsable", *dependency, str(submission.folder / made.name)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 - our own script
        if done.returncode:
            said = " ".join(done.stderr.split())
            gone = (
                f"; cancel what was submitted: scancel {' '.join(submission.jobs.values())}" if submission.jobs else ""
            )
            raise UsageError(f"sbatch refused {made.name}: {said}{gone}")
        job = done.stdout.strip().partition(";")[0]
        submission.jobs[made.name] = job
        current.append(job)
        known = "".join(f"{each}\n" for each in submission.jobs.values())
        atomic_write(submission.folder / "jobs.txt", known.encode())
    return submission.jobs


def queued(folder: Path) -> list[str]:
    """Jobs of earlier submissions that squeue still knows; nothing if it cannot be asked."""
    known = [job for file in folder.glob("slurm-*/jobs.txt") for job in file.read_text(encoding="utf-8").split()]
    if not known or shutil.which("squeue") is None:
        return []
    words = ["squeue", "--noheader", "--format=%i %T", f"--jobs={','.join(known)}"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    except subprocess.TimeoutExpired:
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []
