"""Sweeps: which runs are wanted, what must be done for them, and that it gets done whatever happens on the way."""

import json
import math
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import SHORT
from hypothesis import given
from hypothesis import strategies as st
from records import make_record

import benchmark
from benchmark.display import Stop
from benchmark.errors import BenchError, PartlyFailedError, UsageError
from benchmark.files import is_held, lock_at
from benchmark.records.reading import read_record
from benchmark.sweep import command, slurm, steps
from benchmark.sweep.display import SweepDisplay
from benchmark.sweep.local import Pool, Slots
from benchmark.sweep.past import Past, status_of
from benchmark.sweep.plan import Step, read_plan
from benchmark.sweep.planner import Shares, make_plan, threads_begun
from benchmark.sweep.status import read_status
from benchmark.sweep.suites import Block, Common, Wanted, load_suite, seeds_of, several, suite_names, wanted_runs

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).parent
ONE = Shares(threads=1, cores=2, device="cpu")
QUICK = {"budget": "quick", "views": 2}


# ---- which runs


def test_seeds_and_values_as_people_write_them():
    assert seeds_of("0-2,7, 9-9") == [0, 1, 2, 7, 9]
    assert several("omega=0,0.5,1") == ("omega", [0, 0.5, 1])
    assert several('m={a: 1, b: [2, 3]},{a: 2},"x,y"') == ("m", [{"a": 1, "b": [2, 3]}, {"a": 2}, "x,y"])
    for text in ("", "2-1", "a", "-1", "1-99999999"):
        with pytest.raises(UsageError, match="numbers and ranges"):
            seeds_of(text)
    assert several("x=[[1,2],[3]],4") == ("x", [[[1, 2], [3]], 4])
    for text in ("omega", "=1", "omega=[1", "omega=1,,2"):
        with pytest.raises(UsageError, match="--set"):
            several(text)


def test_every_combination_once_seeds_outermost():
    """Stopped anywhere, no method has two seeds more than another."""
    block = Block(methods="a,b", protocols=["p"], seeds="0-1", grid={"omega": (0, 1)}, params=("x",))
    runs = wanted_runs((block, Block(methods=("c",), protocols=("p",), seeds=(1, 2))), Common(budget="quick"))
    told = [(run.seed, run.method, run.settings.get("omega")) for run in runs]
    assert told == [
        *((0, m, o) for o in (0, 1) for m in "ab"),
        *((1, m, o) for o in (0, 1) for m in "ab"),
        (1, "c", None),
        (2, "c", None),
    ]
    assert {run.budget for run in runs} == {"quick"}


@pytest.mark.parametrize("name", suite_names())
def test_suites_of_the_package_ask_what_can_be_asked(name, tmp_path):
    """Every run of them is a question; those of real images need not be here."""
    blocks = load_suite(name).runs
    plan = make_plan(name, wanted_runs(blocks, Common()), tmp_path, ONE)
    combinations = [len(b.methods) * len(b.protocols) * len(b.seeds) * len(b.settings) for b in blocks]
    grids = [math.prod(map(len, b.grid.values())) * max(1, len(b.params)) for b in blocks]
    assert plan.runs == sum(a * b for a, b in zip(combinations, grids, strict=True))


def test_the_suites_of_the_paper_are_its_tables():
    assert len(wanted_runs(load_suite("paper").runs, Common())) == 7 * 7 * 3
    omega = {run.settings["omega"] for run in wanted_runs(load_suite("omega").runs, Common())}
    assert omega == {0, 0.5, 1, 2, 4}
    assert {*load_suite("smoke").runs[0].methods} == {*load_suite("paper").runs[0].methods}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: mine\ntitle: x\nruns: []", "runs"),
        ("name: mine\ntitle: x\nruns: [{methods: [fea], protocols: [digits-t2]}]", "key 'runs.0.seeds' is missing"),
        ("name: mine\ntitle: x\nruns: [{methods: [fea], protocols: [a], seeds: 2-1}]", "numbers and ranges"),
        ("name: mine\ntitle: x\nruns: [{methods: [fea], protocol: [a], seeds: 0}]", "did you mean 'protocols'"),
        (
            "name: mine\ntitle: x\nruns: [{methods: [a], protocols: [a], seeds: 0, grid: {omega: []}}]",
            "at least 1 item",
        ),
        ("name: mine\ntitle: x\nruns: [{methods: [a], protocols: [a], seeds: true}]", "seeds"),
        ("name: other\ntitle: x\nruns: [{methods: [fea], protocols: [a], seeds: 0}]", "must equal the file's name"),
        ("name: ../x\ntitle: x\nruns: [{methods: [fea], protocols: [a], seeds: 0}]", "name"),
        ("- 1", "expected a mapping"),
    ],
)
def test_what_is_wrong_with_a_suite_is_one_sentence(tmp_path, text, said):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        load_suite(str(path))


