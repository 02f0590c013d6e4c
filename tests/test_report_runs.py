"""Which runs a table counts, ranks and compares."""

import re

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import fading, make_record, save
from reports import line, lines

from benchmark.protocol.protocols import load_protocol
from benchmark.report import PAGE, compose, stale, write
from benchmark.report.frames import REFERENCE, VALUES, printed, sharing, status
from benchmark.report.table import number, to_csv, to_latex, to_markdown
from benchmark.report.tables import column_ranks


def test_only_reference_runs_meet_the_paper(tmp_path):
    save(tmp_path, "fea", "cifar100-t5", 0)
    save(tmp_path, "fea", "cifar100-t5", 1, changed={"backbone": "small"})
    save(tmp_path, "fea", "cifar100-t5", 2, changed={"omega": 3.0})
    save(tmp_path, "fea", "cifar100-t5", 3, budget="quick")
    save(tmp_path, "fea", "cifar100-t5", 4, images=((3, 3), (10, 10)), changed={"views": "live"})
    report = compose(tmp_path)
    cells = report.cells[report.cells["runs"] > 0]
    assert {*cells[cells["paper"].notna()]["group"]} == {REFERENCE}
    assert {*cells["runs"]} == {1}
    accuracy, changed = (next(t for t in report.tables if t.name == name) for name in ("accuracy", "changed"))
    headings = [section.heading for section in accuracy.sections]
    assert len(headings) == 4  # the run with another omega stands in the table of changed parameters
    assert sum("Not comparable with the paper" in text for text in headings) == 3
    assert [section.rows[0][1].text for section in changed.sections] == ["omega=3.0"]


def test_diverged_runs_are_counted_not_averaged(tmp_path):
    save(tmp_path, "fea", "cifar10-t2", 0)
    save(tmp_path, "fea", "cifar10-t2", 1, status="diverged", reason="term 'label' is nan")
    save(tmp_path, "gm", "cifar10-t2", 0)
    save(tmp_path, "frost", "cifar10-t2", 0, status="partial")
    report = compose(tmp_path)
    assert "div (1/2)" in report.text
    cell = report.cells.query("method == 'fea' and metric == 'average_accuracy' and protocol == 'cifar10-t2'").iloc[0]
    assert (cell["runs"], cell["diverged"], cell["rank"], cell["status"]) == (2, 1, 0, "off")
    frost = report.cells.query("method == 'frost' and protocol == 'cifar10-t2'")
    assert {*frost["status"]} == {"not run"}


def test_a_run_that_diverged_at_once_is_reported_too(tmp_path):
    save(tmp_path, "fea", "digits-t2", 0)
    save(tmp_path, "gm", "digits-t2", 0, [], status="diverged", reason="at once")
    write(compose(tmp_path), tmp_path)
    assert "div (1/1)" in (tmp_path / "tables" / "own.md").read_text()
    assert "at once" in (tmp_path / PAGE).read_text()


def test_best_and_second_by_the_printed_figure(tmp_path):
    for method, start in (("gm", 80.0), ("fea", 90.0), ("frost", 90.0), ("kmeans", 70.0)):
        for seed in (0, 1):
            save(tmp_path, method, "digits-t2", seed, fading(3, start, 2))
    save(tmp_path, "fea", "digits-t2", 0, fading(3, 99, 1), changed={"omega": 9.0})
    cells = compose(tmp_path).cells.query("protocol == 'digits-t2' and metric == 'average_accuracy'")
    ranks = {(row.method, row.variant): row.rank for row in cells.itertuples()}
    expected = {("fea", ""): 1, ("frost", ""): 1, ("gm", ""): 2, ("kmeans", ""): 0, ("fea", "omega=9.0"): 0}
    assert ranks == expected


def test_ranks_go_by_what_is_printed():
    """80.035 is stored a little below itself and printed as 80.03, like 80.03: both are best."""
    assert (number(80.035), printed(80.035), printed(80.03)) == ("80.03", 80.03, 80.03)
    means = [80.035, 80.03, 79.0, 99.0]
    cells = pd.DataFrame(
        {"variant": ["", "a", "b", "c"], "diverged": [0, 0, 0, 1], "mean": means}
        | {VALUES: [{0: mean, 1: mean} for mean in means]}
    )
    assert column_ranks(cells) == {"": 1, "a": 1, "b": 2}


