"""Reading what came out: frames, comparisons and figures of runs."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import fading, save
from scipy import stats

import benchmark
from benchmark.errors import UsageError
from benchmark.records.results import SparseCounts
from benchmark.records.statistics import shown, t_interval
from benchmark.report.drawing import render
from benchmark.report.reading import compared, curve_picture
from benchmark.report.runs import on_new_rows, require_records


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """FEA loses 2 points a session, GM 4; GM starts 1 point higher on seed 1; an own method with one seed."""
    out = tmp_path_factory.mktemp("results")
    for seed in (0, 1, 2):
        save(out, "fea", "digits-t2", seed, fading(3, 90, 2))
        save(out, "gm", "digits-t2", seed, fading(3, 90 + 5 * (seed == 1), 4))
    save(out, "fea", "digits-t2", 0, fading(3, 80, 2), changed={"omega": 1.0})
    save(out, "fea", "digits-t2", 0, fading(3, 70, 2), budget="quick")
    save(out, "mine", "digits-t2", 0, fading(3, 60, 2), folder="runs")
    save(out, "frost", "digits-t2", 9)
    save(out, "gm", "digits-t2", 3, fading(2, 60, 2), status="partial")
    return out


def test_the_interval_is_students():
    """Against scipy's own interval of the mean, and what n = 1 and n = 2 can say."""
    values = [1.0, 2.0, 4.0, 4.5]
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert t_interval(values) == pytest.approx((low, high))
    assert t_interval([3.0]) is None
    assert t_interval([0.0, 2.0]) == pytest.approx((1 - 12.706, 1 + 12.706), abs=1e-3)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=8), st.floats(-50, 50))
def test_the_interval_moves_with_its_values(values, shift):
    low, high = t_interval(values)
    assert t_interval([value + shift for value in values]) == pytest.approx((low + shift, high + shift), abs=1e-6)
    assert low - 1e-9 <= np.mean(values) <= high + 1e-9


def test_share_on_new_rows_by_hand():
    """Classes 2 and 3 are new: 7 of their 10 images are on rows 2 and 3; those of class 0 do not count."""
    counts = SparseCounts(true=[0, 2, 2, 3], row=[2, 2, 0, 3], images=[50, 3, 3, 4])
    assert on_new_rows(counts, 2) == pytest.approx(70)


def test_a_row_for_every_session_of_every_finished_run(results):
    frame = benchmark.load(results)
    assert len(frame) == 3 * (len(require_records(results).runs) - 1)  # the partial run is left out
    row = frame[(frame["method"] == "fea") & (frame["seed"] == 1) & (frame["session"] == 2)].iloc[0]
    # digits-t2 has 60 test images of every class: 86 % is 52 of them
    assert (row["C0"], row["C1"], row["C2"]) == pytest.approx((100 * 52 / 60, 100 * 41 / 60, 70))
    assert row["overall"] == pytest.approx((6 * row["C0"] + 2 * row["C1"] + 2 * row["C2"]) / 10)
    assert row["known"] == pytest.approx((6 * row["C0"] + 2 * row["C1"]) / 8)
    assert (row["novel"], row["classes"], row["own"]) == (row["C2"], 10, False)
    first = frame[frame["session"] == 0]
    assert first[["known", "novel", "C1"]].isna().all(axis=None)
    assert {*frame[frame["own"]]["method"]} == {"mine"}


def test_paired_by_seed(results):
    (found,) = compared(results, "gm", "fea", "digits-t2", None)
    assert found.seeds == [0, 1, 2]
    frame = benchmark.load(results)
    plain = frame[(frame["variant"] == "") & (frame["environment"] == "budget paper") & (frame["session"] == 2)]
    one, two = (plain[plain["method"] == name].set_index("seed")["overall"] for name in ("gm", "fea"))
    difference = (one - two).tolist()
    line = next(line for line in found.lines if line.figure == "overall after session 2")
    assert line.difference == pytest.approx(np.mean(difference))
    assert line.interval == pytest.approx(t_interval(difference))
    assert len({*difference}) == 2  # the interval is not that of equal values
    assert "seeds 0, 1, 2 (3 shared)" in found.text("gm", "fea")


