"""`bench sweep` from end to end."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from sweeps import QUICK, SWEEP, equal_to_single_runs, wait_until

import benchmark
from benchmark.records.reading import read_record
from benchmark.sweep import steps

HERE = Path(__file__).parent


def test_the_command_and_again_and_its_status(bench, tmp_path, monkeypatch):
    """Records equal those of single runs; the second time nothing is left to do."""
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    done = bench(*SWEEP)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^run +4 *$", done.stdout, flags=re.MULTILINE)
    assert "[6/6] done digits-t2/" in done.stderr
    assert "average accuracy" in done.stderr
    paths = sorted((tmp_path / "results" / "runs").rglob("*.json"))
    assert len(paths) == 4
    for path in paths:
        record = read_record(path)
        single = benchmark.run(
            record.question.method, "digits-t2", record.question.seed, threads=1, out=tmp_path / "single", **QUICK
        )
        assert single.comparable() == record.comparable()
        assert record.provenance.threads == 1
    again = bench(*SWEEP)
    assert (again.returncode, "4 done, 0 to do" in again.stderr) == (0, True)
    status = json.loads(bench("sweep", "--status", "--json").stdout)
    assert status["counts"] == {"done": 4, "diverged": 0, "running": 0, "failed": 0, "stopped": 0, "waiting": 0}
    assert bench("sweep", "--status", "--name", "nothing").returncode == 2


def test_it_can_be_asked_and_carried_out_from_anywhere(bench, tmp_path, monkeypatch):
    """Paths of a plan are seen from where it was made; a damaged record is made again by a step, too."""
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    words = ("sweep", "--methods", "kmeans", "--seeds", "0", "--budget", "quick", "--views", "2", "--name", "x")
    assert bench(*words).returncode == 0
    (path,) = (tmp_path / "results" / "runs").rglob("*.json")
    whole = path.read_text()
    path.write_text(whole.replace('"seed": 0', '"seed": 1', 1))
    elsewhere = tmp_path / "else"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    words = [*steps.bench(), "sweep", "--status", "--json", "--out", str(tmp_path / "results")]
    assert json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)["counts"]["done"] == 1
    plan = tmp_path / "results" / "sweeps" / "x" / "plan.jsonl"
    for said in ("exit code 0", "is done"):
        done = subprocess.run([*steps.bench(), "step", str(plan)], capture_output=True, text=True, check=True)
        assert said in done.stderr
    assert read_record(path).question.seed == 0
    assert [*elsewhere.iterdir()] == []


def test_runs_that_diverge_are_told_each_time_and_not_tried_again(bench, tmp_path):
    settings = ("--set", "budget.lr=100", "--set", "fd=sq_l2", "--set", "lambda_fd=1e30")
    words = ("sweep", "--methods", "fea", "--seeds", "0", "--budget", "quick", "--views", "2", *settings, "--json")
    for begun in (True, False):
        done = bench(*words)
        assert done.returncode == 8, done.stderr
        assert json.loads(done.stdout)["counts"]["diverged"] == 1
        assert done.stderr.splitlines()[-1].startswith("bench: 1 of 1 runs diverged and are recorded so")
        assert ("[1/1] diverged digits-t2/fea/seed0" in done.stderr) == begun


def test_misspelt_names_are_told(bench):
    for words, said in (
        (("--suite", "smoke", "--methods", "fea,gmm"), "the suite 'smoke' has no 'gmm', did you mean 'gm'"),
        (("--set", "omega=1", "--set", "omega=2"), "'omega' is given twice"),
        (("--set", "omega=1,,2"), "no value between two commas"),
        (("--threads", "100000"), "give at most"),
        (("--device", "abacus"), "'abacus' is not usable here"),
        (("--engine", "magic"), "must be local or slurm"),
    ):
        done = bench("sweep", *words)
        assert (done.returncode, said in done.stderr, done.stderr.count("\n")) == (2, True, 1), done.stderr


def test_a_broken_method_fails_alone_and_is_tried_again(bench, tmp_path):
    (tmp_path / "mine.py").write_text((HERE / "broken.py").read_text())
    words = (*SWEEP[:1], "--methods", "mine.py:Fails,kmeans", *SWEEP[3:], "--name", "mixed")
    done = bench(*words)
    assert done.returncode == 8
    last = done.stderr.splitlines()[-1]
    assert re.match(r"bench: 2 of \d steps failed, the first was digits-t2/mine/.*AttributeError", last)
    assert len([*(tmp_path / "results" / "runs").rglob("*.json")]) >= 2
    status = bench("sweep", "--status", "--name", "mixed").stdout
    assert "failed digits-t2/mine/seed0" in status
    dry = json.loads(bench(*words, "--dry-run", "--json").stdout)
    assert (dry["runs"], dry["done"]) == (4, 2)
    again = bench(*words, "--retry-failed")
    assert again.returncode == 8
    assert bench(*SWEEP, "--name", "fine").returncode == 0
    assert "no step" in bench(*SWEEP, "--name", "fine", "--retry-failed").stderr


@pytest.mark.long
def test_killed_three_times_it_ends_complete(tmp_path, monkeypatch):
    """The sweep, then with a worker, then a worker alone, by SIGKILL; started again each time, nothing is lost."""
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    words = [*steps.bench(), "sweep", "--suite", "smoke", "--methods", "fea,gm,frost,simgcd,autonovel,kmeans"]
    words += ["--jobs", "2", "--name", "killed"]
    for victims in (("parent",), ("worker", "parent"), ("worker",)):
        done = len([*Path("results/runs").rglob("*.json")])
        parent = subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
        wait_until(lambda done=done: len([*Path("results/runs").rglob("*.json")]) >= done + 3)
        workers = children_of(parent.pid)
        assert workers
        for victim in victims:
            os.kill(parent.pid if victim == "parent" else workers[0], signal.SIGKILL)
        assert parent.wait(timeout=300) == (8 if victims == ("worker",) else -signal.SIGKILL)
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0
    assert equal_to_single_runs(Path("results/runs")) == 18


def children_of(parent: int) -> list[int]:
    """Processes that a process has started."""
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(word) for word in text.split()]
