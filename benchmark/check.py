"""`bench check`: train every method briefly on the small protocol and compare with golden figures.

On the machine and versions that made the golden file the comparison is exact, counts and loss curves alike. Elsewhere
the last bits differ and grow, so means over seeds are compared, within what seeds alone would move.
"""

import hashlib
import json
import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from tabulate import tabulate

import methods
from benchmark.digests import canonical
from benchmark.display import Stop
from benchmark.errors import RegressionError, UsageError
from benchmark.files import atomic_write, make_folder
from benchmark.protocol.models import Spec
from benchmark.protocol.reading import suggest, validated
from benchmark.records.record import RunRecord
from benchmark.records.scoring import METRICS

PROTOCOL, BUDGET = "digits-t2", "quick"
SEEDS = (1, 2, 3, 4, 5)
CHECKED = SEEDS[:3]
DEVIATIONS, POINTS = 3.0, 2.0
"""On another machine a mean may move by this many sample deviations of the golden seeds, or by this many points."""
WORKERS = 2


class Figures(Spec):
    """What one run gave: the figures people read, and a digest of the counts and loss curves behind them."""

    average_accuracy: float
    average_forgetting: float
    average_discovery: float
    digest: str


Runs = dict[str, dict[int, Figures]]
"""Figures by method and seed."""


class Golden(Spec):
    """The golden file."""

    schema_version: Literal[1] = Field(1, alias="schema")
    protocol: str
    budget: str
    fingerprint: dict[str, str]
    runs: Runs


@dataclass(frozen=True)
class Verdict:
    """One figure of one method, then and now."""

    method: str
    metric: str
    golden: float
    now: float
    allowed: float
    moved: bool

    @property
    def text(self) -> str:
        if not self.moved:
            return f"{self.now:.2f}"
        if self.now == self.golden:
            return f"{self.now:.2f} (counts or losses differ)"
        return f"{self.golden:.2f} -> {self.now:.2f} ({self.now - self.golden:+.2f}, allowed {self.allowed:.2f})"


def digest(record: RunRecord) -> str:
    """Of everything a run measured and descended on, not of diagnostics, which may be added to."""
    parts = ("counts", "train_counts", "assignment", "train_assignment", "phases")
    sessions = [s.model_dump(mode="json", include={*parts}) for s in record.sessions]
    for session in sessions:
        session["phases"] = [{"name": phase["name"], "terms": phase["terms"]} for phase in session["phases"]]
    return hashlib.sha256(canonical(sessions)).hexdigest()


def fingerprint() -> dict[str, str]:
    """Machine and versions on which the same code gives the same bits."""
    import torch  # noqa: PLC0415

    from benchmark.records import provenance  # noqa: PLC0415

    versions = {name: v for name, v in provenance.versions().items() if name not in ("python", "cncd-bench")}
    return {"processor": provenance.processor_kind(), "kernels": torch.backends.cpu.get_cpu_capability(), **versions}


def figures_of(record: RunRecord) -> Figures:
    if record.status != "done":
        raise RegressionError(f"{record.question.method} diverged with seed {record.question.seed}: {record.reason}")
    metrics = record.metrics()
    return Figures(**{m.name: getattr(metrics, m.name) for m in METRICS}, digest=digest(record))


def measure_all(names: list[str], seeds: tuple[int, ...], stop: Stop) -> Runs:
    """These methods with every seed, from nothing, one thread a run, in a folder that is gone afterwards."""
    from benchmark.sweep.command import records_of  # noqa: PLC0415 - slow to import
    from benchmark.sweep.display import SweepDisplay  # noqa: PLC0415
    from benchmark.sweep.suites import Wanted  # noqa: PLC0415

    wanted = [Wanted(name, PROTOCOL, seed, budget=BUDGET) for seed in seeds for name in names]
    with tempfile.TemporaryDirectory(prefix="bench-check-") as folder, own_cache(Path(folder) / "cache"):
        found = records_of("check", wanted, Path(folder) / "results", WORKERS, SweepDisplay(quiet=True), stop)
    runs: Runs = {name: {} for name in names}
    for one, record in zip(wanted, found, strict=True):
        runs[one.method][one.seed] = figures_of(record)
    return runs


