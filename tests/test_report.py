"""The report from synthetic records: figures by hand, groups apart, foreign files refused one by one."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmark.errors import UsageError
from benchmark.record import Provenance, Question, RunRecord, SessionResult, read_record, sparse
from benchmark.report import build
from benchmark.report.frames import stored_range


def synthetic(out: Path, method: str, seed: int, right: int, **options) -> RunRecord:
    """A record of 2 + 2 classes with ten test images each, `right` of them correct after session 1."""
    first = np.diag([10, 10])
    second = np.diag([right] * 4)
    second[:, 0] += 10 - second.sum(axis=1)
    question = Question(
        method=method,
        method_version=1,
        params=options.get("params", {}),
        protocol={"name": "toy-t1", "classes": [[0, 1], [2, 3]]},
        backbone={"name": "none", "weights": ""},
        budget={},
        shared={},
        views=2,
        seed=seed,
    )
    sessions = [
        SessionResult(
            classes=(0, 1) if t == 0 else (2, 3),
            counts=sparse(counts),
            train_counts=sparse(counts),
            assignment=(0, 1),
            train_assignment=(0, 1),
            phases=(),
        )
        for t, counts in enumerate((first, second))
    ]
    record = RunRecord(
        key=question.key,
        status=options.get("status", "done"),
        question=question,
        budget_name="paper",
        changed=options.get("changed", {}),
        stored_per_class="nothing",
        optimiser_steps=0,
        sessions=tuple(sessions),
        provenance=Provenance(),
    )
    record.save(out)
    return record


def test_cells_by_hand(tmp_path):
    for seed, right in enumerate((6, 8)):
        synthetic(tmp_path, "one", seed, right)
    synthetic(tmp_path, "two", 0, 5)
    built = build(tmp_path, tmp_path)
    # seed 0: session 1 has base (10 + 6) / 20 = 80 % (class 0 gains what is misplaced on row 0), novel 60 %
    assert (built.records, built.refused) == (3, [])
    rows = list(csv.DictReader(io.StringIO((tmp_path / "tables" / "average_discovery.csv").read_text())))
    one = next(row for row in rows if row["method"] == "one")
    assert float(one["mean"]) == pytest.approx(70)
    assert float(one["deviation"]) == pytest.approx(200**0.5)
    assert one["runs"] == "2"
    assert "70.00 ± 14.14 (n=2)" in built.text
    assert "50.00 (n=1)" in built.text
    accuracy = next(row for row in built.tables["average_accuracy"] if row["method"] == "two")
    assert accuracy["mean"] == pytest.approx((100 + (10 + 5 + 5 + 5) / 40 * 100) / 2)


def test_groups_never_share_a_table(tmp_path):
    synthetic(tmp_path, "one", 0, 6)
    synthetic(tmp_path, "one", 1, 9, changed={"omega": 1.0}, params={"omega": 1.0})
    built = build(tmp_path, tmp_path)
    assert "### budget paper\n" in built.text
    assert "### budget paper, omega=1.0\n" in built.text
    assert "60.00 (n=1)" in built.text
    assert "n=2" not in built.text


def test_diverged_runs_are_counted_not_averaged(tmp_path):
    synthetic(tmp_path, "one", 0, 6)
    synthetic(tmp_path, "one", 1, 6, status="diverged")
    synthetic(tmp_path, "two", 0, 6, status="partial")
    text = build(tmp_path, tmp_path).text
    assert "div (1/2)" in text
    assert "two" not in text


def test_report_twice_gives_the_same_bytes(tmp_path):
    synthetic(tmp_path, "one", 0, 6)

    def content():
        build(tmp_path, tmp_path / "out")
        return {path.name: path.read_bytes() for path in (tmp_path / "out" / "tables").iterdir()}

    assert content() == content()


def test_foreign_records_are_refused_by_name_and_the_rest_is_reported(tmp_path):
    good = synthetic(tmp_path, "one", 0, 6)
    folder = good.path(tmp_path).parent
    (folder / "broken.json").write_text("{")
    tampered = json.loads(good.path(tmp_path).read_text())
    tampered["question"]["seed"] = 7
    (folder / "tampered.json").write_text(json.dumps(tampered))
    (folder / "future.json").write_text(json.dumps(tampered | {"schema": 99}))
    built = build(tmp_path, tmp_path)
    assert built.records == 1
    assert [Path(line.split()[0]).name for line in built.refused] == ["broken.json", "future.json", "tampered.json"]
    assert "its key does not match its question" in built.refused[2]
    with pytest.raises(UsageError):
        read_record(folder / "broken.json")


def test_text_is_escaped_for_its_format(tmp_path):
    synthetic(tmp_path, "a_b", 0, 6, changed={"note": "50% & |x|"})
    build(tmp_path, tmp_path)
    tables = tmp_path / "tables"
    assert r"a\_b" in (tables / "average_accuracy.tex").read_text()
    assert r"50\% \& |x|" in (tables / "average_accuracy.tex").read_text()


def test_what_is_stored_is_told_as_it_was_counted():
    assert stored_range(pd.Series(["20 images", "9.8 images", "18.5 images"])) == "9.8 to 20 images"
    assert stored_range(pd.Series(["nothing", "nothing"])) == "nothing"
    assert stored_range(pd.Series(["", ""])) == ""


def test_report_imports_no_torch(tmp_path):
    synthetic(tmp_path, "one", 0, 6)
    script = (
        "import sys; from pathlib import Path; from benchmark.report import build\n"
        f"build(Path({str(tmp_path)!r}), Path({str(tmp_path)!r}))\n"
        "sys.exit(int('torch' in sys.modules or 'methods' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_record_command_names_every_change(tmp_path):
    record = synthetic(tmp_path, "one", 3, 6, changed={"omega": 1.0, "views": "live", "budget.lr": 0.02})
    assert record.command == (
        "bench run --method one --protocol toy-t1 --seed 3 --budget paper "
        "--set budget.lr=0.02 --set omega=1.0 --views live"
    )