def test_ranks_are_taken_over_the_seeds_that_all_share(tmp_path):
    """FEA is ahead over all its seeds, GM over the two that they share; FRoST has one seed and is not ranked."""
    for seed, start in ((0, 80), (1, 80), (2, 99), (3, 99)):
        save(tmp_path, "fea", "digits-t2", seed, fading(3, start, 2))
    for seed in (0, 1):
        save(tmp_path, "gm", "digits-t2", seed, fading(3, 85, 2))
    save(tmp_path, "frost", "digits-t2", 0, fading(3, 98, 2))
    report = compose(tmp_path)
    cells = report.cells.query("metric == 'average_accuracy' and protocol == 'digits-t2'").set_index("method")
    assert cells["mean"]["fea"] > cells["mean"]["gm"]
    assert {name: cells["rank"][name] for name in ("gm", "fea", "frost")} == {"gm": 1, "fea": 2, "frost": 0}
    assert {name: cells["ranked over"][name] for name in ("gm", "fea", "frost")} == {
        "gm": "0 1",
        "fea": "0 1",
        "frost": "",
    }
    own = next(table for table in report.tables if table.name == "own")
    assert own.sections[0].heading.endswith("Ranks: seeds 0 1")
    rows = {row[0].text: row[3] for row in own.sections[0].rows}
    assert (rows["FRoST"].rank, rows["FRoST"].text.endswith("(one seed)")) == (0, True)
    assert "values" not in to_csv(own).splitlines()[0]


@given(
    seeds=st.dictionaries(st.text("abc", min_size=1, max_size=3), st.sets(st.integers(0, 6), max_size=6), max_size=6)
)
def test_who_is_ranked_shares_at_least_two_seeds(seeds):
    compared, common = sharing(seeds)
    assert (len(compared) > 1) == (len(common) > 1)
    assert all({*common} <= seeds[key] for key in compared)
    pairs = [(one, two) for one in seeds for two in seeds if one < two and len(seeds[one] & seeds[two]) > 1]
    assert bool(compared) == bool(pairs)


def test_what_diverged_has_a_status_but_no_difference(tmp_path):
    for seed in range(3):
        status_now = "diverged" if seed == 0 else "done"
        save(tmp_path, "fea", "cifar100-t5", seed, status=status_now, changed={"bap": False})
        save(tmp_path, "fea", "cifar100-t5", seed, status=status_now)
    write(compose(tmp_path), tmp_path)
    cells = [*lines(tmp_path, "ablation", protocol="cifar100-t5"), *lines(tmp_path, "accuracy", method="fea")]
    ran = [cell for cell in cells if cell["runs"] == "3"]
    assert [(cell["status"], cell["difference"], cell["diverged"]) for cell in ran] == [("off", "", "1")] * 3
    for table in ("ablation", "accuracy"):
        text = (tmp_path / "tables" / f"{table}.md").read_text()
        assert "div (1/3)" in text
        assert re.search(r"\| difference \|.* off ", text)


def test_dirty_and_mixed_commits_are_marked(tmp_path):
    save(tmp_path, "fea", "digits-t2", 0, commit="a" * 40)
    save(tmp_path, "fea", "digits-t2", 1, commit="b" * 40)
    save(tmp_path, "gm", "digits-t2", 0, dirty=True)
    save(tmp_path, "frost", "digits-t2", 0)
    own = next(table for table in compose(tmp_path).tables if table.name == "own")
    rows = {row[0].text: row[3].text for row in own.sections[0].rows}
    assert rows["FEA"].endswith("(2)¶")
    assert rows["GM"].endswith("(one seed)§")
    assert rows["FRoST"].endswith("(one seed)")
    assert rows["k-means (floor)"] == ""


