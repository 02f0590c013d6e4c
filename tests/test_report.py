"""The report from synthetic records: figures by hand, groups apart, foreign files refused one by one."""

import csv
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import METHODS, PAPER_PROTOCOLS, fading, fill, make_record, save

from benchmark.digests import sealed
from benchmark.errors import BenchError, UsageError
from benchmark.protocol.protocols import load_protocol
from benchmark.records.reading import read_record
from benchmark.records.record import PUBLISHED, record_path, stored_text
from benchmark.report import INPUTS, PAGE, compose, drawing, stale, write
from benchmark.report.figures import known_curve, novel_average, slug, spread
from benchmark.report.frames import REFERENCE, VALUES, printed, sharing, status
from benchmark.report.names import Names
from benchmark.report.paper import load_paper
from benchmark.report.runs import by_class, read_runs, summary, thinned
from benchmark.report.table import escape, guarded, markdown, number, signed, to_csv, to_latex, to_markdown, to_text
from benchmark.report.tables import column_ranks

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(scope="session")
def full(tmp_path_factory) -> Path:
    """A folder of synthetic records that covers every table and figure of the paper, with its report.

    Three cells are worked out by hand below: they get accuracies of their own.
    """
    folder = tmp_path_factory.mktemp("full")
    fill(folder)
    for seed, shift in enumerate((0, 1, -1)):
        worked = [[90 + shift], [80 + shift, 60 + shift], [70 + shift, 50 + shift, 40 + shift]]
        save(folder, "fea", "cifar10-t2", seed, worked)
        save(folder, "frost", "cifar100-t2", seed, [[83], [82, 60], [81, 70, 64]])
    write(compose(folder), folder)
    return folder


def lines(folder: Path, table: str, **wanted: str) -> list[dict[str, str]]:
    rows = csv.DictReader(io.StringIO((folder / "tables" / f"{table}.csv").read_text()))
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def line(folder: Path, table: str, **wanted: str) -> dict[str, str]:
    (found,) = lines(folder, table, **wanted)
    return found


def test_three_cells_by_hand(full):
    """The worked example of the metrics, 6 + 2 + 2 classes: A = 90, 75, 60; F_2 = 15; D_2 = 45; a point either way."""
    cell = line(full, "accuracy", method="fea", protocol="cifar10-t2")
    assert (float(cell["mean"]), float(cell["deviation"]), cell["runs"]) == (75, 1, "3")
    assert (float(cell["paper"]), float(cell["difference"]), cell["status"]) == (92.3, -17.3, "off")
    cell = line(full, "cifar", method="fea", protocol="cifar10-t2", metric="average_forgetting")
    assert (float(cell["mean"]), float(cell["deviation"])) == (15, 0)
    assert (float(cell["difference"]), cell["status"]) == (pytest.approx(15 - 9.98), "off")
    # 80 + 10 + 10 classes: 83; (80*82 + 10*60)/90; (80*81 + 10*70 + 10*64)/100
    cell = line(full, "accuracy", method="frost", protocol="cifar100-t2")
    by_hand = (83 + 7160 / 90 + 78.2) / 3
    assert float(cell["mean"]) == pytest.approx(by_hand, abs=1e-4)
    assert (float(cell["difference"]), cell["status"]) == (pytest.approx(by_hand - 81.17, abs=1e-4), "reproduced")
    text = (full / "tables" / "accuracy.md").read_text()
    assert "75.00 ± 1.00 (3)" in text
    assert "-17.30 off" in text
    assert "-0.92 reproduced" in text


def test_every_table_of_the_paper_comes_out_whole(full):
    paper = load_paper()
    for table, metrics in (("accuracy", 1), ("cifar", 2), ("tiny", 2)):
        cells = lines(full, table)
        assert all(cell["mean"] and cell["status"] != "not run" for cell in cells)
        assert {cell["method"] for cell in cells} == {*METHODS}
        protocols = {p for p in PAPER_PROTOCOLS if table == "accuracy" or p.startswith(table)}
        assert len(cells) == len(METHODS) * len(protocols) * metrics
    printed = sum(
        len(row) for m in paper.metrics.values() for name, row in m.rows.items() if paper.methods[name].target
    )
    assert printed == 35 + 30 + 30
    assert sum(bool(c["paper"]) for t in ("accuracy", "cifar", "tiny") for c in lines(full, t)) == printed
    assert len(lines(full, "ablation")) == 4 * 4
    assert len(lines(full, "omega")) == 5
    assert all(cell["mean"] and cell["paper"] for table in ("ablation", "omega") for cell in lines(full, table))
    assert len(lines(full, "protocols")) == 9


