"""What the tests of sweeps share."""

import time
from pathlib import Path

import benchmark
from benchmark.records.reading import read_record
from benchmark.sweep.planner import Shares, make_plan
from benchmark.sweep.suites import Block, Common, wanted_runs

ONE = Shares(threads=1, cores=2, device="cpu")
QUICK = {"budget": "quick", "views": 2}


def planned(out: Path, methods: str = "kmeans,gaussian", seeds: str = "0-1", **more):
    block = Block(methods=methods, protocols=("digits-t2",), seeds=seeds, **QUICK, **more)
    return make_plan("x", wanted_runs((block,), Common()), out, ONE)


def wait_until(condition, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


SWEEP = ("sweep", "--methods", "kmeans,gaussian", "--seeds", "0-1", "--budget", "quick", "--views", "2", "--jobs", "2")


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


def equal_to_single_runs(folder: Path) -> int:
    """How many records there are, each equal to that of a run on its own with one thread."""
    paths = sorted(folder.rglob("*.json"))
    for path in paths:
        record = read_record(path)
        asked = record.question
        single = benchmark.run(asked.method, "digits-t2", asked.seed, budget="quick", threads=1, out=Path("single"))
        assert single.comparable() == record.comparable(), path
    return len(paths)
