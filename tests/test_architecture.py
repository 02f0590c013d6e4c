"""Imports go one way: docs/architecture.py reads them from the code, each docstring says what a room may import."""

import importlib.util
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SPEC = importlib.util.spec_from_file_location("architecture", ROOT / "docs" / "architecture.py")
architecture = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(architecture)


@pytest.fixture
def copy(tmp_path):
    for package in ("benchmark", "methods"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("*.pyc", "templates"))
    return tmp_path


def test_imports_go_one_way():
    assert architecture.faults(ROOT) == []


@pytest.mark.parametrize(
    ("where", "line", "fault"),
    [
        (
            "benchmark/protocol/models.py",
            "from benchmark.records.record import RunRecord",
            "protocol must not import rec",
        ),
        ("methods/fea.py", "from benchmark.errors import UsageError", "methods must not import ground"),
        ("benchmark/report/runs.py", "import benchmark.engine.run", "report must not import engine"),
        ("benchmark/files.py", "def late():\n    from benchmark.tokens import bank", "ground must not import tokens"),
        ("benchmark/engine/feed.py", "from benchmark import check", "engine must not import commands"),
    ],
)
def test_an_arrow_that_points_back_is_seen(copy, where, line, fault):
    path = copy / where
    path.write_text(f"{path.read_text()}\n{line}\n")
    assert any(fault in sentence for sentence in architecture.faults(copy))


def test_a_circle_of_rooms_is_seen(copy):
    """Even one that the docstrings allow."""
    path = copy / "benchmark" / "protocol" / "__init__.py"
    path.write_text(path.read_text().replace("May import: nothing.", "May import: data."))
    assert "a circle of rooms: " in architecture.faults(copy)[-1]


def test_a_room_without_a_rule_is_seen(copy):
    (copy / "benchmark" / "data" / "__init__.py").write_text('"""Images."""\n')
    with pytest.raises(ValueError, match="the docstring of data must end with what it may import"):
        architecture.faults(copy)


def test_arrows_that_others_imply_are_left_out():
    pairs = {("a", "b"), ("b", "c"), ("c", "d"), ("a", "d"), ("a", "c"), ("e", "d")}
    assert architecture.implied(pairs) == {("a", "d"), ("a", "c")}


def test_the_page_is_made_from_the_code():
    text = architecture.PAGE.read_text()
    assert architecture.written(text, ROOT) == text