def test_tables_are_written_in_every_form(full):
    names = {path.name for path in (full / "tables").iterdir()}
    kinds = ("protocols", "accuracy", "cifar", "tiny", "ablation", "omega", "own", "changed", "probe", "comparisons")
    assert names == {f"{kind}.{suffix}" for kind in kinds for suffix in ("md", "csv", "tex")}
    report = compose(full)
    accuracy = next(table for table in report.tables if table.name == "accuracy")
    assert "*" in to_text(accuracy)
    assert "**" in to_markdown(accuracy)
    assert "<u>" in to_markdown(accuracy)
    assert r"\textbf{" in to_latex(accuracy)
    assert r"\underline{" in to_latex(accuracy)
    assert "20 images" in to_text(accuracy)  # the exemplar column, the paper's and ours
    assert "FRoST†" in to_text(accuracy)


def test_every_figure_comes_out_small(full):
    figures = full / "figures"
    expected = {"accuracy-reference"}
    for protocol in (*PAPER_PROTOCOLS, "digits-t2"):
        expected |= {f"known-reference-{protocol}", f"confusion-reference-{protocol}"}
    assert {path.name for path in figures.iterdir()} == {
        "inputs.json",
        *(f"{name}.{kind}" for name in expected for kind in ("png", "svg")),
    }
    assert max(path.stat().st_size for path in figures.iterdir()) < 500_000
    assert b"<image" in (figures / "confusion-reference-tiny-t10.svg").read_bytes()  # rasterised inside


def test_curves_by_hand():
    """6 + 2 + 2 classes: known after session 1 is C0, after session 2 C0 and C1 by their images; new ones at once."""
    run = summary(make_record("fea", "digits-t2", 0, [[90], [80, 60], [70, 50, 40]]), "file", own=False)
    assert run.images == [360, 120, 120]
    assert known_curve(run) == pytest.approx([80, (6 * 70 + 2 * 50) / 8])
    assert novel_average(run) == pytest.approx((60 + 40) / 2)
    assert spread([[1.0, 2.0], [3.0, 2.0]]) == {"mean": [2.0, 2.0], "deviation": [round(2**0.5, 4), 0.0]}


def test_confusion_is_by_class_not_by_row():
    """Rows 2 and 3 stand for classes 3 and 2: their columns change places."""
    counts = np.array([[5, 0, 0, 0], [0, 5, 0, 0], [0, 0, 1, 4], [0, 0, 3, 2]])
    assert by_class(counts, [[0, 1], [1, 0]]).tolist() == [[5, 0, 0, 0], [0, 5, 0, 0], [0, 0, 4, 1], [0, 0, 2, 3]]


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


def test_runs_that_share_a_name_only_are_told_apart(tmp_path):
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
    # by seed: (5/3)/2 and (10/3)/2 points more in the mean of two sessions; all samples of two: 0.83, 1.25, 1.25, 1.67
    assert (found["first"], found["second"], found["seeds"]) == ("fea", "gm", "2")
    values = [float(found[key]) for key in ("mean", "low", "high")]
    assert values == pytest.approx([1.25, 5 / 6, 5 / 3], abs=1e-4)
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


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_report_twice_gives_the_same_bytes(tmp_path):
    records = tmp_path / "records"
    for method in ("fea", "gm"):
        save(records, method, "digits-t2", 0)
    for place in ("one", "two"):
        write(compose(records), tmp_path / place)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_the_order_of_files_does_not_matter(tmp_path):
    """Records read in another order, by another folder's name, give the same report but for where files are."""
    for name in ("a", "b"):
        for method in ("fea", "gm"):
            record = make_record(method, "digits-t2", 0)
            path = tmp_path / name / PUBLISHED / ("x" if (name == "a") == (method == "fea") else "y") / f"{method}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            record.save(tmp_path / "scratch")
            path.write_bytes(record.path(tmp_path / "scratch").read_bytes())
    one, two = (compose(tmp_path / name).table_files() for name in ("a", "b"))
    assert one == two


