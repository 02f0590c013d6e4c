"""The pool that carries a plan out on one machine."""

import json
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from sweeps import is_alive, wait_until

from benchmark.display import Stop
from benchmark.errors import BenchError, PartlyFailedError
from benchmark.files import is_held
from benchmark.sweep import command, steps
from benchmark.sweep.display import SweepDisplay
from benchmark.sweep.local import Pool, Slots
from benchmark.sweep.plan import Step

FAKE = """
import json, os, signal, sys, time
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
name = words["--name"]
with open("log.jsonl", "a") as log:
    line = [name, "begin", time.time(), os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ["OMP_NUM_THREADS"]]
    log.write(json.dumps(line) + "\\n")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
if words.get("--locked") and not os.path.exists(name + ".seen"):
    open(name + ".seen", "w").close()
    sys.exit(7)
time.sleep(float(words.get("--sleep", 0)))
print("bench: it went wrong" if words.get("--code") else "average accuracy 12.34")
with open("log.jsonl", "a") as log:
    log.write(json.dumps([name, "end", time.time(), None, None]) + "\\n")
if not words.get("--code"):
    open(name + ".proof", "w").close()
sys.exit(int(words.get("--code", 0)))
"""


@pytest.fixture
def pool(tmp_path, monkeypatch):
    """A pool of steps that only sleep, fail and leave files behind."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fake.py").write_text(FAKE)
    monkeypatch.setattr(steps, "bench", lambda: [sys.executable, str(tmp_path / "fake.py")])

    def make(*given: dict, jobs: int = 2, cores: int = 2, gpus: tuple[str, ...] = (), **options) -> Pool:
        planned = []
        for one in given:
            words = " ".join(f"--{key} {value}" for key, value in one.items() if key not in ("needs", "cores"))
            planned.append(
                Step(one["name"], "base", f"bench {words}", tuple(one.get("needs", ())), f"{one['name']}.proof",
                     cores=one.get("cores", 1))
            )  # fmt: skip
        slots = Slots(cores, jobs, [*gpus])
        return Pool(planned, tmp_path, slots, SweepDisplay(quiet=True), Stop(), **options)

    return make


def events(folder: Path) -> list[list]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_one_failing_step_stops_no_other_but_those_that_need_it(pool, tmp_path):
    found = pool({"name": "a", "code": 3}, {"name": "b"}, {"name": "c", "needs": ["a"]}, {"name": "d", "needs": ["b"]})
    found.carry_out()
    assert {name: note.code for name, note in found.notes.items()} == {"a": 3, "b": 0, "c": 8, "d": 0}
    assert [note.reason for note in found.failed] == ["it went wrong", "not begun: it needs a, which failed"]
    assert [name for name, what, *_ in events(tmp_path) if what == "begin"].count("c") == 0


def test_as_many_at_once_as_there_is_room_and_large_steps_get_their_turn(pool, tmp_path):
    small = [{"name": f"s{k}", "sleep": 0.3} for k in range(4)]
    pool(small[0], {"name": "large", "cores": 2, "sleep": 0.3}, *small[1:]).carry_out()
    running, most = set(), 0
    for name, what, *_ in sorted(events(tmp_path), key=lambda event: event[2]):
        (running.add if what == "begin" else running.discard)(name)
        most = max(most, len(running))
        assert "large" not in running or running == {"large"}
    assert most == 2
    order = [name for name, what, *_ in events(tmp_path) if what == "begin"]
    assert order.index("large") == 1


def test_a_step_begins_when_those_it_needs_have_ended(pool, tmp_path):
    """There is room for both at once, and the second has to wait all the same."""
    pool({"name": "a", "sleep": 0.5}, {"name": "b", "needs": ["a"]}).carry_out()
    when = {(name, what): moment for name, what, moment, *_ in events(tmp_path)}
    assert when["b", "begin"] >= when["a", "end"]


def test_a_gpu_each(pool, tmp_path):
    pool(*({"name": f"g{k}", "sleep": 0.2} for k in range(4)), jobs=2, cores=8, gpus=("3", "5")).carry_out()
    given = [gpu for _, what, _, gpu, _ in events(tmp_path) if what == "begin"]
    assert sorted(given) == ["3", "3", "5", "5"]


def test_what_another_process_did_meanwhile_is_not_done_again(pool, tmp_path):
    found = pool({"name": "a", "sleep": 1}, {"name": "b", "needs": ["a"]})
    (tmp_path / "b.proof").touch()
    found.carry_out()
    assert [name for name, what, *_ in events(tmp_path) if what == "begin"] == ["a"]
    assert found.notes["b"].said == "done by another process"


def test_a_run_that_ends_well_and_leaves_no_record_has_failed(pool, tmp_path):
    """Its method was changed after the plan was made: the record has another name."""
    found = pool({"name": "a"})
    found.steps[0] = Step("a", "run", "bench --name a", proof=str(tmp_path / "runs" / "p" / "m" / "seed0-1.json"))
    found.carry_out()
    assert [note.code for note in found.failed] == [1]
    assert "ended without leaving" in found.failed[0].reason


def test_fail_fast_begins_nothing_more(pool):
    found = pool({"name": "a", "code": 2}, *({"name": f"s{k}", "sleep": 0.2} for k in range(6)), fail_fast=True)
    found.carry_out()
    assert len(found.notes) < 7
    assert found.waiting


def test_a_step_that_another_process_is_at_is_waited_for(pool, monkeypatch):
    monkeypatch.setattr("benchmark.sweep.local.ELSEWHERE", 0.2)
    found = pool({"name": "a", "locked": 1}, {"name": "b", "needs": ["a"]})
    found.carry_out()
    assert {name: note.code for name, note in found.notes.items()} == {"a": 0, "b": 0}


@pytest.mark.parametrize(("signals", "ended"), [(1, [0, 0]), (2, [75, 75])], ids=["drains", "stops"])
def test_ctrl_c_once_drains_and_twice_stops(pool, signals, ended):
    found = pool(*({"name": f"s{k}", "sleep": 2} for k in range(4)))

    def interrupt() -> None:
        time.sleep(1.0)
        for _ in range(signals):
            found.stop.signal = signal.SIGINT
            time.sleep(0.4)

    threading.Thread(target=interrupt).start()
    began = time.monotonic()
    found.carry_out()
    assert [note.code for note in found.notes.values()] == ended
    assert len(found.waiting) == 2
    assert time.monotonic() - began < 10
    with pytest.raises(BenchError, match="finished runs and the state of the others are kept"):
        command.raise_for(found, planned_like(found))


def planned_like(pool: Pool):
    return type("Plan", (), {"steps": pool.steps, "folder": pool.folder})()


def test_a_killed_step_is_told_as_killed(pool):
    found = pool({"name": "a", "sleep": 30}, {"name": "b", "needs": ["a"]})

    def kill() -> None:
        time.sleep(1.0)
        found.running["a"].process.kill()

    threading.Thread(target=kill).start()
    found.carry_out()
    assert [note.reason for note in found.failed] == ["killed by SIGKILL"]
    assert found.notes["b"].code == 0  # it may do what it needs itself
    with pytest.raises(PartlyFailedError, match="1 of 2 steps failed, the first was a: killed by SIGKILL"):
        command.raise_for(found, planned_like(found))


def test_a_step_dies_with_its_sweep(tmp_path):
    """The parent is killed; the run saves its state and ends, and its lock is free."""
    script = tmp_path / "parent.py"
    out = tmp_path / "results"
    words = ["bench", "run", "--budget", "paper", "--views", "2", "--threads", "1", "--out", str(out)]
    script.write_text(
        "import sys, time\nfrom pathlib import Path\nfrom benchmark.sweep.steps import start\n"
        "from benchmark.sweep.plan import Step\n"
        f"running = start(Step('x', 'run', {shlex.join(words)!r}), Path({str(tmp_path)!r}), {{}})\n"
        "print(running.process.pid, flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        wait_until(lambda: [*out.glob("work/*/state.safetensors")])
        (lock,) = out.glob("work/*/lock")
        assert is_held(lock)
        parent.kill()
    wait_until(lambda: not is_alive(child))
    assert not is_held(lock)
    assert "run the same command again to resume" in (tmp_path / "logs" / "x.log").read_text()
