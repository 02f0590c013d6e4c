"""Session 0, trained once for all methods: the same question has the same weights, kept in the cache."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmark import provenance
from benchmark.backbone import LastBlock
from benchmark.checkpoint import Checkpoint, Progress, restore
from benchmark.descent import Course, fit
from benchmark.feed import BaseFeed
from benchmark.files import cache_folder, make_folder, waiting_lock
from benchmark.intact import digest_of
from benchmark.progress import Display, Stop
from benchmark.request import Request
from benchmark.seeds import repeatable
from benchmark.setting import Setting, open_setting, pick_device
from benchmark.stream import LabelledBatch
from methods.heads import CosineHead

DONE = "done"
"""Name of an empty file beside a trained base session. Sweeps ask for it; whoever uses the state checks it."""


class BaseLearner(nn.Module):
    """Session 0: cross-entropy on the labelled base classes."""

    def __init__(self, block: LastBlock, head: CosineHead) -> None:
        super().__init__()
        self.block, self.head = block, head

    def losses(self, batch: LabelledBatch) -> dict[str, Tensor]:
        return {"label": F.cross_entropy(self.head(self.block(batch.tokens)), batch.labels)}

    def diagnose(self, batch: LabelledBatch) -> dict[str, Tensor]:  # noqa: ARG002 - the counts of session 0 tell enough
        return {}


def base_question(request: Request) -> dict[str, Any]:
    """What the base session depends on: nothing of the method, so that all methods start from the same weights."""
    question, budget = request.question, request.budget
    return {
        "schema": 3,
        "engine": provenance.engine_source(),
        "classes": question.protocol["classes"][0],
        "dataset": question.data.digest,
        "augmentation": question.protocol["augmentation"],
        "backbone": question.backbone,
        "budget": budget.model_dump(include={"base_epochs", "batch", "base_lr", "clip"}),
        "shared": question.shared,
        "views": question.views,
        "seed": question.seed,
    }


def base_folder(request: Request, device: str, threads: int, cache: Path) -> Path:
    """Where a base session is kept, and its `done` once it is trained.

    Threads and device decide the last bits: they are no part of any question, but those who share must share them too.
    """
    machine = {"device": device, "threads": threads}
    return cache / "base" / digest_of(base_question(request) | machine)[:32]


def base_session(setting: Setting, cache: Path) -> tuple[BaseLearner, Progress, bool]:
    """The trained base model, what was logged of it, and whether it came from the cache.

    Shared by every run that asks the same question of it; whoever comes first trains, the others wait.
    """
    request, budget = setting.request, setting.request.budget
    question = base_question(request)
    folder = make_folder(base_folder(request, setting.device.type, torch.get_num_threads(), cache))
    setting.seeded("init", 0, 0)
    head = CosineHead(setting.block.width, setting.stream.new(0), setting.request.shared.tau_c).to(setting.device)
    learner = BaseLearner(setting.block, head)
    feed = BaseFeed(setting, budget.batch)
    save = Checkpoint(folder / "state.safetensors", question)
    total = budget.base_epochs * feed.steps
    shape = {"epochs": budget.base_epochs, "steps": feed.steps, "images": feed.size, "memory": 0}
    with waiting_lock(folder / "lock", "training the same base session", setting.display, setting.stop):
        loaded = save.load(lambda progress: progress.shapes == [shape] and 0 <= progress.step <= total)
        progress, momentum = Progress(logs=[{}], figures=[{}], shapes=[shape]), {}
        if loaded is not None:
            restore(learner, loaded.model)
            progress, momentum = loaded.progress, loaded.momentum
        cached = loaded is not None and progress.step == total
        if not cached:
            course = Course(
                "base session", 0, 0, budget.base_epochs, budget.base_lr, budget.clip, setting.request.shared
            )
            fit(learner, feed, course, setting, progress, momentum, save)
        save.before.unlink(missing_ok=True)
        (folder / DONE).touch()
    return learner, progress, cached


def trained_beforehand(request: Request, device: str, threads: int | None, display: Display, stop: Stop) -> Path:
    """What `bench base` does: where the trained base session is."""
    cache = cache_folder()
    with repeatable(threads), display:
        setting = open_setting(request, pick_device(device), display, stop)
        base_session(setting, cache)
        return base_folder(request, setting.device.type, torch.get_num_threads(), cache)
