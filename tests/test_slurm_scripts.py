"""What a sweep gives to Slurm, and what its jobs do; tests/test_slurm.py has a real one."""

import os
import re
import signal
import stat
import subprocess
from pathlib import Path

from sweeps import ONE, SWEEP, planned, wait_until

import benchmark
from benchmark.files import lock_at
from benchmark.records.reading import read_record
from benchmark.sweep import command, slurm, steps
from benchmark.sweep.plan import read_plan
from benchmark.sweep.planner import make_plan
from benchmark.sweep.status import read_status
from benchmark.sweep.suites import Wanted


def test_scripts_are_short_and_say_what_is_asked(tmp_path, monkeypatch):
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    plan = planned(Path("results"), methods="kmeans,gaussian,fea", seeds="0-1")
    made = slurm.write_scripts(plan, slurm.Cluster(parallel=4, runs_per_job=2, minutes=90, options=("--partition=p",)))
    assert [script.name for script in made.scripts] == ["base-00.sbatch", "run-00.sbatch"]
    text = (made.folder / "run-00.sbatch").read_text()
    assert len(text.splitlines()) < 20
    for line in ("--array=0-2%4", "--cpus-per-task=1", "--time=01:30:00", "--requeue", "--partition=p"):
        assert f"#SBATCH {line}\n" in text
    assert "#SBATCH --signal=B:USR1@120\n" in text
    last = text.splitlines()[-1]
    assert last.endswith('--kind run --task "$SLURM_ARRAY_TASK_ID" --per-task 2 --skip 0')
    steps_of, _ = command.chosen_steps(made.folder / "plan.jsonl", [], "run", 2, 2, 0)
    assert steps_of == plan.of("run")[4:6]
    assert command.sweep_of(made.folder / "plan.jsonl") == plan.folder
    (plan.folder / "plan.jsonl").write_text("")  # a later plan does not change what was submitted
    assert read_plan(made.folder / "plan.jsonl") == plan.steps


def test_more_tasks_than_an_array_may_have(tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "MOST_TASKS", 2)
    monkeypatch.chdir(tmp_path)
    plan = planned(Path("results"), seeds="0-4")
    made = slurm.write_scripts(plan, slurm.Cluster(runs_per_job=2))
    runs = [script.text for script in made.scripts if script.kind == "run"]
    found = []
    for text in runs:
        tasks = int(re.search(r"--array=0-(\d+)", text)[1]) + 1
        skip = int(re.search(r"--skip (\d+)", text)[1])
        for task in range(tasks):
            found += command.chosen_steps(made.folder / "plan.jsonl", [], "run", task, 2, skip)[0]
    assert found == plan.of("run")
    assert len(runs) == 3


def fake_slurm(folder: Path) -> Path:
    """sbatch, squeue and scontrol that write down how they were called."""
    folder.mkdir()
    answers = {"sbatch": "echo $((100 + $(wc -l < $0.log)))", "squeue": "cat $0.answer 2>/dev/null", "scontrol": ":"}
    for name, answer in answers.items():
        path = folder / name
        path.write_text(f'#!/bin/bash\necho "$@" >> $0.log\n{answer}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return folder


def test_submitted_in_order_and_not_twice(bench, tmp_path, monkeypatch):
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    fakes = fake_slurm(tmp_path / "bin")
    path = f"{fakes}:{os.environ['PATH']}"
    words = (*SWEEP, "--engine", "slurm", "--name", "s")
    done = bench(*words, PATH=path)
    assert done.returncode == 0, done.stderr
    first, second = (fakes / "sbatch.log").read_text().splitlines()
    assert first.startswith("--parsable results/sweeps/s/slurm-")
    assert first.endswith("base-00.sbatch")
    assert second.startswith("--parsable --dependency=afterany:101 ")
    assert "run-00.sbatch: job 102" in done.stdout
    (fakes / "squeue.answer").write_text("102_[0-3] PENDING\n")
    again = bench(*words, PATH=path)
    assert again.returncode == 2
    assert "jobs of this sweep are still in the queue (102_[0-3] PENDING)" in again.stderr
    assert "in the queue: 102_[0-3] PENDING" in bench("sweep", "--status", "--name", "s", PATH=path).stdout
    assert (fakes / "sbatch.log").read_text().count("\n") == 2
    (fakes / "sbatch").write_text("#!/bin/bash\necho 'no such partition' >&2; exit 1\n")
    (fakes / "squeue.answer").write_text("")
    refused = bench(*words, PATH=path)
    assert (refused.returncode, "sbatch refused base-00.sbatch: no such partition" in refused.stderr) == (2, True)


def test_a_job_whose_time_is_up_saves_its_state_and_queues_again(tmp_path):
    """SIGUSR1 comes before the limit; SIGTERM is scancel, and nobody wants that back."""
    fakes = fake_slurm(tmp_path / "bin")
    plan = make_plan("x", [Wanted("fea", "digits-t2", 0, views=2)], tmp_path / "results", ONE)
    path = plan.write()
    words = [*steps.bench(), "step", str(path), "--kind", "run", "--task", "0"]
    variables = os.environ | {"PATH": f"{fakes}:{os.environ['PATH']}", "SLURM_JOB_ID": "77"}
    for sent, queued in ((signal.SIGTERM, []), (signal.SIGUSR1, ["requeue 77"])):
        before = [*(tmp_path / "results").glob("work/*/state.safetensors")]
        times = [one.stat().st_mtime_ns for one in before]
        process = subprocess.Popen(words, env=variables, stderr=subprocess.PIPE, text=True)
        wait_until(
            lambda times=times: (
                [one.stat().st_mtime_ns for one in (tmp_path / "results").glob("work/*/state.safetensors")] != times
            )
        )
        process.send_signal(sent)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 75, errors
        log = fakes / "scontrol.log"
        assert (log.read_text().splitlines() if log.exists() else []) == queued
    status = read_status(plan.folder)
    assert [each.state for each in status.states] == ["stopped"]
    (lock,) = (tmp_path / "results").glob("work/*/lock")
    with lock_at(lock).acquire(timeout=0):
        assert [each.state for each in read_status(plan.folder).states] == ["running"]


def test_two_that_do_the_same_without_locks_do_no_harm(tmp_path, monkeypatch):
    """On a file system without locks a second process begins the same run in the middle of the first."""
    import errno  # noqa: PLC0415
    import fcntl  # noqa: PLC0415

    from benchmark.display import Display  # noqa: PLC0415

    def unsupported(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    settings = {"budget.base_epochs": 1, "budget.novel_epochs": 4}
    twice = []

    class Meanwhile(Display):
        def say(self, text: str) -> None:
            if text.startswith("session 1:") and not twice:
                twice.append(None)
                twice[0] = benchmark.run("fea", settings=settings, views=2, out=tmp_path / "two", threads=1)

    first = benchmark.run(
        "fea", settings=settings, views=2, out=tmp_path / "two", threads=1, display=Meanwhile(quiet=True)
    )
    alone = benchmark.run("fea", settings=settings, views=2, out=tmp_path / "one", threads=1)
    assert first.comparable() == twice[0].comparable() == alone.comparable()
    assert read_record(first.path(tmp_path / "two")).comparable() == alone.comparable()
    assert not [*tmp_path.rglob("*.part")]
