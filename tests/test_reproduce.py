"""`bench reproduce`: the same bits, or within the spread of the seeds, or exit code 4; commands that can be pasted."""

import json
import shlex
from pathlib import Path

import pytest
from conftest import METHODS, SHORT
from records import fading, make_record, save
from safetensors.torch import load_file, save_file

from benchmark import reproduce as remaking
from benchmark.display import Display, Stop
from benchmark.errors import DataError, UsageError
from benchmark.protocol.catalogue import load_backbone
from benchmark.publish import moved
from benchmark.records.question import Given
from benchmark.records.reading import read_record
from benchmark.records.record import record_path
from benchmark.report.runs import read_runs, require_records
from benchmark.reproduce import compared, reproduce

ROOT = Path(__file__).resolve().parents[1]


def again(results: Path, text: str = "seed0", **files: Path) -> remaking.Reproduction:
    return reproduce(results, text, **files, offline=True, display=Display(quiet=True), stop=Stop())


def test_the_same_bits_and_twice_trained_anew(short_run, tmp_path, monkeypatch):
    record = short_run(out=tmp_path, method="gm")
    trained = []
    carry = remaking.made_again
    monkeypatch.setattr(remaking, "made_again", lambda *a, **k: trained.append(carry(*a, **k)) or trained[-1])
    for _ in range(2):
        result = again(tmp_path)
        assert (result.same_bits, result.complaint) == (True, "")
    first, second = trained
    assert first.comparable() == record.comparable()
    assert first.provenance.started <= second.provenance.started
    assert first.provenance is not second.provenance


def test_other_bits_on_the_same_machine_are_no_reproduction(short_run, tmp_path):
    """The record says another loss than training gives."""
    record = short_run(out=tmp_path)
    phase = record.sessions[1].phases[0]
    terms = phase.terms | {"label": [0.123, *phase.terms["label"][1:]]}
    session = record.sessions[1].model_copy(update={"phases": (phase.model_copy(update={"terms": terms}),)})
    record.model_copy(update={"sessions": (record.sessions[0], session, record.sessions[2])}).save(tmp_path)
    result = again(tmp_path)
    assert not result.same_bits
    assert result.differs == []
    assert "the machine and the versions are those of the record, and the bits are others" in result.complaint


def test_elsewhere_the_spread_of_the_seeds_decides(tmp_path):
    """Recorded averages 84.47 + seed; now 86 or 95; the record tells another processor."""
    for seed in range(4):
        save(tmp_path, "fea", "digits-t2", seed, fading(3, 88 + seed, 2))
    runs = require_records(tmp_path).runs
    record = read_record(tmp_path / runs[0].file)
    elsewhere = {"provenance": record.provenance.model_copy(update={"machine": "abacus"})}
    for start, fine in ((90, True), (70, False)):
        now = make_record("fea", "digits-t2", 0, fading(3, start, 2)).model_copy(update=elsewhere)
        then = record.model_copy(update={"provenance": record.provenance.model_copy(update={"machine": "slide rule"})})
        result = compared(runs[0], then, now, runs)
        assert result.differs == ["machine"]
        assert not result.same_bits
        assert (result.complaint == "") == fine
        assert ("outside the spread of the recorded seeds: Average accuracy" in result.complaint) != fine
        assert "4 seeds" in result.text()
    alone = compared(runs[0], then, now, runs[:1])
    assert "fewer than two seeds are recorded" in alone.complaint


def test_a_question_that_cannot_be_asked_here(tmp_path):
    save(tmp_path, "fea", "digits-t2", 0, changed={"backbone": "theirs"})
    with pytest.raises(UsageError, match="does not say where its files are"):
        again(tmp_path)
    save(tmp_path, "mine", "digits-t2", 1)
    with pytest.raises(UsageError, match=r"type bench run --method mine\.py:CLASS"):
        again(tmp_path, "mine")
    save(tmp_path, "gm", "digits-t2", 2, status="diverged", reason="x")
    with pytest.raises(UsageError, match="diverged, not done"):
        again(tmp_path, "gm")


def test_the_base_session_is_made_again_too(short_run, tmp_path, monkeypatch):
    """A reproduction that took it from the cache would not notice that it can no longer be made."""
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    assert short_run(out=tmp_path).provenance.base_session == "trained"
    trained = []
    carry = remaking.made_again
    monkeypatch.setattr(remaking, "made_again", lambda *a, **k: trained.append(carry(*a, **k)) or trained[-1])
    for _ in range(2):
        assert again(tmp_path).same_bits
    assert [record.provenance.base_session for record in trained] == ["trained", "trained"]