# ---- what must be done for them


def planned(out: Path, methods: str = "kmeans,gaussian", seeds: str = "0-1", **more):
    block = Block(methods=methods, protocols=("digits-t2",), seeds=seeds, **QUICK, **more)
    return make_plan("x", wanted_runs((block,), Common()), out, ONE)


def test_a_plan_has_every_step_once_and_in_order(tmp_path, monkeypatch):
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    plan = planned(tmp_path)
    assert [step.kind for step in plan.steps] == ["base", "run", "run"] * 2  # seed by seed
    bases, runs = plan.of("base"), plan.of("run")
    assert [run.needs for run in runs] == [(bases[0].name,)] * 2 + [(bases[1].name,)] * 2
    assert runs[0].command == (
        "bench run --method kmeans --protocol digits-t2 --views 2 --seed 0 --budget quick --threads 1 --device cpu "
        f"--out {tmp_path}"
    )
    assert read_plan(plan.write()) == plan.steps


def test_one_run_trains_its_own_base_session(tmp_path):
    plan = planned(tmp_path, methods="kmeans", seeds="0")
    assert [step.kind for step in plan.steps] == ["run"]


def test_the_proofs_are_what_the_commands_leave_behind(tmp_path, monkeypatch):
    """Each command of a plan, carried out; then nothing is left to plan."""
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    plan = planned(tmp_path / "results", seeds="0", settings=({}, {"budget.base_epochs": 1}))
    assert len(plan.of("base")) == 2
    for step in plan.steps:
        assert not Path(step.proof).exists()
        subprocess.run([*steps.bench(), *step.words], check=True, capture_output=True)
        assert Path(step.proof).exists(), step
    again = planned(tmp_path / "results", seeds="0", settings=({}, {"budget.base_epochs": 1}))
    assert (again.runs, again.done, again.steps) == (4, 4, [])
    bases = [read_record(Path(step.proof)).provenance.base_session for step in plan.of("run")]
    assert bases == ["cached"] * 4  # the step before had trained it


def test_what_is_published_is_done_and_what_is_damaged_is_not(tmp_path):
    record = make_record("fea", "digits-t2", 0)
    wanted = [Wanted("fea", "digits-t2", 0)]
    own, published = record.save(tmp_path, "runs"), record.save(tmp_path, "published")
    for path, state in ((own, "done"), (published, "done")):
        assert status_of(path) == state
    own.unlink()
    # a record made of counts does not hold the digest of the real images: the same run, asked for by its key
    assert make_plan("x", wanted, tmp_path, ONE).runs == 1
    run = planned(tmp_path, methods="kmeans", seeds="0").of("run")[0]
    real = benchmark.run("kmeans", "digits-t2", 0, threads=1, out=tmp_path, **QUICK).path(tmp_path)
    assert str(real) == run.proof
    assert planned(tmp_path, methods="kmeans", seeds="0").done == 1
    text = real.read_text()
    real.write_text(text.replace('"seed": 0', '"seed": 1', 1))
    assert planned(tmp_path, methods="kmeans", seeds="0").done == 0
    target = tmp_path / "published" / real.relative_to(tmp_path / "runs")
    target.parent.mkdir(parents=True)
    real.unlink()
    target.write_text(text)
    assert planned(tmp_path, methods="kmeans", seeds="0").done == 1