@contextmanager
def own_cache(folder: Path) -> Iterator[None]:
    """Nothing that was computed before plays a part."""
    before = os.environ.get("CNCD_CACHE")
    os.environ["CNCD_CACHE"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["CNCD_CACHE"]
        else:
            os.environ["CNCD_CACHE"] = before


def golden_path() -> Path:
    return Path(str(files("protocols") / "golden" / f"{PROTOCOL}.json"))


def read_golden(path: Path) -> Golden:
    try:
        return validated(Golden, json.loads(path.read_text(encoding="utf-8")), path.name)
    except OSError:
        raise UsageError(f"there are no golden figures at {path}: --update would make them") from None
    except ValueError:
        raise UsageError(f"{path} cannot be read: make it anew with `bench check --update`") from None


def write_golden(path: Path, runs: Runs) -> None:
    golden = Golden(protocol=PROTOCOL, budget=BUDGET, fingerprint=fingerprint(), runs=runs)
    make_folder(path.parent)
    text = json.dumps(golden.model_dump(mode="json", by_alias=True), indent=1, sort_keys=True)
    atomic_write(path, f"{text}\n".encode())


def compare(golden: Runs, now: Runs, *, exact: bool) -> list[Verdict]:
    """A verdict for every metric of every method that both sides have."""
    verdicts = []
    for method in sorted(golden.keys() & now.keys()):
        then, here = golden[method], now[method]
        same_bits = all(here[seed].digest == then[seed].digest for seed in here)
        for metric in METRICS:
            spread = [getattr(figures, metric.name) for figures in then.values()]
            # exactly: the same seeds on both sides; otherwise the mean of all golden seeds, with their deviation
            reference = statistics.mean([getattr(then[seed], metric.name) for seed in here] if exact else spread)
            mean = statistics.mean(getattr(figures, metric.name) for figures in here.values())
            allowed = 0.0 if exact else max(DEVIATIONS * statistics.stdev(spread), POINTS)
            moved = not same_bits if exact else abs(mean - reference) > allowed
            verdicts.append(Verdict(method, metric.title, reference, mean, allowed, moved))
    return verdicts


@dataclass(frozen=True)
class Result:
    """What a check found."""

    golden: Path
    exact: bool
    verdicts: list[Verdict]
    unknown: list[str]
    """Methods that only the golden file, or only the suite, has."""

    @property
    def moved(self) -> list[str]:
        return sorted({verdict.method for verdict in self.verdicts if verdict.moved})

    @property
    def complaint(self) -> str:
        """What is wrong, in half a sentence; empty if nothing is."""
        if self.unknown:
            return f"the golden figures and the suite do not have the same methods: {', '.join(self.unknown)}"
        return f"figures moved: {', '.join(self.moved)}" if self.moved else ""

    def document(self) -> dict[str, Any]:
        figures = [*map(vars, self.verdicts)]
        return {"exact": self.exact, "moved": self.moved, "unknown": self.unknown, "figures": figures}

    def text(self) -> str:
        how = "exactly: same machine and versions" if self.exact else "within tolerance: another machine or versions"
        heading = f"{PROTOCOL}, budget {BUDGET}, against {self.golden.name} ({how}); means over seeds, in %"
        return f"{heading}\n\n{to_table(self.verdicts)}\n"


def check(path: Path, names: list[str], *, update: bool, stop: Stop | None = None) -> Result:
    """Measure, compare, and write the golden figures anew if asked to."""
    known = sorted(methods.entries())
    for name in names:
        if name not in known:
            raise UsageError(f"unknown method '{name}'{suggest(name, known)}")
    if update and names:
        raise UsageError("--update measures all methods: leave --method out")
    old = read_golden(path) if path.exists() or not update else None
    then = old.runs if old is not None else {}
    exact = old is not None and old.fingerprint == fingerprint()
    if any(seed not in then[name] for name in then for seed in CHECKED):
        raise UsageError(f"{path} lacks seeds {CHECKED}: make it anew with `bench check --update`")
    now = measure_all(names or known, SEEDS if update else CHECKED, stop or Stop())
    if update:
        write_golden(path, now)
    unknown = sorted(set(names) - then.keys() if names else then.keys() ^ set(known))
    return Result(path, exact, compare(then or now, now, exact=exact), unknown)


def to_table(verdicts: list[Verdict]) -> str:
    """A row a method: figures that stayed, and for those that moved from where to where."""
    rows: dict[str, list[str]] = {}
    for verdict in verdicts:
        rows.setdefault(verdict.method, [verdict.method]).append(verdict.text)
    for method, row in rows.items():
        row.append("moved" if any(v.moved for v in verdicts if v.method == method) else "ok")
    headers = ["method", *(metric.title for metric in METRICS), "verdict"]
    return tabulate([*rows.values()], headers=headers, tablefmt="simple", disable_numparse=True)