def test_an_own_method_that_was_changed_is_not_run(short_run, tmp_path):
    """Its file may do anything: only the one that the record names is imported."""
    file = tmp_path / "mine.py"
    source = "from methods.kmeans import KMeans\n\n\nclass Mine(KMeans):\n    pass\n"
    file.write_text(source)
    short_run(out=tmp_path / "results", method=f"{file}:Mine")
    file.write_text(f"{source}\n# a remark\n")
    assert again(tmp_path / "results").same_bits
    file.write_text(f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n{source}")
    with pytest.raises(UsageError, match="is not the method that made the record: it was not run"):
        again(tmp_path / "results")
    assert not (tmp_path / "ran").exists()
    file.unlink()
    with pytest.raises(UsageError, match=r"the method's file .*mine\.py is not there"):
        again(tmp_path / "results")


def test_a_knob_that_is_a_mapping_is_set_as_a_whole(short_run, tmp_path):
    """`changed` tells it key by key; `--set` takes it whole."""
    file = tmp_path / "mine.py"
    file.write_text(
        "from methods.contract import knob\nfrom methods.kmeans import KMeans\n\n\nclass Mine(KMeans):\n"
        "    class Params(KMeans.Params):\n"
        "        weights: dict[str, float] = knob({'a': 1.0, 'b': 2.0}, 'ours', 'two of them')\n"
    )
    record = short_run(
        out=tmp_path / "results", method=f"{file}:Mine", settings={"weights": {"a": 1.0, "b": 3.0}, "budget.lr": 0.03}
    )
    assert record.settings["weights"] == {"a": 1.0, "b": 3.0}
    assert again(tmp_path / "results").same_bits


def test_the_command_of_a_run_of_the_suite(bench, tmp_path):
    """`bench show` prints a line; pasted, it gives the same record; reproduced, the same bits; edited, exit code 4."""
    settings = [f"--set={key}={value}" for key, value in SHORT.items()]
    done = bench("run", "--method", "simgcd", "--views", "2", *settings, "--set", "epsilon=0.1", "--threads", "1")
    assert done.returncode == 0, done.stderr
    shown = json.loads(bench("show", "simgcd", "--json").stdout)
    words = shlex.split(shown["command"])
    assert words[0] == "bench"
    assert {"epsilon=0.1", "--threads", "--device"} <= {*words}
    assert bench(*words[1:], "--out", "again").returncode == 0
    (one,), (two,) = ([*(tmp_path / out / "runs").rglob("*.json")] for out in ("results", "again"))
    assert read_record(one).comparable() == read_record(two).comparable()
    good = bench("reproduce", "simgcd")
    assert (good.returncode, good.stdout.strip()) == (0, f"{shown['name']}: the same bits")
    record = read_record(one)
    record.model_copy(update={"stored": record.stored.model_copy(update={"numbers": 7})}).save(tmp_path / "results")
    bad = bench("reproduce", "simgcd", "--json")
    assert bad.returncode == 4
    assert json.loads(bad.stdout)["same_bits"] is False
    assert bad.stderr.splitlines()[-1].startswith(f"bench: {shown['name']} was not reproduced: the machine")


def test_weights_may_lie_elsewhere_but_must_be_the_same(short_run, tmp_path):
    shipped = ROOT / "protocols" / "weights" / load_backbone("digits-vit").weights
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    first.write_bytes(shipped.read_bytes())
    short_run(out=tmp_path / "results", method="kmeans", weights=first)
    first.rename(second)
    with pytest.raises(DataError, match=f"no weight file at {first}"):
        again(tmp_path / "results")
    assert again(tmp_path / "results", weights=second).same_bits
    tensors = load_file(second)
    tensors["norm.bias"] = tensors["norm.bias"] + 1
    save_file(tensors, second)
    with pytest.raises(UsageError, match="the same question cannot be asked here: backbone"):
        again(tmp_path / "results", weights=second)


def test_published_records_hold_no_paths(tmp_path):
    record = make_record("fea", "digits-t2", 0)
    given = Given(data_dir="~/secret place", weights="w.pth")
    own = record.model_copy(update={"provenance": record.provenance.model_copy(update={"given": given})})
    assert own.command.endswith("--weights w.pth --data-dir ~/'secret place' --threads 2")
    own.save(tmp_path, "runs")
    (run,) = require_records(tmp_path).runs
    path = moved(tmp_path, run)
    assert path == record_path(tmp_path, record.question, "published")
    assert "secret" not in path.read_text()
    assert not (tmp_path / run.file).exists()
    own.save(tmp_path, "published")
    found = read_runs(tmp_path)
    assert found.runs == []
    assert "a published record must not name files of somebody's machine" in found.refused[0]


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_a_published_record_of_every_method(method, tmp_path):
    """The same bits where it was made; elsewhere within the spread."""
    (tmp_path / "published").symlink_to(ROOT / "results" / "published")
    first = min((ROOT / "results" / "published" / "digits-t2" / method).glob("seed1-*.json"))
    assert again(tmp_path, str(first)).complaint == ""
