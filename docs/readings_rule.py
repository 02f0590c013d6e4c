"""What settings of the judge are, and the rule that chooses among them (docs/readings.md has it in words)."""

from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from benchmark.protocol.overrides import load_params
from benchmark.protocol.protocols import load_protocol
from benchmark.records.reading import read_record
from benchmark.records.record import PUBLISHED, RunRecord
from benchmark.records.reference import suite_methods
from benchmark.records.statistics import t_interval
from benchmark.sweep.suites import Wanted

RECORDS = Path(__file__).resolve().parent.parent / "results" / "readings" / PUBLISHED
JUDGE = "cifar100-holdout-t2"
NAMES = {
    "fea": "FEA",
    "simgcd": "SimGCD*",
    "gm": "GM",
    "frost": "FRoST",
    "autonovel": "AutoNovel",
    "kmeans": "k-means floor",
    "gaussian": "Gaussian floor",
}
FLOORS = ("kmeans", "gaussian")
ORDER = {name: number for number, name in enumerate(NAMES)}
SEEDS = {0, 1, 2}
"""That a setting needs before it can be chosen."""
DISCOVERS = 90.0
"""At the end of each session more of its images than this, in %, are to be on its new rows."""
RATE = {"budget.lr": 0.1, "budget.clip": 1.0, "shared.trunk": "bfloat16", "budget.novel_epochs": 50}
"""What is the same for all methods."""


@dataclass(frozen=True)
class Setting:
    """One configuration and its runs by seed; those that diverged have no figures."""

    method: str
    knobs: dict[str, Any]
    runs: dict[int, RunRecord]
    diverged: set[int]

    @property
    def average(self) -> float:
        return mean(self.values("average accuracy").values()) if self.runs else float("-inf")

    def values(self, figure: str) -> dict[int, float]:
        return {seed: figures(run)[figure] for seed, run in sorted(self.runs.items())}


def figures(record: RunRecord) -> dict[str, float]:
    """What the tables show of a run."""
    own, probe = record.metrics(), record.probe_metrics()
    assert probe is not None
    found = record.diagnostics()["sessions"]
    return {
        "average accuracy": own.average_accuracy,
        "AvF": own.average_forgetting,
        "AvD": own.average_discovery,
        "known": own.accuracy[-1][0],
        "on new rows": 100 * min(row["train_share_on_new_rows"] for row in found),
        "probe": probe.average_accuracy,
        "probe AvF": probe.average_forgetting,
    }


def knobs_of(record: RunRecord) -> dict[str, Any]:
    """All that a setting may change: the method's knobs, the budget and what is shared."""
    question = record.question
    shared = {"trunk": "float32"} | question.shared
    return (
        record.params
        | {f"budget.{k}": v for k, v in question.budget.items()}
        | {f"shared.{k}": v for k, v in shared.items()}
    )


def settings() -> list[Setting]:
    """By method, the best first."""
    found: dict[str, Setting] = {}
    for path in sorted(RECORDS.rglob("*.json")):
        record = read_record(path)
        method, seed = record.question.method, record.question.seed
        one = found.setdefault(f"{method} {record.setting}", Setting(method, knobs_of(record), {}, set()))
        if seed in one.runs or seed in one.diverged:
            raise SystemExit(f"{path} is a second record of one run")
        if record.status == "diverged":
            one.diverged.add(seed)
        else:
            one.runs[seed] = record
    return sorted(found.values(), key=lambda one: (ORDER[one.method], -one.average))


def leader(rows: list[Setting]) -> Setting:
    """The highest mean over the seeds that all settings share."""
    ran = [row for row in rows if row.runs]
    shared = set.intersection(*({*row.runs} for row in ran))
    return max(
        ran, key=lambda row: mean([row.values("average accuracy")[s] for s in shared]) if shared else row.average
    )


def standing(rows: list[Setting]) -> list[Setting]:
    """Settings of a method with three seeds, at the common rate, that predict by their own head."""
    return [
        row
        for row in rows
        if row.runs.keys() >= SEEDS and at_common_rate(row) and row.knobs.get("inference") != "gaussian"
    ]


def at_common_rate(row: Setting) -> bool:
    return all(row.knobs[name] == value for name, value in RATE.items())


def candidates(rows: list[Setting]) -> list[Setting]:
    """Of these, those that put any image on a new row: they can be chosen."""
    return [row for row in standing(rows) if max(row.values("on new rows").values()) > 0]


def discovers(row: Setting) -> bool:
    return min(row.values("on new rows").values()) > DISCOVERS


def worse(one: Setting, best: Setting) -> bool:
    """Beyond chance: the 95 % t interval of the difference, paired by seed, lies below zero."""
    mine, theirs = one.values("average accuracy"), best.values("average accuracy")
    interval = t_interval([mine[seed] - theirs[seed] for seed in sorted(SEEDS)])
    return interval is not None and interval[1] < 0


def chosen(rows: list[Setting]) -> Setting:
    """By the rule of docs/readings.md.

    Of all that are not worse than the best beyond chance: those that discover, if any; of these the default, if it is
    among them, else the best.
    """
    best = max(rows, key=average)
    equals = [row for row in rows if row is best or not worse(row, best)]
    equals = [row for row in equals if discovers(row)] or equals
    return max(equals, key=lambda row: (is_default(row), average(row)))


def average(row: Setting) -> float:
    """Over the seeds that all candidates have."""
    return mean(row.values("average accuracy")[seed] for seed in sorted(SEEDS))


def usual_knobs(method: str) -> dict[str, Any]:
    """Values of docs/methods.md, which are published ones wherever there are some; without what is chosen here."""
    known = suite_methods()[method]
    return known[max(known)].every | load_protocol(JUDGE).params_of(method, "")


def is_default(row: Setting) -> bool:
    return all(row.knobs[name] == value for name, value in usual_knobs(row.method).items())


def name_of(row: Setting) -> str:
    """What it is called, at whatever learning rate and clipping: chosen here, default elsewhere, FEA as printed."""
    chosen_here = wanted_knobs(Wanted(row.method, JUDGE, 0, "medium"))
    known = {"chosen": {key: chosen_here[key] for key in usual_knobs(row.method)}, "default": usual_knobs(row.method)}
    if row.method == "fea":
        known["letter"] = known["default"] | load_params("fea-literal", "fea").params
        gaussian = load_params("fea-gaussian", "fea").params
        known |= {f"{name}, Gaussian": known[name] | gaussian for name in ("chosen", "default")}
    return next((name for name, knobs in known.items() if all(row.knobs[k] == v for k, v in knobs.items())), "")


def wanted_knobs(run: Wanted) -> dict[str, Any]:
    """What `knobs_of` will say of a run of the suite."""
    protocol = load_protocol(run.protocol)
    known = suite_methods()[run.method]
    params = known[max(known)].every | protocol.params_of(run.method, run.backbone or protocol.backbone)
    params |= load_params(run.params, run.method).params if run.params else {}
    shared = {"trunk": "float32"} | protocol.shared.model_dump(mode="json")
    usual = params | {f"budget.{k}": v for k, v in protocol.budgets[run.budget].model_dump(mode="json").items()}
    return usual | {f"shared.{k}": v for k, v in shared.items()} | run.settings
