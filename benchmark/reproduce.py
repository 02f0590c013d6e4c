"""`bench reproduce`: make a recorded run again and compare.

On the kind of machine and with the versions that made the record, the bits must be the same. Elsewhere the last bits
differ and grow, so the figures must lie within the spread of the seeds that are recorded of the same setting.
"""

import shutil
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

import methods
from benchmark.display import Display, Stop
from benchmark.errors import UsageError
from benchmark.records import provenance
from benchmark.records.reading import read_record
from benchmark.records.record import CLASS, DIR, FILE, RunRecord, record_path
from benchmark.records.results import Provenance
from benchmark.records.scoring import METRICS
from benchmark.report.runs import Run, require_records
from benchmark.report.single import chosen_among

SPREAD = 3.0
"""A figure may be so many sample deviations away from the mean over the recorded seeds."""
FOLDER = "reproduced"


@dataclass(frozen=True)
class Comparison:
    """A figure then and now, and what is recorded of other seeds."""

    metric: str
    recorded: float
    now: float
    seeds: int
    mean: float
    deviation: float | None
    """None with fewer than two seeds."""

    @property
    def within(self) -> bool:
        return self.deviation is not None and abs(self.now - self.mean) <= SPREAD * self.deviation


@dataclass(frozen=True)
class Reproduction:
    """What came out."""

    run: str
    same_bits: bool
    differs: list[str]
    """What of machine and versions is another than the record's; empty: the bits must be the same."""
    comparisons: list[Comparison]

    @property
    def complaint(self) -> str:
        """What is wrong, in half a sentence; empty if nothing is."""
        if self.same_bits:
            return ""
        if not self.differs:
            return "the machine and the versions are those of the record, and the bits are others"
        if any(c.deviation is None for c in self.comparisons):
            return "the bits are others, and fewer than two seeds are recorded to say how far that may go"
        outside = [c.metric for c in self.comparisons if not c.within]
        return f"outside the spread of the recorded seeds: {', '.join(outside)}" if outside else ""

    def text(self) -> str:
        if self.same_bits:
            return f"{self.run}: the same bits"
        rows = [
            [c.metric, f"{c.recorded:.2f}", f"{c.now:.2f}", spread_text(c), "yes" if c.within else "no"]
            for c in self.comparisons
        ]
        table = tabulate(rows, headers=["", "recorded", "now", "recorded seeds", "within"], disable_numparse=True)
        why = f" (other than recorded: {', '.join(self.differs)})" if self.differs else ""
        return f"{self.run}: other bits{why}\n\n{table}"

    def document(self) -> dict[str, Any]:
        figures = [vars(c) | {"within": c.within} for c in self.comparisons]
        return {"run": self.run, "same_bits": self.same_bits, "differs": self.differs, "figures": figures}


def spread_text(one: Comparison) -> str:
    if one.deviation is None:
        return f"{one.seeds} only"
    return f"{one.mean:.2f} ± {one.deviation:.2f}, {one.seeds} seeds"


def reproduce(
    results: Path,
    text: str,
    *,
    weights: Path | None = None,
    data_dir: Path | None = None,
    offline: bool,
    display: Display,
    stop: Stop,
) -> Reproduction:
    """Make a finished run again, beside the records, and compare. Weights and data may lie elsewhere than they did."""
    found = require_records(results)
    run = chosen_among(found, results, text)
    record = read_record(results / run.file)
    if record.status != "done":
        raise UsageError(f"{run.name} is {record.status}, not done: there is nothing to compare with")
    options = with_files(record, weights, data_dir)
    again = made_again(record, options, results / FOLDER, offline=offline, display=display, stop=stop)
    return compared(run, record, again, [other for other in found.runs if other.setting == run.setting])


def made_again(
    record: RunRecord, options: dict[str, Any], out: Path, *, offline: bool, display: Display, stop: Stop
) -> RunRecord:
    """The same question, answered anew, base session included; an attempt that was interrupted is taken up."""
    from benchmark.data.fetch import Fetching, is_offline  # noqa: PLC0415
    from benchmark.engine.request import Lookups, ask  # noqa: PLC0415
    from benchmark.engine.run import readable_record  # noqa: PLC0415 - imports torch
    from benchmark.engine.run import run as run_request  # noqa: PLC0415

    options = dict(options)
    where = {name: options.pop(name, None) for name in ("device", "threads")}
    request = ask(**options, lookups=Lookups(None if is_offline(offline) else Fetching(stop)))
    difference = request.question.difference(record.question.document())
    if difference:
        raise UsageError(f"the same question cannot be asked here: {difference}")
    path, cache = record_path(out, record.question), out / "cache" / record.key[:32]
    earlier = readable_record(path)
    if earlier is None or earlier.status != "partial":  # of an earlier reproduction: this one is to be made anew
        path.unlink(missing_ok=True)
        shutil.rmtree(cache, ignore_errors=True)
    return run_request(
        request,
        out=out,
        cache=cache,
        device=where["device"] or "auto",
        threads=where["threads"],
        display=display,
        stop=stop,
    )


def with_files(record: RunRecord, weights: Path | None, data_dir: Path | None) -> dict[str, Any]:
    """The record's options with paths that can be opened. An own method's file is compared before it is ever run."""
    options = record.options
    options |= {} if weights is None else {"weights": str(weights)}
    options |= {} if data_dir is None else {"data_dir": str(data_dir)}
    method, _, cls = options["method"].rpartition(":")
    if {FILE, DIR} & {str(value) for value in options.values()} or cls == CLASS:
        raise UsageError(f"the record does not say where its files are: type {record.command} with them in place")
    for name in ("weights", "data_dir"):
        if name in options:
            options[name] = Path(options[name]).expanduser()
    for name in ("method", "protocol", "backbone"):
        if name in options:
            options[name] = str(Path(options[name]).expanduser())
    if record.question.method_source is not None:
        path = Path(method).expanduser()
        if not path.is_file():
            raise UsageError(f"the method's file {method} is not there")
        if methods.own_digest(path) != record.question.method_source:
            raise UsageError(f"{method} is not the method that made the record: it was not run")
    return options


def compared(run: Run, record: RunRecord, again: RunRecord, seeds: list[Run]) -> Reproduction:
    """The record and its reproduction; `seeds` are the finished runs of the same setting."""
    comparisons = []
    for metric in METRICS:
        values = [value for other in seeds if (value := other.figures()[metric.name]) is not None]
        deviation = statistics.stdev(values) if len(values) > 1 else None
        then, now = (getattr(one.metrics(), metric.name) for one in (record, again))
        comparisons.append(Comparison(metric.title, then, now, len(values), statistics.mean(values), deviation))
    return Reproduction(
        run.name, record.agrees_with(again), differing(record.provenance, again.provenance), comparisons
    )


def differing(then: Provenance, now: Provenance) -> list[str]:
    """What decides the last bits and is another: processor, device, threads, versions.

    Older records tell the processor by its name alone.
    """
    places = {"machine": (then.machine, now.machine) if then.machine else (then.platform, now.platform)}
    places |= {name: (getattr(then, name), getattr(now, name)) for name in ("device", "threads")}
    packages = [name for name in provenance.PACKAGES if name != "cncd-bench"]
    places |= {name: (then.versions.get(name, ""), now.versions.get(name, "")) for name in packages}
    return [name for name, (one, other) in places.items() if one != other]