def test_banks_of_two_number_formats_are_two_steps_and_a_hold_out_is_fetched_once(tmp_path, monkeypatch):
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    rounded = {"shared.trunk": "bfloat16"}
    wanted = [Wanted("fea", "cifar100-holdout-t2", 0, settings=settings) for settings in ({}, rounded)]
    plan = make_plan("x", [*wanted, Wanted("fea", "cifar100-t5", 0, backbone="vit-s14-dinov2-112")], tmp_path, ONE)
    assert plan.missing == ["vit-s14-dinov2-112", "cifar100"]
    banks = {step.name: step.command for step in plan.of("bank")}
    assert len(banks) == 3
    assert [("--set shared.trunk=bfloat16" in command) for command in banks.values()] == [False, True, False]
    assert {name for step in plan.of("run") for name in step.needs if name.startswith("bank/")} == {*banks}
    for step in (*plan.of("bank"), *plan.of("run")):  # none begins before its images are here
        assert {"fetch/vit-s14-dinov2-112", "fetch/cifar100"} < {*step.needs, "itself"}, step.name


def test_a_part_of_the_images_has_a_bank_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    settings: list[dict] = [{}, {"shared.images": 1000}]
    plan = make_plan("x", [Wanted("fea", "cifar10-t1", 0, settings=own) for own in settings], tmp_path, ONE)
    whole, part = plan.of("bank")
    assert "shared.images" not in whole.command
    assert "--set shared.images=1000" in part.command
    assert all("fetch/cifar10" in step.needs for step in (whole, part))


def test_missing_data_and_weights_are_steps_and_offline_a_sentence(bench, tmp_path, monkeypatch):
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    plan = make_plan("x", [Wanted("fea", "cifar100-t5", seed) for seed in (0, 1)], tmp_path, ONE)
    assert [step.kind for step in plan.steps] == ["fetch", "fetch", "bank", "run", "run"]
    assert plan.missing == ["vit-b16-dino", "cifar100"]
    assert {"fetch/vit-b16-dino", "fetch/cifar100"} < {*plan.steps[-1].needs}
    done = bench("sweep", "--protocols", "cifar100-t5", "--seeds", "0-1", "--offline", CNCD_CACHE=str(tmp_path / "c"))
    assert done.returncode == 3
    assert done.stderr == (
        "bench: vit-b16-dino, cifar100 must be fetched first: leave --offline out, or use `bench fetch`\n"
    )
    told = bench("sweep", "--protocols", "cifar100-t5", "--seeds", "0-1", "--dry-run", CNCD_CACHE=str(tmp_path / "c"))
    assert "to be fetched first: vit-b16-dino, cifar100" in told.stdout
    assert not (tmp_path / "results").exists()


def test_a_run_that_was_begun_keeps_its_threads(tmp_path):
    from test_resume import stopped_halfway  # noqa: PLC0415

    state = stopped_halfway(tmp_path)
    assert threads_begun(state) == 2
    state.rename(state.with_name("state-before.safetensors"))  # killed between two renames
    plan = make_plan("x", [Wanted("fea", "digits-t2", 0, views=2, settings=SHORT)], tmp_path, ONE)
    assert [step.cores for step in plan.steps] == [2]
    assert "--threads 2" in plan.steps[0].command
    for content in (b"", b"\xff" * 100, b"\x02\0\0\0\0\0\0\0{}"):
        state.write_bytes(content)
        assert threads_begun(state) is None


def test_how_long_it_takes_is_what_it_took(tmp_path):
    record = make_record("fea", "digits-t2", 0)
    told = {"seconds": 30.0, "session_seconds": [10.0, 1, 1], "own_memory_mb": 1000.0}
    record.model_copy(update={"provenance": record.provenance.model_copy(update=told)}).save(tmp_path, "runs")
    took = Past.of_results(tmp_path).of(record.question)
    assert (took.seconds, took.base_seconds, took.memory_mb) == (30, 10, 2500)
    other = make_record("fea", "digits-t2", 1, changed={"omega": 1.0})
    assert Past.of_results(tmp_path).of(other.question).seconds == 30  # the same method, protocol and budget
    assert Past.of_results(tmp_path).of(make_record("gm", "digits-t2", 0).question).seconds is None
    (tmp_path / "runs" / "odd.json").write_text('{\n"status": "done",\n"question": 7}')
    assert Past.of_results(tmp_path).of(record.question).seconds == 30


def test_a_base_session_is_the_one_that_its_runs_need(tmp_path, monkeypatch):
    """The paper's budget with all values of the quick one: what changed, seen from either, is not the same."""
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    settings = {"budget.base_epochs": 3, "budget.novel_epochs": 20, "budget.lr": 0.003, "budget.base_lr": 0.03}
    runs = [Wanted(method, "digits-t2", 7, views=2, settings=settings) for method in ("kmeans", "gaussian")]
    (base,) = make_plan("x", runs, tmp_path / "results", ONE).of("base")
    done = subprocess.run([*steps.bench(), *base.words], check=True, capture_output=True, text=True)
    assert Path(done.stdout.strip()) == Path(base.proof).parent
    assert Path(base.proof).exists()


