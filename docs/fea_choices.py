"""How FEA's open readings and the learning rates of digits-t2 were chosen: `python docs/fea_choices.py OUT`.

Every configuration runs on four protocols made of *base digits only* (0-5, training images only, a third of them held
out for scoring): each pair of digits plays the novel classes once, and once all three pairs arrive in turn. No test
image and no novel digit of digits-t2 takes part. Finished runs below OUT are not repeated. Writes docs/fea-choices.csv
(a line a run) and the tables of docs/fea-choices.md.
"""

from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
SEEDS = (0, 1, 2)
WORKERS = 2
PROTOCOLS: dict[str, list[list[int]]] = {
    "holdout-45": [[0, 1, 2, 3], [4, 5]],
    "holdout-23": [[0, 1, 4, 5], [2, 3]],
    "holdout-01": [[2, 3, 4, 5], [0, 1]],
    "holdout-t2": [[0, 1], [2, 3], [4, 5]],
}

LITERAL: dict[str, Any] = {"epsilon": 0.1, "ce_rows": "all", "ce_warmup": 0.0, "fd": "sq_l2", "lambda_fd": 0.01}
LATE = LITERAL | {"ce_warmup": 0.15}

Study = tuple[str, str, list[dict[str, Any]]]
"""A title, the method, and the settings to compare."""

STUDIES: list[Study] = []


def protocol_file(name: str, folder: Path) -> Path:
    """A hold-out protocol: digits-t2 with other data and sessions."""
    document = yaml.safe_load((HERE.parent / "protocols" / "digits-t2.yaml").read_text())
    document |= {"name": name, "title": name, "dataset": "digits-holdout", "sessions": PROTOCOLS[name]}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def figures(job: tuple[str, str, int, dict[str, Any], Path]) -> dict[str, Any]:
    """One run, one row."""
    import benchmark.errors  # noqa: PLC0415 - in the worker

    method, protocol, seed, settings, out = job
    path = protocol_file(protocol, out / "protocols" / f"{seed}")
    try:
        record = benchmark.run(method, str(path), seed, settings=settings, threads=1, out=out)
    except benchmark.errors.DivergedError:
        return {"protocol": protocol, "seed": seed, "diverged": True}
    metrics, found = record.metrics(), record.diagnostics()["sessions"]
    return {
        "protocol": protocol,
        "seed": seed,
        "average accuracy": metrics.average_accuracy,
        "known": metrics.accuracy[-1][0],
        "novel": metrics.average_discovery,
        "AvF": metrics.average_forgetting,
        "on new rows": 100 * min(row["train_share_on_new_rows"] for row in found),
    }


def named(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in settings.items()) or "defaults"
