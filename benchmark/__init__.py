"""A reproducible benchmark of continual novel class discovery.

`benchmark.run(method="fea", protocol="digits-t2", ...)` is `bench run` from Python; `benchmark.load("results")` gives
all finished runs as a data frame. Nothing here imports torch until it is called: the command line must answer quickly.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from benchmark.display import Display, Stop
    from benchmark.records.record import RunRecord


def run(
    method: str = "fea",
    protocol: str = "digits-t2",
    seed: int = 0,
    *,
    backbone: str | None = None,
    weights: str | Path | None = None,
    budget: str = "paper",
    views: int | str | None = None,
    params: str | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str = "auto",
    threads: int | None = None,
    data_dir: str | Path | None = None,
    out: str | Path = "results",
    offline: bool = False,
    keep: bool = False,
    display: "Display | None" = None,
    stop: "Stop | None" = None,
) -> "RunRecord":
    """Answer one question and return its record; `record.metrics()` has the figures.

    `settings` are what `--set` takes: `{"omega": 1, "budget.lr": 0.02, "shared.tau_c": 1}`. A finished run is answered
    from its record, an unfinished one is resumed. Data and weights that are missing are fetched, unless `offline`.
    """
    from benchmark.data.fetch import Fetching, is_offline  # noqa: PLC0415
    from benchmark.display import Stop  # noqa: PLC0415
    from benchmark.engine.request import Lookups, ask  # noqa: PLC0415

    stop = stop or Stop()

    request = ask(
        method,
        protocol,
        seed,
        backbone=backbone,
        weights=Path(weights) if weights is not None else None,
        budget=budget,
        views=views,
        params=params,
        settings=settings or {},
        data_dir=Path(data_dir) if data_dir is not None else None,
        lookups=Lookups(None if is_offline(offline) else Fetching(stop, quiet=display is None)),
    )
    from benchmark.engine.run import run as run_request  # noqa: PLC0415 - imports torch; after the request was found good

    return run_request(request, out=Path(out), device=device, threads=threads, keep=keep, display=display, stop=stop)


def load(results: str | Path = "results", *, own: bool = True) -> "pd.DataFrame":
    """All finished runs below a results folder, the user's own among them if wanted: a row for every session of each.

    Columns: run, protocol, method, label, seed, environment, variant, group, own; session, classes (met so far),
    overall, known, novel, on_new_rows, seconds, C0, C1, ... (accuracy of each session's classes); average_accuracy,
    average_forgetting, average_discovery, the same of the probe (probe_average_accuracy, ...), stored_images,
    stored_numbers, the same in all rows of a run.
    """
    from benchmark.report.reading import load as read  # noqa: PLC0415

    return read(Path(results), own=own)
