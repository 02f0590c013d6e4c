"""Records made of counts, for tests of the report: any method, protocol, change and accuracy, no training."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmark.protocol.catalogue import load_backbone, load_backbones
from benchmark.protocol.protocols import load_protocol
from benchmark.records.question import DataIdentity, Own, Question
from benchmark.records.record import PUBLISHED, RunRecord
from benchmark.records.reference import suite_methods
from benchmark.records.results import PhaseLog, Provenance, SessionResult, SparseCounts, Stored

PAPER_PROTOCOLS = ("cifar10-t1", "cifar10-t2", "cifar100-t2", "cifar100-t5", "tiny-t2", "tiny-t5", "tiny-t10")
UNKNOWN = "0" * 64
"""Stands for the reference backbone's weights, whose digest is not registered; conftest.py makes it known."""
METHODS = ("gm", "simgcd", "autonovel", "frost", "fea", "kmeans")


def fading(sessions: int, start: float, loss: float) -> list[list[float]]:
    """An accuracy matrix a[t][j] that starts at `start` for base classes and loses `loss` points a session."""
    return [[start - 20 * (j > 0) - loss * (t - j) for j in range(t + 1)] for t in range(sessions)]


def counts_of(row: list[float], sizes: list[int], images: int) -> np.ndarray:
    """Counts in which every class of session j has round(row[j] %) of its images right, the others on row 0.

    (Class 0's go to row 1.) So the identity is the best assignment of every session's new rows.
    """
    right = np.rint(np.repeat(row, sizes[: len(row)]) * images / 100).astype(int)
    counts = np.diag(right)
    counts[1:, 0] += images - right[1:]
    counts[0, 1] += images - right[0]
    return counts


def phases_of(method: str, version: int, budget: dict[str, Any], images: int, own: bool) -> tuple[PhaseLog, ...]:
    names = ("discover",) if own else suite_methods()[method][version].phases
    logs = []
    for k, name in enumerate(names):
        epochs = budget["novel_epochs"] // len(names) + (k < budget["novel_epochs"] % len(names))
        falling = [round(2.0 / (k + 1), 4) for k in range(epochs)]
        taken = min(budget["batch"], images)
        shape = {"epochs": epochs, "steps": images // taken, "images": taken, "memory": 0}
        logs.append(PhaseLog(name=name, **shape, terms={"label": falling}, diagnostics={"share_on_new_rows": falling}))
    return tuple(logs)


def make_record(
    method: str, protocol: str, seed: int, accuracy: list[list[float]] | None = None, **options: Any
) -> RunRecord:
    """One record that could be true; `changed` holds parameters, budget.*, shared.*, views, backbone.

    A method that the suite does not have is an own one. Other options: source (its digest), images (a part of the data:
    fewest and most of a class, train and test), probe (its accuracy matrix), budget, status, reason,
    commit, dirty, stored, version, threads.
    """
    spec = load_protocol(protocol)
    classes = [list(own) for own in spec.classes]
    sizes = [len(own) for own in classes]
    accuracy = fading(len(sizes), 90, 2) if accuracy is None else accuracy
    changed, version = options.get("changed", {}), options.get("version", 1)
    data = spec.data_with(changed.get("shared.images"))
    backbone = load_backbones().get(changed.get("backbone", ""), load_backbone(spec.backbone))
    own = options.get("source", None if method in suite_methods() else "5" * 64)
    plain = {key: None for key in changed if "." not in key and key not in ("views", "backbone")}
    defaults = plain if own else suite_methods()[method][version].params
    known = defaults if own else defaults | suite_methods()[method][version].later
    train, test = options.get("images", (data.span("train"), data.span("test")))
    params = defaults | spec.params_of(method, changed.get("backbone", spec.backbone))
    params |= {k: v for k, v in changed.items() if k in known}
    parts = {"budget": spec.budgets[options.get("budget", "paper")].model_dump(mode="json")}
    parts["shared"] = spec.shared.model_dump(mode="json")
    for key, value in changed.items():
        part, dot, name = key.partition(".")
        if dot:
            parts[part][name] = value
    budget = parts["budget"]
    question = Question(
        method=method,
        method_version=version,
        method_source=own,
        params=params,
        protocol=spec.identity,
        backbone={
            "name": changed.get("backbone", spec.backbone),
            "weights": backbone.identity or UNKNOWN,
            "projector": list(backbone.projector),
            "network": backbone.network,
        },
        **parts,
        views=changed.get("views", spec.views),
        seed=seed,
        data=DataIdentity(digest="d" * 64 if "images" in options else data.registered, train=train, test=test),
    )
    sessions, probe = [], options.get("probe")
    for t, row in enumerate(accuracy):
        known, images = sum(sizes[:t]), train[0] * sizes[t]
        fixed = tuple(range(sizes[t]))
        base = {"epochs": budget["base_epochs"], "steps": images // min(budget["batch"], images)}
        falling = [round(2.0 / (k + 1), 4) for k in range(budget["base_epochs"])]
        first = PhaseLog(
            name="base", **base, images=min(budget["batch"], images), memory=0, terms={"label": falling}, diagnostics={}
        )
        own_classes = list(range(known, known + sizes[t]))
        sessions.append(
            SessionResult(
                classes=tuple(classes[t]),
                counts=SparseCounts.of(counts_of(row, sizes, test[0])),
                train_counts=SparseCounts(true=own_classes, row=own_classes, images=[train[0]] * sizes[t]),
                probe=SparseCounts.of(counts_of(probe[t], sizes, test[0])) if probe else None,
                assignment=fixed,
                train_assignment=fixed,
                phases=phases_of(method, version, budget, images, own is not None) if t else (first,),
            )
        )
    provenance = Provenance(
        commit=options.get("commit", "a" * 40), dirty=options.get("dirty", False), threads=options.get("threads", 2)
    )
    return RunRecord(
        key=question.key,
        status=options.get("status", "done"),
        reason=options.get("reason"),
        question=question,
        own=Own(defaults=defaults if own else None),
        stored=options.get("stored", Stored()),
        sessions=tuple(sessions),
        provenance=provenance,
    )


def save(out: Path, *args: Any, folder: str = PUBLISHED, **options: Any) -> RunRecord:
    """Write a record among the published ones, or among the user's own."""
    record = make_record(*args, **options)
    record.save(out, folder)
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
                classes = sum(map(len, load_protocol(protocol).classes))
                stored = Stored(images=20 * classes if method in ("gm", "simgcd") else 0)
                save(out, method, protocol, seed, fading(count, start[method] + seed, 2), stored=stored)
        for k, changed in enumerate(ablation):
            for protocol in PAPER_PROTOCOLS[:4]:
                save(out, "fea", protocol, seed, fading(sessions_of(protocol), 84 + k + seed, 2), changed=changed)
        for k, changed in enumerate(omega):
            save(out, "fea", "cifar100-t5", seed, fading(6, 85 + k + seed, 2), changed=changed)
