"""The plan of a sweep: every step once, in order, and what is done is left out."""

import json
import subprocess
from pathlib import Path

import pytest
from conftest import SHORT
from hypothesis import given
from hypothesis import strategies as st
from records import make_record
from sweeps import ONE, QUICK, planned

import benchmark
from benchmark.errors import BenchError, UsageError
from benchmark.records.reading import read_record
from benchmark.sweep import steps
from benchmark.sweep.past import Past, status_of
from benchmark.sweep.plan import Step, read_plan
from benchmark.sweep.planner import make_plan, threads_begun
from benchmark.sweep.suites import Wanted


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
    done = bench("sweep", "--protocols", "cifar100-t5", "--seeds", "0-1", "--dry-run", CNCD_CACHE=str(tmp_path / "c"))
    assert "to be fetched first: vit-b16-dino, cifar100" in done.stdout
    assert not (tmp_path / "results").exists()


def test_a_run_that_was_begun_keeps_its_threads(tmp_path):
    from test_resume import stopped_halfway  # noqa: PLC0415

    state = stopped_halfway(tmp_path, threads=2)
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
    measured = {"seconds": 30.0, "session_seconds": [10.0, 1, 1], "own_memory_mb": 1000.0}
    record.model_copy(update={"provenance": record.provenance.model_copy(update=measured)}).save(tmp_path, "runs")
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