def test_a_variant_against_the_method_as_it_is(results):
    (found,) = compared(results, "fea", "fea:omega=1", None, None)
    assert (found.seeds, found.lines[0].interval) == ([0], None)
    assert "one seed says nothing about the next" in found.text("fea", "fea:omega=1")
    assert math.isclose(found.lines[0].difference, 10, abs_tol=1)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("fee", "gm", "no finished run of 'fee' as it is, did you mean 'fea'"),
        ("fea:omega=7", "gm", "no finished run of 'fea' with omega=7: `bench list runs`"),
        ("fea:omega", "gm", "write method:key=value"),
        ("frost", "gm", "'frost' and 'gm' share no protocol, group and seed"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(results, first, second, said):
    with pytest.raises(UsageError, match=said):
        compared(results, first, second, None, None)


def test_equal_differences_are_not_called_sure(tmp_path):
    for seed in (0, 1):
        save(tmp_path, "fea", "digits-t2", seed, fading(3, 90, 2))
        save(tmp_path, "gm", "digits-t2", seed, fading(3, 80, 2))
    (found,) = compared(tmp_path, "fea", "gm", None, None)
    assert found.lines[0].difference == pytest.approx(10, abs=1)
    assert "*" not in found.lines[0].cells()[3]
    with pytest.raises(UsageError, match="no run on 'cifar10-t2'; known: digits-t2"):
        compared(tmp_path, "fea", "gm", "cifar10-t2", None)


def test_two_runs_of_one_seed_are_not_guessed_between(tmp_path):
    for source in ("1" * 64, "2" * 64):
        save(tmp_path, "mine", "digits-t2", 0, source=source, folder="runs")
    save(tmp_path, "fea", "digits-t2", 0)
    with pytest.raises(UsageError, match=r"'mine' may mean .* name the one you mean .*mine@11111111"):
        compared(tmp_path, "mine", "fea", None, None)
    assert compared(tmp_path, "mine@11111111 (own)", "fea", None, None)[0].seeds == [0]


def test_figures_at_column_width_in_three_kinds(results):
    picture = curve_picture(results, ["fea", "gm"], "digits-t2", "known", None, "x")
    assert [line["label"] for line in picture.input["lines"]] == ["GM", "FEA"]
    assert [len(line["mean"]) for line in picture.input["lines"]] == [2, 2]
    kinds = ("png", "svg", "pdf")
    files = render(picture, kinds)
    assert files["png"].startswith(b"\x89PNG")
    assert files["pdf"].startswith(b"%PDF")
    assert int.from_bytes(files["png"][16:20], "big") / 200 == pytest.approx(3.4, abs=0.01)
    assert render(picture, kinds) == files
    with pytest.raises(UsageError, match="unknown figure 'knwon', did you mean 'known'"):
        curve_picture(results, [], "digits-t2", "knwon", None, "x")
    with pytest.raises(UsageError, match="no run of 'gmm', did you mean 'gm'"):
        curve_picture(results, ["fea", "gmm"], "digits-t2", "known", None, "x")
    with pytest.raises(UsageError, match="no finished run of fea on 'tiny-t2'"):
        curve_picture(results, ["fea"], "tiny-t2", "known", None, "x")


def test_the_commands(bench, results, tmp_path):
    document = json.loads(bench("compare", "gm", "fea", "--json", "--results", str(results)).stdout)
    assert document["comparisons"][0]["seeds"] == [0, 1, 2]
    assert "95 % interval" in bench("compare", "gm", "fea", "--results", str(results)).stdout
    done = bench("plot", "--methods", "fea,gm", "--metric", "novel", "--results", str(results))
    assert done.stdout.split() == [f"digits-t2-novel.{kind}" for kind in ("png", "svg", "pdf")]
    assert all((tmp_path / name).stat().st_size > 1000 for name in done.stdout.split())
    assert bench("plot", "--out", "a/b.pdf", "--results", str(results)).stdout == "a/b.pdf\n"
    assert bench("plot", "--out", "b.gif", "--results", str(results)).returncode == 2
    part = json.loads(
        bench("report", "--protocol", "digits-t2", "--method", "gm", "--json", "--results", str(results)).stdout
    )
    assert (part["records"], part["files"]) == (4, [])
    assert not (results / "report").exists()
    assert "no run of 'gmm', did you mean 'gm'" in bench("report", "--method", "gmm", "--results", str(results)).stderr
    both = bench("report", "--method", "gm", "--check", "--results", str(results))
    assert (both.returncode, "leave --protocol and --method out" in both.stderr) == (2, True)


def test_figures_are_printed_alike_whatever_the_sum_was_rounded_to():
    assert [shown(value) for value in (-0.45, -0.45 + 1e-12, -0.45 - 1e-12)] == ["-0.5"] * 3
    assert (shown(-0.04), shown(0.04, signed=True), shown(-0.04, signed=True)) == ("0.0", "0.0", "0.0")
    assert (shown(12.345, 2), shown(1, signed=True)) == ("12.35", "+1.0")
