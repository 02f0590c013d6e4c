"""A run that was stopped, however and whenever, ends with the record of one that was not."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import METHODS, SHORT, PowerCut
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import benchmark
from benchmark.digests import SEAL
from benchmark.engine import checkpoint
from benchmark.engine.feed import BaseFeed, NovelFeed
from benchmark.engine.request import ask
from benchmark.errors import DivergedError, UsageError
from benchmark.records import provenance
from benchmark.records import record as record_module
from benchmark.records.reading import read_record
from benchmark.records.record import record_path
from methods.gm import GM

COMMAND = [sys.executable, "-m", "benchmark.cli", "run", "--views", "2", "--threads", "1"]


def cut_after(steps: int, monkeypatch) -> None:
    """Die in the `steps`-th batch from now on."""
    left = steps
    for feed in (BaseFeed, NovelFeed):

        def batch(self, epoch, step, original=feed.batch):
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerCut
            return original(self, epoch, step)

        monkeypatch.setattr(feed, "batch", batch)


def cut_writing(files: int, monkeypatch) -> None:
    """Die before the `files`-th file from now on is written: a state or a record."""
    left = files
    for module in (checkpoint, record_module):

        def write(path, content, before=None, original=module.atomic_write):
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerCut
            original(path, content, before)

        monkeypatch.setattr(module, "atomic_write", write)


TWO_PHASES = f"{Path(__file__).parent / 'two_phases.py'}:TwoPhases"


@pytest.mark.parametrize("method", [*METHODS, TWO_PHASES])
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    cuts=st.lists(st.tuples(st.sampled_from(["step", "write"]), st.integers(0, 40)), min_size=1, max_size=4),
    every_step=st.booleans(),
)
def test_cut_anywhere_and_resumed(method, unbroken, tmp_path_factory, cuts, every_step):
    """Cut before a step or before a file is written: 40 of either cover all three sessions of a short run."""
    out, cache = tmp_path_factory.mktemp("cut"), tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CNCD_CACHE", str(cache))
        patch.setattr(checkpoint, "SECONDS_BETWEEN_EPOCH_SAVES", 0.0)
        patch.setattr(checkpoint, "SECONDS_BETWEEN_SAVES", 0.0 if every_step else 60.0)
        for where, count in cuts:
            with pytest.MonkeyPatch.context() as fault:
                (cut_after if where == "step" else cut_writing)(count, fault)
                try:
                    benchmark.run(method, settings=SHORT, views=2, out=out)
                except PowerCut:
                    continue
        record = benchmark.run(method, settings=SHORT, views=2, out=out)
    assert record.comparable() == unbroken(method).comparable()


@pytest.mark.parametrize("where", ["before the merge is prepared", "before its first step", "after its first step"])
@pytest.mark.parametrize("session", [1, 2])
def test_cut_between_the_phases_of_gm(where, session, unbroken, tmp_path, monkeypatch):
    """Pseudo-labels, exemplars and class means are made between the phases: they must come back as they were."""
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN_SAVES", 0.0)
    with pytest.MonkeyPatch.context() as fault:
        prepared = GM.prepare

        def prepare(self, own, phase):
            reached = own.number == session and phase.name == "merge"
            if reached and where == "before the merge is prepared":
                raise PowerCut
            prepared(self, own, phase)
            if reached:
                cut_after(0 if where == "before its first step" else 1, fault)

        fault.setattr(GM, "prepare", prepare)
        with pytest.raises(PowerCut):
            benchmark.run("gm", settings=SHORT, views=2, out=tmp_path)
    record = benchmark.run("gm", settings=SHORT, views=2, out=tmp_path)
    assert record.provenance.attempts == 2
    assert record.comparable() == unbroken("gm").comparable()


def test_resuming_does_not_start_over(tmp_path, monkeypatch):
    """The test above would pass if every attempt began anew; it does not."""
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN_SAVES", 0.0)
    with pytest.MonkeyPatch.context() as fault:
        cut_after(5, fault)  # the base session is in the cache
        with pytest.raises(PowerCut):
            benchmark.run(settings=SHORT | {"budget.base_epochs": 0}, views=2, out=tmp_path)
    with pytest.MonkeyPatch.context() as fault:
        cut_after(24 - 5, fault)
        record = benchmark.run(settings=SHORT | {"budget.base_epochs": 0}, views=2, out=tmp_path)
    assert record.optimiser_steps == 24
    assert record.provenance.attempts == 2


def test_finished_run_answers_at_once_and_leaves_no_state(short_run, tmp_path, monkeypatch):
    first = short_run(out=tmp_path)
    cut_after(0, monkeypatch)
    assert short_run(out=tmp_path).comparable() == first.comparable()
    assert not list((tmp_path / "work").glob("*/*.safetensors"))


def stopped_halfway(out: Path, threads: int | None = None) -> Path:
    """A run cut in session 1; where its state is."""
    with pytest.MonkeyPatch.context() as fault:
        fault.setattr(checkpoint, "SECONDS_BETWEEN_SAVES", 0.0)
        cut_after(15, fault)
        with pytest.raises(PowerCut):
            benchmark.run(settings=SHORT, views=2, out=out, threads=threads)
    (state,) = out.glob("work/*/state.safetensors")
    return state


def test_state_of_another_question_is_refused_with_the_difference(tmp_path):
    state = stopped_halfway(tmp_path)
    with safe_open(state, framework="pt") as file:
        metadata = dict(file.metadata())
    metadata["question"] = metadata["question"].replace('"omega": 2.0', '"omega": 4.0')
    write_state(state, load_file(state), metadata)
    with pytest.raises(UsageError, match=r"params\.omega is 4\.0 there and 2\.0 here"):
        benchmark.run(settings=SHORT, views=2, out=tmp_path)


def write_state(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    """A state file with the seal that belongs to it."""
    notes = {name: text for name, text in metadata.items() if name != SEAL}
    save_file(tensors, path, metadata=notes | {SEAL: checkpoint.state_digest(tensors, notes)})


def test_damaged_state_is_moved_aside_and_its_work_done_again(unbroken, tmp_path, caplog):
    state = stopped_halfway(tmp_path)
    half = state.read_bytes()[: state.stat().st_size // 2]
    state.write_bytes(half)
    record = benchmark.run(settings=SHORT, views=2, out=tmp_path)
    assert record.comparable() == unbroken("fea").comparable()
    assert state.with_name("state.safetensors.damaged").read_bytes() == half
    assert "is damaged: moved aside" in caplog.text


@pytest.mark.parametrize(
    "change",
    [{"session": 9}, {"session": -1}, {"phase": -7}, {"step": -1}, {"session": "1"}, {"terms": []}, {"shapes": 1}],
    ids=str,
)
def test_progress_out_of_range_is_damage(unbroken, tmp_path, change):
    """A state whose seal fits and whose progress cannot be: as any other damage."""
    state = stopped_halfway(tmp_path)
    with safe_open(state, framework="pt") as file:
        metadata = dict(file.metadata())
    metadata["progress"] = json.dumps(json.loads(metadata["progress"]) | change)
    write_state(state, load_file(state), metadata)
    record = benchmark.run(settings=SHORT, views=2, out=tmp_path)
    assert record.comparable() == unbroken("fea").comparable()
    assert state.with_name("state.safetensors.damaged").exists()


def test_a_run_is_not_resumed_by_other_code(tmp_path, monkeypatch):
    """What two codes made together would be recorded as the work of one."""
    state = stopped_halfway(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(provenance, "engine_source", lambda: "other")
        with pytest.raises(UsageError, match=rf"begun by other code.*remove {state.parent} to start over"):
            benchmark.run(settings=SHORT, views=2, out=tmp_path)
    assert benchmark.run(settings=SHORT, views=2, out=tmp_path).provenance.attempts == 2


def test_a_state_with_other_fields_is_other_codes_and_not_damage(tmp_path):
    """Whoever goes back to that code finds it where it was."""
    state = stopped_halfway(tmp_path)
    with safe_open(state, framework="pt") as file:
        notes = dict(file.metadata())
    notes["progress"] = json.dumps(json.loads(notes["progress"]) | {"logs": []})
    del notes[SEAL]
    save_file(load_file(state), state, notes | {SEAL: checkpoint.state_digest(load_file(state), notes)})
    content = state.read_bytes()
    with pytest.raises(UsageError, match=rf"saved by other code of the suite: go back.*remove {state.parent}"):
        benchmark.run(settings=SHORT, views=2, out=tmp_path)
    assert state.read_bytes() == content


def test_a_run_goes_on_with_the_threads_it_was_begun_with(tmp_path):
    """The last bits depend on them: another number is refused, for what is unfinished and for what is finished."""
    stopped_halfway(tmp_path)
    with pytest.raises(UsageError, match=r"begun with 1 threads.*here are 2: go on with --threads 1"):
        benchmark.run(settings=SHORT, views=2, out=tmp_path, threads=2)
    benchmark.run(settings=SHORT, views=2, out=tmp_path, threads=1)
    with pytest.raises(UsageError, match=r"finished, with --threads 1.*ask with --threads 1"):
        benchmark.run(settings=SHORT, views=2, out=tmp_path, threads=2)
    assert benchmark.run(settings=SHORT, views=2, out=tmp_path).provenance.threads == 1


def test_full_disk_keeps_the_last_good_state(tmp_path, monkeypatch):
    """ENOSPC while saving: nothing is lost, the run goes on once there is room."""
    state = stopped_halfway(tmp_path)
    before = state.read_bytes()
    with pytest.MonkeyPatch.context() as fault:
        fault.setattr(checkpoint, "SECONDS_BETWEEN_SAVES", 0.0)
        fault.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space left"):
            benchmark.run(settings=SHORT, views=2, out=tmp_path)
    assert state.read_bytes() == before
    assert benchmark.run(settings=SHORT, views=2, out=tmp_path).status == "done"


def test_divergence_is_recorded_and_the_last_good_state_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN_SAVES", 0.0)
    cls = ask("fea").method.cls
    original, calls = cls.losses, []

    def losses(self, batch):
        calls.append(1)
        terms = original(self, batch)
        return terms | {"css": terms["css"] * float("nan")} if len(calls) == 8 else terms

    monkeypatch.setattr(cls, "losses", losses)
    with pytest.raises(DivergedError, match="term 'css' is nan in session 1"):
        benchmark.run(settings=SHORT, views=2, out=tmp_path)
    record = read_record(record_path(tmp_path, ask("fea", views=2, settings=SHORT).question))
    assert record.status == "diverged"
    assert len(record.sessions) == 1
    (state,) = tmp_path.glob("work/*/state.safetensors")
    assert all(torch.isfinite(t).all() for t in load_file(state).values() if t.is_floating_point())


def test_two_processes_one_trains(tmp_path, bench):
    """The second leaves at once with exit code 7; the first is not disturbed."""
    out = tmp_path / "results"
    words = [*COMMAND, "--out", str(out), "--set", "budget.novel_epochs=10"]
    first = subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: list(out.glob("work/*/lock")), first)
        first.send_signal(signal.SIGSTOP)  # or it might be done before the second has loaded its libraries
        second = subprocess.run(words, capture_output=True, text=True, check=False)
        first.send_signal(signal.SIGCONT)
        assert second.returncode == 7
        assert "another process is working on this run" in second.stderr
        assert first.wait(timeout=240) == 0
    finally:
        first.kill()


def wait_for(condition, process, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "the run ended before it could be disturbed"
        assert time.monotonic() < end
        time.sleep(0.02)


def state_times(out: Path) -> list[int]:
    return [path.stat().st_mtime_ns for path in out.glob("work/*/state.safetensors")]


def killed_and_resumed(out: Path, kills: int, epochs: int, threads: int) -> None:
    """Real SIGKILLs at random moments while the state file keeps changing."""
    words = [*COMMAND[:-1], str(threads), "--out", str(out), "--set", f"budget.novel_epochs={epochs}"]
    moments = random.Random(kills)
    done = 0
    while done < kills:
        process = subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        started = state_times(out)
        try:
            wait_for(lambda old=started: state_times(out) != old, process)
        except AssertionError:
            break  # finished before it could be killed once more
        time.sleep(moments.uniform(0, 2.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
        done += 1
    assert done >= min(kills, 2)
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("kills", "epochs", "threads"),
    [(2, 80, 2), pytest.param(10, 400, 1, marks=pytest.mark.long)],
    ids=["few", "ten"],
)
def test_killed_for_real_and_resumed(tmp_path, kills, epochs, threads):
    killed_and_resumed(tmp_path / "killed", kills, epochs, threads)
    whole = benchmark.run(views=2, threads=threads, settings={"budget.novel_epochs": epochs}, out=tmp_path / "whole")
    (path,) = (tmp_path / "killed").glob("runs/*/*/*.json")
    resumed = read_record(path)
    assert resumed.comparable() == whole.comparable()
    assert resumed.provenance.attempts > 1


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_signals_save_and_say_so(tmp_path, sent, code):
    out = tmp_path / "results"
    words = [*COMMAND, "--out", str(out), "--set", "budget.novel_epochs=60"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_for(lambda: list(out.glob("work/*/state.safetensors")), process)
    process.send_signal(sent)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert "run the same command again to resume" in errors
    assert "Traceback" not in errors