def test_runs_that_share_a_name_only_are_distinctly_named(tmp_path):
    save(tmp_path, "mine", "digits-t2", 0)
    save(tmp_path, "mine", "digits-t2", 1, version=2)
    save(tmp_path, "mine", "digits-t2", 0, version=2, source="6" * 64)
    save(tmp_path, "gm", "digits-t2", 0)
    report = compose(tmp_path)
    plain = report.cells.query("protocol == 'digits-t2' and variant == ''")
    edited, old, new = sorted(
        {*plain["method"]} - {"gm"}, key=lambda name: ("6" not in name[:12], "@" not in name[8:], name)
    )
    assert edited == "mine@66666666"  # another file
    assert re.fullmatch(r"mine@55555555@[0-9a-f]{6}", old)
    assert new == "mine@55555555"  # the latest version keeps the plain name
    drawn = next(picture for picture in report.pictures if picture.name.startswith("accuracy"))
    assert {(line["method"], line["runs"]) for line in drawn.input["panels"][0]["lines"]} == {
        (edited, 1),
        (old, 1),
        (new, 1),
        ("gm", 1),
    }


def test_a_variant_is_paired_with_its_own_version(tmp_path):
    for version, seeds in ((1, (0, 1)), (2, (1,))):
        for seed in seeds:
            save(tmp_path, "mine", "digits-t2", seed, version=version, changed={"x": None})
    save(tmp_path, "mine", "digits-t2", 1, version=2, changed={"x": 1})
    pairs = next(table.frame for table in compose(tmp_path).tables if table.name == "comparisons")
    assert {*pairs[pairs["variant"] != ""]["seeds"]} == {1}


def test_own_runs_stand_apart_and_are_marked(tmp_path):
    for seed in (1, 2):
        save(tmp_path, "fea", "digits-t2", seed)
    save(tmp_path, "fea", "digits-t2", 0, fading(3, 70, 2), folder="runs")
    save(tmp_path, "mine", "digits-t2", 0, fading(3, 60, 2), folder="runs")
    save(tmp_path, "fea", "digits-t2", 0, changed={"omega": 1.0}, folder="runs")
    save(tmp_path, "fea", "cifar100-t5", 0, folder="runs")
    save(tmp_path, "fea", "cifar100-t5", 0, changed={"bap": False}, folder="runs")
    report = compose(tmp_path)
    own = next(table for table in report.tables if table.name == "own")
    rows = {row[0].text: row[3].text for row in own.sections[0].rows}
    assert [*rows] == ["FEA", "FEA (own)", "k-means (floor)", "Gaussian (floor)", "mine@55555555 (own)"]
    assert rows["FEA"].endswith("(2)")
    assert rows["FEA (own)"].endswith("(one seed)")
    cells = report.cells[report.cells["method"] == "fea (own)"]
    assert {*cells[cells["paper"].notna()]["protocol"]} == {"cifar100-t5"}  # own runs meet the paper too
    text = report.text
    assert "FEA (own)" in text.split("Ablation of FEA")[0]
    assert "(own)" in text.split("Ablation of FEA")[1].split("Weight of BAP")[0]
    alone = compose(tmp_path, own=False)
    assert len(alone.runs) == 2
    assert not any("(own)" in table for name, table in alone.table_files().items() if name.endswith(".csv"))


def test_a_repeated_run_is_told_and_not_counted_twice(tmp_path):
    save(tmp_path, "fea", "digits-t2", 1)
    save(tmp_path, "gm", "digits-t2", 1)
    save(tmp_path, "fea", "digits-t2", 1, folder="runs")
    save(tmp_path, "gm", "digits-t2", 1, fading(3, 50, 2), folder="runs")
    report = compose(tmp_path)
    assert (len(report.runs), report.refused) == (2, [])
    same, other = report.repeated
    assert "repeats published/digits-t2/fea" in same
    assert same.endswith("its counts are the same")
    assert other.endswith("its counts are others")


