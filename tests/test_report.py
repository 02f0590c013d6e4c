"""Tables and figures of a report on made-up records, cell by cell."""

import numpy as np
import pytest
from records import METHODS, PAPER_PROTOCOLS, make_record
from reports import (
    full,  # noqa: F401 - fixtures
    line,
    lines,
)

from benchmark.report import compose
from benchmark.report.figures import known_curve, novel_average, spread
from benchmark.report.paper import load_paper
from benchmark.report.runs import by_class, summary
from benchmark.report.table import to_latex, to_markdown, to_text


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