def test_check_finds_what_does_not_follow(tmp_path):
    for method in ("fea", "gm"):
        save(tmp_path, method, "digits-t2", 0)
    report = compose(tmp_path)
    write(report, tmp_path)
    assert stale(report, tmp_path) == []

    def spoiled(name: str, change) -> list[str]:
        path = tmp_path / name
        before = path.read_bytes()
        change(path)
        complaints = stale(report, tmp_path)
        path.write_bytes(before)
        return complaints

    def replace(old: str, new: str):
        def change(path: Path) -> None:
            assert old in path.read_text()
            path.write_text(path.read_text().replace(old, new, 1))

        return change

    (diff,) = spoiled("tables/own.md", replace("budget paper", "budget of mine"))
    assert diff.startswith("--- tables/own.md as it is")
    assert "\n-" in diff
    assert "\n+" in diff
    assert spoiled("tables/comparisons.csv", Path.unlink) == ["tables/comparisons.csv is missing"]
    assert len(spoiled("tables/own.csv", lambda path: path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n")))) == 1
    assert len(spoiled("tables/own.md", lambda path: path.write_bytes(path.read_bytes().rstrip(b"\n")))) == 1
    assert len(spoiled(PAGE, replace('"seed":0', '"seed":9'))) == 1
    assert len(spoiled(PAGE, replace("<title>", "<title>My "))) == 1
    assert spoiled(PAGE, Path.unlink) == ["index.html is missing"]
    for kind in ("svg", "png"):
        name = f"figures/accuracy-reference.{kind}"
        for change in (Path.unlink, lambda path: path.write_bytes(b"junk")):
            assert spoiled(name, change) == [f"{name} is missing, or not what was drawn"]
    assert spoiled(INPUTS, replace('"input": "', '"input": "0')) == [
        f"figures/{report.pictures[0].name} was not drawn from these records"
    ]
    other = replace('src="data:image/svg+xml;base64,', 'src="data:image/svg+xml;base64,AAAA')
    assert spoiled(PAGE, other) == ["index.html shows other pictures than figures/"]
    (tmp_path / "tables" / "old.md").write_text("")
    assert stale(report, tmp_path) == ["tables/old.md does not belong to the report"]
    (tmp_path / "tables" / "old.md").unlink()
    save(tmp_path, "gm", "digits-t2", 1, fading(3, 50, 2))
    later = stale(compose(tmp_path), tmp_path)
    assert "figures/accuracy-reference was not drawn from these records" in later
    (tmp_path / INPUTS).write_text("5")
    write(report, tmp_path)
    assert stale(report, tmp_path) == []


def test_pictures_of_another_matplotlib_are_no_complaint(tmp_path):
    """They are whole, drawn from these numbers, and the page shows them: the same after other bytes were drawn."""
    for method in ("fea", "gm"):
        save(tmp_path, method, "digits-t2", 0)
    report = compose(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "render", lambda picture: {"png": b"other", "svg": picture.name.encode()})
        write(report, tmp_path)
    assert stale(report, tmp_path) == []


def test_pictures_have_names_of_their_own():
    names = [
        slug(f"budget {text}") for text in ("paper", "reference", "quick, shared.x=1", "quick, shared.x=-1", "paper, é")
    ]
    assert len({*names}) == len(names)
    assert names[0] == "reference"
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in names)


def test_pictures_that_are_no_longer_made_are_removed_and_nothing_else(tmp_path):
    for method in ("fea", "gm"):
        save(tmp_path, method, "digits-t2", 0)
    save(tmp_path, "fea", "cifar10-t2", 0)
    write(compose(tmp_path), tmp_path)
    (tmp_path / "figures" / "mine.png").write_bytes(b"mine")
    assert (tmp_path / "figures" / "known-reference-cifar10-t2.png").exists()
    next((tmp_path / PUBLISHED / "cifar10-t2").rglob("*.json")).unlink()
    write(compose(tmp_path), tmp_path)
    assert not (tmp_path / "figures" / "known-reference-cifar10-t2.png").exists()
    assert (tmp_path / "figures" / "mine.png").exists()


def test_foreign_records_are_refused_by_name_and_the_rest_is_reported(tmp_path):
    good = save(tmp_path, "fea", "digits-t2", 0)
    path = record_path(tmp_path, good.question, PUBLISHED)
    document = json.loads(path.read_text())
    first, *others = document["sessions"]
    counts = first["counts"]
    question = document["question"]

    def plant(name: str, *, seal: bool = True, **changes) -> None:
        planted = document | changes
        (path.parent / name).write_text(json.dumps(sealed(planted) if seal else planted))

    def with_counts(**changes) -> list:
        return [{**first, "counts": counts | changes}, *others]

    (path.parent / "broken.json").write_text("{")
    (path.parent / "copy.json").write_text(path.read_text())
    plant("class.json", sessions=[{**first, "classes": [9, *first["classes"][1:]]}, *others])
    plant("counts.json", sessions=with_counts(true=[0], row=[99], images=[5]))
    (path.parent / "deep.json").write_text("[" * 100_000)
    plant("edited.json", seal=False, sessions=others)
    plant("empty.json", sessions=with_counts(true=[0], row=[0], images=[5]))
    plant("future.json", schema=99)
    plant("huge.json", sessions=[{**first, "classes": [*range(6000)]}, *others])
    (path.parent / "long.json").write_text(path.read_text().replace('"seed": 0', f'"seed": {"9" * 5000}'))
    plant("nameless.json", question={**question, "protocol": {"classes": []}})
    (path.parent / "nan.json").write_text(path.read_text().replace('"seed": 0', '"seed": NaN'))
    plant("none.json", sessions=[])
    plant("short.json", sessions=document["sessions"][:1])
    plant("tampered.json", question={**question, "seed": 7})
    plant("twice.json", sessions=with_counts(**{key: [*counts[key], counts[key][0]] for key in counts}))
    plant("uneven.json", sessions=with_counts(images=counts["images"][1:]))
    with (path.parent / "vast.json").open("wb") as file:
        file.truncate(99_000_000)
    (path.parent / "folder.json").mkdir()
    os.mkfifo(path.parent / "pipe.json")
    (path.parent / "device.json").symlink_to("/dev/zero")
    found = read_runs(tmp_path)
    assert len(found.runs) == 1
    reasons = {Path(re.search(r"\S+\.json", line).group()).name: line for line in found.refused}
    planted = {entry.name for entry in path.parent.iterdir()} - {"copy.json"}  # the first in order is read
    assert {*reasons} == planted
    for name, said in {
        path.name: "second record",
        "tampered.json": "its key does not match its question",
        "empty.json": "without test images",
        "twice.json": "twice",
        "edited.json": "damaged or was edited",
        "uneven.json": "differ in length",
        "vast.json": "too large",
        "future.json": "its schema is 99",
    }.items():
        assert said in reasons[name]
    with pytest.raises(BenchError):
        read_record(path.parent / "broken.json")


def test_a_record_of_schema_1_is_refused_in_one_sentence():
    with pytest.raises(UsageError, match="its schema is 1, this version reads 2; run it again"):
        read_record(FIXTURES / "record-schema1.json")


def test_text_is_escaped_for_its_format(tmp_path):
    save(tmp_path, "a_b", "digits-t2", 0, changed={"note": "50% & |x| <b>\\*"})
    report = compose(tmp_path)
    changed = next(table for table in report.tables if table.name == "changed")
    assert r"a\_b" in to_latex(changed)
    assert r"50\% \& \textbar{}x\textbar{}" in to_latex(changed)
    assert r"50% &amp; \|x\| &lt;b&gt;" in to_markdown(changed)
    assert escape("C:\\x^2 ~ #1_{a} ± −") == (
        r"C:\textbackslash{}x\textasciicircum{}2 \textasciitilde{} \#1\_\{a\} $\pm$ $-$"
    )
    assert markdown("[x](y) `z` $a$ ~~b~~") == r"\[x\](y) \`z\` \$a\$ \~\~b\~\~"
    assert escape("é中") == "é?"


def test_no_text_of_a_record_commands_a_terminal(tmp_path):
    save(tmp_path, "fea", "digits-t2", 0, status="diverged", reason="\x1b]0;owned\x07\nnext")
    (run,) = read_runs(tmp_path).runs
    assert run.reason == "]0;owned  next"


@pytest.mark.parametrize("text", ["=1+1", "+x", "-x", "@x", "\t=x", " =x"])
def test_no_cell_is_a_formula(text):
    assert guarded(text).startswith("'")
    assert guarded(f"a{text}") == f"a{text}"


def test_numbers_are_printed_without_surprises():
    assert (number(-0.001), number(12.345678), signed(-0.001), signed(0.2), signed(-3.0)) == (
        "0.00", "12.35", "0.00", "+0.20", "-3.00",
    )  # fmt: skip


def test_what_is_stored_is_told_as_it_was_counted():
    assert stored_text([(20, 0), (9.8, 0), (18.5, 0)]) == "9.8 to 20 images"
    assert stored_text([(0, 0), (0, 0)]) == "nothing"
    assert stored_text([(20, 97), (20, 97)]) == "20 images + 97 numbers"


def test_long_curves_are_thinned_to_their_end():
    kept = thinned({"a": [float(k) for k in range(200)], "b": [None, 1.0], "c": []})
    assert kept["a"][-1] == (200, 199.0)
    assert len(kept["a"]) == 50
    assert kept["b"] == [(2, 1.0)]
    assert kept["c"] == []


def test_report_imports_no_torch(tmp_path):
    save(tmp_path, "fea", "digits-t2", 0)
    script = (
        "import sys; from pathlib import Path; from benchmark.report import compose, write\n"
        f"write(compose(Path({str(tmp_path)!r})), Path({str(tmp_path)!r}))\n"
        "sys.exit(int('torch' in sys.modules or 'methods' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_record_command_names_every_change():
    changed = {"omega": 1.0, "views": "live", "budget.lr": 0.02, "fd": "none", "flag": "no"}
    record = make_record("mine", "digits-t2", 3, changed=changed)
    assert record.changed == changed
    assert record.command == (
        "bench run --method mine.py:CLASS --protocol digits-t2 --seed 3 --budget paper --views live "
        "--set budget.lr=0.02 --set fd=none --set 'flag=\"no\"' --set omega=1.0 --threads 2"
    )


def test_a_pasted_command_does_no_harm():
    evil = {"x": "$(touch /tmp/owned); `id`", "y;z": 1, "backbone": "2; rm -r ."}
    words = shlex.split(make_record("mine", "digits-t2", 0, changed=evil).command)
    assert words[:3] == ["bench", "run", "--method"]
    assert words[words.index("--backbone") + 1] == "2; rm -r ."
    assert "y;z=1" in words
    assert "--weights" in words  # of a backbone that the suite does not know


def test_a_page_cannot_be_broken_out_of(tmp_path):
    """Whatever a record says stays text: in the data no angle bracket survives, in captions they are escaped."""
    evil = "</script><script>alert(1)</script><!--"
    save(tmp_path, "fea", "digits-t2", 0, changed={"backbone": evil})
    save(tmp_path, "gm", "digits-t2", 0, changed={"backbone": evil})
    write(compose(tmp_path), tmp_path)
    page = (tmp_path / PAGE).read_text()
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert page.count("<script") == 2
    block = re.search(r'id="data">(.*?)</script>', page).group(1)
    assert "<" not in block
    assert evil in json.loads(block)["runs"][0]["group"]


def test_names_follow_the_paper():
    names = Names(load_paper())
    assert names.ordered(["zeta", "kmeans", "fea (own)", "fea", "alpha", "gm"]) == [
        *("gm", "fea", "fea (own)", "kmeans", "alpha", "zeta"),
    ]
    assert [*map(names.label, ["simgcd", "kmeans (own)", "alpha"])] == ["SimGCD*", "k-means (floor) (own)", "alpha"]


@pytest.mark.latex
def test_latex_tables_compile(full, tmp_path):
    """With booktabs alone, whatever a record says."""
    save(tmp_path, "a_b", "digits-t2", 0, changed={"note": '50% & $x^2$ #1 {a} ~ \\end "q" <|> ± é_%'})
    tables = [*compose(full).tables, *compose(tmp_path).tables]
    body = "\n".join(to_latex(table) + r"\clearpage" for table in tables)
    source = tmp_path / "all.tex"
    packages = r"\usepackage[utf8]{inputenc}\usepackage[T1]{fontenc}\usepackage{booktabs}"
    source.write_text(rf"\documentclass{{article}}{packages}\begin{{document}}{body}\end{{document}}")
    done = subprocess.run(
        ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", source.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "all.pdf").stat().st_size > 10_000