def test_an_odd_record_does_not_stop_planning(tmp_path):
    record = make_record("kmeans", "digits-t2", 0, budget="quick", changed={"views": 2})
    path = record.save(tmp_path, "runs")
    path.write_text(path.read_text().replace('"own_memory_mb": null', '"own_memory_mb": "x"'))
    assert '"own_memory_mb": "x"' in path.read_text()
    assert planned(tmp_path, methods="kmeans", seeds="1").runs == 1


STEP = Step("p/m/seed0-1", "run", "bench run", proof="results/runs/p/m/seed0-1.json")


@pytest.mark.parametrize(
    "change",
    [
        {"command": 7},
        {"command": "bench run '"},
        {"command": "bash -c x"},
        {"proof": "c.json"},
        {"proof": 7},
        {"name": 7},
        {"kind": "dance"},
        {"needs": "x" * 3},
        {"cores": "many"},
    ],
    ids=str,
)
def test_a_hostile_plan_is_one_sentence(tmp_path, change):
    path = tmp_path / "plan.jsonl"
    path.write_text(STEP.line() + "\n" + json.dumps(json.loads(STEP.line()) | change))
    with pytest.raises(UsageError, match="is not a plan"):
        read_plan(path)
    path.write_text("[" * 5000)
    with pytest.raises(UsageError, match="is not a plan"):
        read_plan(path)
    path.write_text(STEP.line())
    assert read_plan(path) == [STEP]


@pytest.mark.parametrize("note", ["{}", "7", '{"code": "bad"}', "[" * 5000])
def test_a_hostile_note_says_nothing(tmp_path, note):
    path = steps.note_path(tmp_path, "x")
    path.parent.mkdir()
    path.write_text(note)
    assert steps.read_note(tmp_path, "x") is None
    assert steps.Note("x", -999, "", 0.0, "").reason == "killed by signal 999"


@given(st.binary(max_size=300))
def test_a_foreign_plan_is_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("plan") / "plan.jsonl"
    path.write_bytes(b"{" + content)
    with pytest.raises(BenchError):
        read_plan(path)


def test_a_plan_holds_nothing_but_bench_commands(tmp_path):
    path = tmp_path / "plan.jsonl"
    path.write_text(Step("x", "run", "rm -rf /").line())
    with pytest.raises(UsageError, match="something else than bench commands"):
        read_plan(path)


# ---- that it gets done


FAKE = """
import json, os, signal, sys, time
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
name = words["--name"]
with open("log.jsonl", "a") as log:
    told = [name, "begin", time.time(), os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ["OMP_NUM_THREADS"]]
    log.write(json.dumps(told) + "\\n")
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

    def make(*told: dict, jobs: int = 2, cores: int = 2, gpus: tuple[str, ...] = (), **options) -> Pool:
        planned = []
        for one in told:
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


def wait_until(condition, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


SWEEP = ("sweep", "--methods", "kmeans,gaussian", "--seeds", "0-1", "--budget", "quick", "--views", "2", "--jobs", "2")


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
    told = json.loads(bench("sweep", "--status", "--json").stdout)
    assert told["counts"] == {"done": 4, "diverged": 0, "running": 0, "failed": 0, "stopped": 0, "waiting": 0}
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
    told = [*steps.bench(), "sweep", "--status", "--json", "--out", str(tmp_path / "results")]
    assert json.loads(subprocess.run(told, capture_output=True, text=True, check=True).stdout)["counts"]["done"] == 1
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


def equal_to_single_runs(folder: Path) -> int:
    """How many records there are, each equal to that of a run on its own with one thread."""
    paths = sorted(folder.rglob("*.json"))
    for path in paths:
        record = read_record(path)
        asked = record.question
        single = benchmark.run(asked.method, "digits-t2", asked.seed, budget="quick", threads=1, out=Path("single"))
        assert single.comparable() == record.comparable(), path
    return len(paths)


def children_of(parent: int) -> list[int]:
    """Processes that a process has started."""
    told = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(word) for word in told.split()]


# ---- on a cluster


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
