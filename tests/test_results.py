"""docs/results.py: tables of real images, from records whose figures are known."""

import pytest
from records import save

import results as page
from benchmark.protocol.protocols import load_protocol
from benchmark.report.reading import load
from benchmark.sweep.suites import load_suite

HERE = {"backbone": "vit-s14-dinov2-112", "views": 2, "budget.clip": 1.0}
LEVELS = {"gaussian": 90, "gm": 80, "simgcd": 70, "fea": 60, "frost": 50, "autonovel": 40}
"""The paper's order on cifar100-t5 is fea, simgcd, frost, gm, autonovel."""


def flat(level: float) -> list[list[float]]:
    return [[level] * (t + 1) for t in range(6)]


@pytest.fixture(scope="module")
def frame(tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    for seed in (1, 2):
        for method, level in LEVELS.items():
            accuracy = flat(level + 2 * (method == "fea" and seed == 2))
            save(out, method, "cifar100-t5", seed, accuracy, budget="medium", changed=HERE, probe=accuracy)
        changed = HERE | {"css": False, "bap": False}
        save(out, "fea", "cifar100-t5", seed, flat(50), budget="medium", changed=changed, probe=flat(66))
    return load(out)


def test_rows_of_the_suite_find_their_runs(frame):
    table = page.sections(frame)["cifar100-t5"]
    assert "| FEA                             | 61.0 ± 1.4" in table
    assert "-29.0 [-41.7, -16.3]" in table  # 60 and 62 less 90: 12.706 standard errors of 1 around -29
    assert "| k-means floor                   | not run" in table
    first = table.splitlines()[2]
    assert "Gaussian floor" in first  # the best comes first


def test_the_order_is_compared_with_the_papers(frame):
    """Ours: gm, simgcd, fea, frost, autonovel. Four of ten pairs are the other way round: (6 - 4) / 10."""
    assert "0.20 (95 % interval 0.20 to 0.20), 2 seeds" in page.sections(frame)["cifar100-t5"]
    assert page.sections(frame)["cifar100-t2"].endswith("No seed has all 5 methods of the paper yet.")


def test_parts_stand_beside_the_whole_by_head_and_by_probe(frame):
    line = next(text for text in page.sections(frame)["parts"].splitlines() if text.startswith("| framework  "))
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells[:2] == ["framework", "50.0 ± 0.0"]
    assert cells[2].startswith("-11.0 [")
    assert cells[3] == "66.0 ± 0.0"
    assert cells[4].startswith("+5.0 [")
    assert cells[5:] == ["-3.9", "2"]  # 75.22 less 79.09


def test_every_row_of_the_suite_has_a_name_of_its_own():
    """On one protocol, with one budget: no run is shown as another's."""
    blocks = [block for block in load_suite("real").runs if "cifar100-t5" in block.protocols]
    protocol = load_protocol("cifar100-t5")
    rows = [row for block in blocks for row in page.rows_of(block, protocol)]
    assert len({(row.label, row.environment) for row in rows}) == len(rows) == 16 + 3
    assert len({(row.method, row.variant, row.environment) for row in rows}) == len(rows)
    assert len({row.environment for row in rows}) == 2


def test_runs_of_a_part_of_the_images_stand_in_rows_of_their_own(tmp_path):
    save(tmp_path, "fea", "cifar10-t1", 1, [[90.0], [80.0, 70.0]], budget="medium", changed=HERE)
    part = HERE | {"shared.images": 1000}
    save(tmp_path, "fea", "cifar10-t1", 2, [[90.0], [60.0, 50.0]], budget="medium", changed=part)
    table = page.sections(load(tmp_path))["cifar10-t1"]
    assert "| FEA                             | 72.5 (one seed)" in table  # 90 and 55


def test_every_published_run_of_the_suite_stands_in_a_row():
    """Also those whose parameter set says 0 where records say 0.0."""
    runs = page.published()
    blocks = load_suite("real").runs
    rows = [row for block in blocks for name in block.protocols for row in page.rows_of(block, load_protocol(name))]
    group = runs[runs["environment"].isin({row.environment for row in rows})]
    shown = {run for row in rows for run in page.runs_of(group, row)["run"]}
    assert len(shown) >= 18
    assert {*group["run"]} - shown == set()
