"""Records made of counts, for tests of the report: any method, protocol, change and accuracy, no training."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmark.protocol import load_protocol
from benchmark.record import PhaseLog, Provenance, Question, RunRecord, SessionResult, sparse

IMAGES = {"cifar10": 1000, "cifar100": 100, "tiny-imagenet": 50, "digits": 60}
PAPER_PROTOCOLS = ("cifar10-t1", "cifar10-t2", "cifar100-t2", "cifar100-t5", "tiny-t2", "tiny-t5", "tiny-t10")
METHODS = ("gm", "simgcd", "autonovel", "frost", "fea", "kmeans")


def fading(sessions: int, start: float, loss: float) -> list[list[float]]:
    """An accuracy matrix a[t][j] that starts at `start` for base classes and loses `loss` points a session."""
    return [[start - 20 * (j > 0) - loss * (t - j) for j in range(t + 1)] for t in range(sessions)]


def counts_of(row: list[float], sizes: list[int], images: int) -> np.ndarray:
    """Counts in which every class of session j has round(row[j] %) of its images right, the others one row further."""
    total = sum(sizes[: len(row)])
    shares = np.repeat(row, sizes[: len(row)])
    right = np.rint(shares * images / 100).astype(int)
    counts = np.diag(right)
    counts[np.arange(total), (np.arange(total) + 1) % total] += images - right
    return counts


def make_record(
    method: str, protocol: str, seed: int, accuracy: list[list[float]] | None = None, **options: Any
) -> RunRecord:
    """One record; options: changed, params, status, commit, dirty, budget, stored, reason, epochs."""
    spec = load_protocol(protocol)
    classes = [list(own) for own in spec.classes]
    sizes = [len(own) for own in classes]
    images = IMAGES[spec.dataset]
    accuracy = fading(len(sizes), 90, 2) if accuracy is None else accuracy
    changed = options.get("changed", {})
    question = Question(
        method=method,
        method_version=options.get("version", 1),
        params=changed,
        protocol={"name": protocol, "classes": classes},
        backbone={"name": "none", "weights": ""},
        budget={"name": options.get("budget", "paper")},
        shared={},
        views=2,
        seed=seed,
    )
    sessions = []
    epochs = options.get("epochs", 4)
    for t, row in enumerate(accuracy):
        counts = sparse(counts_of(row, sizes, images))
        fixed = tuple(range(sizes[t]))
        falling = [round(2.0 / (k + 1), 4) for k in range(epochs)]
        log = PhaseLog(
            name="discover", epochs=epochs, terms={"label": falling}, diagnostics={"share_on_new_rows": falling}
        )
        sessions.append(
            SessionResult(
                classes=tuple(classes[t]),
                counts=counts,
                train_counts=counts,
                assignment=fixed,
                train_assignment=fixed,
                phases=(log,) if t else (),
            )
        )
    return RunRecord(
        key=question.key,
        status=options.get("status", "done"),
        reason=options.get("reason"),
        question=question,
        budget_name=options.get("budget", "paper"),
        changed=changed,
        stored_per_class=options.get("stored", "nothing"),
        optimiser_steps=100,
        sessions=tuple(sessions),
        provenance=Provenance(commit=options.get("commit", "a" * 40), dirty=options.get("dirty", False), threads=2),
    )


def save(out: Path, *args: Any, **options: Any) -> RunRecord:
    record = make_record(*args, **options)
    record.save(out)
    return record


def sessions_of(protocol: str) -> int:
    return len(load_protocol(protocol).classes)


def fill(out: Path, seeds: int = 3) -> None:
    """All methods on all protocols, the ablation and the omega table, `seeds` seeds each, a point apart."""
    start = dict(zip(METHODS, (84.0, 82.0, 60.0, 80.0, 88.0, 78.0), strict=True))
    ablation = ({"css": False, "bap": False}, {"bap": False}, {"css": False})
    omega = tuple({"omega": value} for value in (0.0, 0.5, 1.0, 4.0))
    for seed in range(seeds):
        for protocol in (*PAPER_PROTOCOLS, "digits-t2"):
            count = sessions_of(protocol)
            for method in METHODS:
                stored = "20 images" if method in ("gm", "simgcd") else "nothing"
                save(out, method, protocol, seed, fading(count, start[method] + seed, 2), stored=stored)
        for k, changed in enumerate(ablation):
            for protocol in PAPER_PROTOCOLS[:4]:
                save(out, "fea", protocol, seed, fading(sessions_of(protocol), 84 + k + seed, 2), changed=changed)
        for k, changed in enumerate(omega):
            save(out, "fea", "cifar100-t5", seed, fading(6, 85 + k + seed, 2), changed=changed)