def test_an_edited_protocol_does_not_stop_the_report(tmp_path):
    """Same names, another number of sessions: two cells, and both are drawn."""
    save(tmp_path, "fea", "digits-t2", 0)
    for sessions in (2, 3):
        protocol = load_protocol("digits-t2").model_copy(update={"name": "mine-t2", "sessions": (6, 2, 2)[:sessions]})
        record = make_record("fea", "digits-t2", 0)
        question = record.question.model_copy(update={"protocol": protocol.identity})
        own = record.own.model_copy(update={"protocol": protocol})
        changes = {"question": question, "key": question.key, "own": own, "sessions": record.sessions[:sessions]}
        record.model_copy(update=changes).save(tmp_path)
    report = compose(tmp_path)
    assert (len(report.runs), report.refused) == (3, [])
    write(report, tmp_path)
    assert stale(report, tmp_path) == []


def test_paired_differences_take_equal_seeds_alone(tmp_path):
    for seed in (0, 1, 2):
        save(tmp_path, "fea", "digits-t2", seed, [[90], [90, 90], [90, 90, 90 + seed * 5 / 3]])
    for seed in (1, 2, 7):
        save(tmp_path, "gm", "digits-t2", seed, [[90], [90, 90], [90, 90, 90]])
    save(tmp_path, "fea", "digits-t2", 1, [[90], [90, 90], [90, 90, 60]], changed={"css": False})
    write(compose(tmp_path), tmp_path)
    found = line(tmp_path, "comparisons", metric="average_discovery", variant="")
    # by seed: (5/3)/2 and (10/3)/2 points more in the mean of two sessions, so the standard error is 5/12
    assert (found["first"], found["second"], found["seeds"]) == ("fea", "gm", "2")
    values = [float(found[key]) for key in ("mean", "low", "high")]
    assert values == pytest.approx([1.25, 1.25 - 12.7062 * 5 / 12, 1.25 + 12.7062 * 5 / 12], abs=1e-3)
    changed = line(tmp_path, "comparisons", metric="average_discovery", variant="css=false")
    assert (changed["seeds"], changed["low"]) == ("1", "")
    assert float(changed["mean"]) == pytest.approx((60 - 90 - 5 / 3) / 2, abs=1e-3)


def test_the_probe_stands_beside_the_method_and_is_not_ranked(tmp_path):
    """Own AvD 90, the probe's 75 and 90: 15 and 0 less; Student's reach is 12.706 standard errors."""
    own = [[90], [90, 90], [90, 90, 90]]
    save(tmp_path, "fea", "digits-t2", 0, own, probe=[[90], [90, 90], [90, 90, 60]])
    save(tmp_path, "fea", "digits-t2", 1, own, probe=own)
    save(tmp_path, "gm", "digits-t2", 0, own)  # made before there was a probe
    report = compose(tmp_path)
    write(report, tmp_path)
    found = line(tmp_path, "probe", metric="average_discovery")
    values = [float(found[key]) for key in ("own", "probe", "mean", "low", "high")]
    reach = 12.7062 * (7.5 * 2**0.5) / 2**0.5
    assert values == pytest.approx([90, 82.5, -7.5, -7.5 - reach, -7.5 + reach], abs=1e-2)
    assert {row["method"] for row in lines(tmp_path, "probe")} == {"fea"}
    table = next(table for table in report.tables if table.name == "probe")
    assert all(cell.rank == 0 for section in table.sections for row in section.rows for cell in row)
    assert "90.00 → 82.50: -7.50" in to_markdown(table)
    assert r"90.00 $\to$ 82.50" in to_latex(table)


def test_status_of_a_cell():
    assert status(80.0, None, 81.0, diverged=False) == "reproduced"
    assert status(80.0, None, 81.01, diverged=False) == "close"
    assert status(80.0, 0.3, 82.0, diverged=False) == "close"
    assert status(80.0, None, 82.01, diverged=False) == "off"
    assert status(80.0, 2.0, 84.0, diverged=False) == "reproduced"
    assert status(80.0, 2.0, 88.0, diverged=False) == "close"
    assert status(80.0, None, 80.0, diverged=True) == "off"
    assert status(80.0, None, None, diverged=False) == ""
