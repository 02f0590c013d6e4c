"""Suites: which runs are asked for."""

import math
from pathlib import Path

import pytest
from sweeps import ONE

from benchmark.errors import UsageError
from benchmark.sweep.planner import make_plan
from benchmark.sweep.suites import Block, Common, load_suite, seeds_of, several, suite_names, wanted_runs

ROOT = Path(__file__).resolve().parents[1]


def test_seeds_and_values_as_people_write_them():
    assert seeds_of("0-2,7, 9-9") == [0, 1, 2, 7, 9]
    assert several("omega=0,0.5,1") == ("omega", [0, 0.5, 1])
    assert several('m={a: 1, b: [2, 3]},{a: 2},"x,y"') == ("m", [{"a": 1, "b": [2, 3]}, {"a": 2}, "x,y"])
    for text in ("", "2-1", "a", "-1", "1-99999999"):
        with pytest.raises(UsageError, match="numbers and ranges"):
            seeds_of(text)
    assert several("x=[[1,2],[3]],4") == ("x", [[[1, 2], [3]], 4])
    for text in ("omega", "=1", "omega=[1", "omega=1,,2"):
        with pytest.raises(UsageError, match="--set"):
            several(text)


def test_every_combination_once_seeds_outermost():
    """Stopped anywhere, no method has two seeds more than another."""
    block = Block(methods="a,b", protocols=["p"], seeds="0-1", grid={"omega": (0, 1)}, params=("x",))
    runs = wanted_runs((block, Block(methods=("c",), protocols=("p",), seeds=(1, 2))), Common(budget="quick"))
    found = [(run.seed, run.method, run.settings.get("omega")) for run in runs]
    assert found == [
        *((0, m, o) for o in (0, 1) for m in "ab"),
        *((1, m, o) for o in (0, 1) for m in "ab"),
        (1, "c", None),
        (2, "c", None),
    ]
    assert {run.budget for run in runs} == {"quick"}


@pytest.mark.parametrize("name", suite_names())
def test_suites_of_the_package_ask_what_can_be_asked(name, tmp_path):
    """Every run of them is a question; those of real images need not be here."""
    blocks = load_suite(name).runs
    plan = make_plan(name, wanted_runs(blocks, Common()), tmp_path, ONE)
    combinations = [len(b.methods) * len(b.protocols) * len(b.seeds) * len(b.settings) for b in blocks]
    grids = [math.prod(map(len, b.grid.values())) * max(1, len(b.params)) for b in blocks]
    assert plan.runs == sum(a * b for a, b in zip(combinations, grids, strict=True))


def test_the_suites_of_the_paper_are_its_tables():
    assert len(wanted_runs(load_suite("paper").runs, Common())) == 7 * 7 * 3
    omega = {run.settings["omega"] for run in wanted_runs(load_suite("omega").runs, Common())}
    assert omega == {0, 0.5, 1, 2, 4}
    assert {*load_suite("smoke").runs[0].methods} == {*load_suite("paper").runs[0].methods}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: mine\ntitle: x\nruns: []", "runs"),
        ("name: mine\ntitle: x\nruns: [{methods: [fea], protocols: [digits-t2]}]", "key 'runs.0.seeds' is missing"),
        ("name: mine\ntitle: x\nruns: [{methods: [fea], protocols: [a], seeds: 2-1}]", "numbers and ranges"),
        ("name: mine\ntitle: x\nruns: [{methods: [fea], protocol: [a], seeds: 0}]", "did you mean 'protocols'"),
        (
            "name: mine\ntitle: x\nruns: [{methods: [a], protocols: [a], seeds: 0, grid: {omega: []}}]",
            "at least 1 item",
        ),
        ("name: mine\ntitle: x\nruns: [{methods: [a], protocols: [a], seeds: true}]", "seeds"),
        ("name: other\ntitle: x\nruns: [{methods: [fea], protocols: [a], seeds: 0}]", "must equal the file's name"),
        ("name: ../x\ntitle: x\nruns: [{methods: [fea], protocols: [a], seeds: 0}]", "name"),
        ("- 1", "expected a mapping"),
    ],
)
def test_what_is_wrong_with_a_suite_is_one_sentence(tmp_path, text, said):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        load_suite(str(path))
