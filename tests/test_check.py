"""The regression gate: what it lets pass, what it does not, and what it says."""

import json
import statistics

import pytest
from conftest import METHODS
from records import make_record

from benchmark import check
from benchmark.check import Figures, Verdict, compare, digest
from benchmark.errors import RegressionError, UsageError


def runs(figures: dict[int, float], method: str = "fea", mark: str = "") -> check.Runs:
    """Runs of one method, each figure the same number; the digest follows from it, unless marked."""
    return {
        method: {
            seed: Figures(average_accuracy=x, average_forgetting=x, average_discovery=x, digest=f"{x}{mark}")
            for seed, x in figures.items()
        }
    }


GOLDEN = {1: 90.0, 2: 90.5, 3: 91.0, 4: 90.0, 5: 91.0}


def moved(now: check.Runs, golden: dict[int, float] = GOLDEN, *, exact: bool) -> bool:
    return any(verdict.moved for verdict in compare(runs(golden), now, exact=exact))


def test_on_the_same_machine_every_bit_counts():
    same = {seed: GOLDEN[seed] for seed in (1, 2, 3)}
    assert not moved(runs(same), exact=True)
    assert moved(runs(same | {2: 90.50001}), exact=True)
    assert moved(runs(same, mark="other loss curves"), exact=True)  # the figures alone would look the same


@pytest.mark.parametrize(("shift", "expected"), [(0.0, False), (1.9, False), (-1.9, False), (2.1, True), (-2.1, True)])
def test_elsewhere_two_points_are_allowed_if_seeds_agree(shift, expected):
    mean = statistics.mean(GOLDEN.values())
    assert moved(runs(dict.fromkeys((1, 2, 3), mean + shift), mark="other bits"), exact=False) == expected


def test_elsewhere_three_deviations_are_allowed_if_seeds_do_not():
    wide = {1: 80.0, 2: 84.0, 3: 88.0, 4: 92.0, 5: 96.0}
    mean, allowed = statistics.mean(wide.values()), 3 * statistics.stdev(wide.values())
    assert not moved(runs(dict.fromkeys((1, 2, 3), mean - allowed + 0.1)), wide, exact=False)
    assert moved(runs(dict.fromkeys((1, 2, 3), mean - allowed - 0.1)), wide, exact=False)


def test_the_table_says_from_where_to_where():
    verdicts = compare(runs(GOLDEN), runs(dict.fromkeys((1, 2, 3), 80.0)), exact=False)
    table = check.to_table(verdicts)
    assert "90.50 -> 80.00 (-10.50, allowed 2.00)" in table
    assert table.splitlines()[-1].endswith("moved")
    assert Verdict("fea", "x", 1.0, 1.0, 2.0, moved=False).text == "1.00"


@pytest.fixture
def golden(tmp_path, monkeypatch):
    """A golden file of two methods, made here, and runs that give what is asked for instead of training."""
    measured = runs(GOLDEN) | runs(GOLDEN, "kmeans")
    monkeypatch.setattr(
        check, "measure_all", lambda names, seeds, _: {n: {s: measured[n][s] for s in seeds} for n in names}
    )
    monkeypatch.setattr(check.methods, "entries", lambda: dict.fromkeys(measured))
    path = tmp_path / "golden.json"
    check.check(path, [], update=True)
    return path, measured


def test_checked_against_what_was_just_written(golden):
    path, _ = golden
    result = check.check(path, [], update=False)
    assert (result.exact, result.moved, result.unknown, result.complaint) == (True, [], [], "")
    assert "exactly: same machine and versions" in result.text()
    assert json.loads(json.dumps(result.document()))["moved"] == []


def test_one_other_bit_is_told(golden):
    path, measured = golden
    measured["fea"][2] = measured["fea"][2].model_copy(update={"digest": "other"})
    result = check.check(path, [], update=False)
    assert (result.moved, result.complaint) == (["fea"], "figures moved: fea")
    assert check.check(path, ["kmeans"], update=False).complaint == ""
    document = json.loads(json.dumps(result.document()))
    assert [row["method"] for row in document["figures"] if row["moved"]] == ["fea"] * 3


def test_update_shows_the_difference_and_is_the_new_truth(golden):
    path, measured = golden
    measured["fea"][2] = measured["fea"][2].model_copy(update={"average_accuracy": 50.0, "digest": "other"})
    assert check.check(path, [], update=True).moved == ["fea"]
    assert check.check(path, [], update=False).moved == []


@pytest.mark.parametrize("names", [[], ["kmeans"]])
def test_a_method_without_golden_figures_is_a_complaint(golden, names):
    """Also when only that method is asked for: nothing to compare with is not a pass."""
    path, _ = golden
    document = json.loads(path.read_text())
    del document["runs"]["kmeans"]
    path.write_text(json.dumps(document))
    assert "do not have the same methods: kmeans" in check.check(path, names, update=False).complaint


def test_the_digest_sees_counts_and_losses_and_not_diagnostics(short_run):
    record = short_run()
    last = record.sessions[-1]
    phase = last.phases[0]

    def changed(**update):
        return digest(record.model_copy(update={"sessions": (*record.sessions[:-1], last.model_copy(update=update))}))

    terms = phase.terms | {"replay": [*phase.terms["replay"][:-1], 0.123]}
    more = last.counts.model_copy(update={"images": [last.counts.images[0] + 1, *last.counts.images[1:]]})
    assert changed(counts=more) != digest(record)
    assert changed(phases=(phase.model_copy(update={"terms": terms}),)) != digest(record)
    assert changed(phases=(phase.model_copy(update={"diagnostics": {}}),)) == digest(record)


def test_the_golden_file_knows_every_method_and_five_seeds():
    golden = check.read_golden(check.golden_path())
    assert sorted(golden.runs) == METHODS
    assert all(sorted(figures) == [1, 2, 3, 4, 5] for figures in golden.runs.values())
    assert (golden.protocol, golden.budget) == (check.PROTOCOL, check.BUDGET)


def test_a_figure_that_moved_ends_with_exit_code_4(bench, tmp_path):
    """The real command, from nothing; a fingerprint of nowhere, so that it is compared within tolerance."""
    golden = json.loads(check.golden_path().read_text())
    golden["fingerprint"] = {"processor": "abacus"}
    for figures in golden["runs"]["kmeans"].values():
        figures["average_discovery"] -= 30
    (tmp_path / "moved.json").write_text(json.dumps(golden))
    cache = tmp_path / "cache"
    done = bench("check", "--method", "kmeans", "--golden", "moved.json", "--json", CNCD_CACHE=str(cache))
    assert done.returncode == 4
    assert not cache.exists()  # base sessions are trained too: a cached one could hide a fault
    document = json.loads(done.stdout)
    assert (document["moved"], document["exact"]) == (["kmeans"], False)
    assert [row["metric"] for row in document["figures"] if row["moved"]] == ["Average discovery (AvD)"]
    assert done.stderr.strip() == "bench: figures moved: kmeans; if that is meant: bench check --update"


@pytest.mark.parametrize(
    ("names", "update", "content", "said"),
    [
        (["fae"], False, None, "unknown method 'fae', did you mean 'fea'"),
        (["fea"], True, None, "leave --method out"),
        ([], False, None, "there are no golden figures"),
        ([], False, "{", "cannot be read"),
        ([], False, '{"schema": 1}', "are missing"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(tmp_path, names, update, content, said):
    path = tmp_path / "golden.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=said):
        check.check(path, names, update=update)


def test_golden_figures_that_lack_a_seed_are_refused(tmp_path):
    golden = json.loads(check.golden_path().read_text())
    del golden["runs"]["fea"]["2"]
    path = tmp_path / "golden.json"
    path.write_text(json.dumps(golden))
    with pytest.raises(UsageError, match="lacks seeds"):
        check.check(path, [], update=False)


def test_a_method_that_diverges_is_a_regression():
    record = make_record("fea", "digits-t2", 1, [], status="diverged", reason="term 'css' is nan")
    with pytest.raises(RegressionError, match="fea diverged with seed 1: term 'css' is nan"):
        check.figures_of(record)
