"""Session 0, trained once for all methods: the same question has the same weights, kept in the cache."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmark.digests import digest_of
from benchmark.display import Display, Stop
from benchmark.engine.checkpoint import Checkpoint, Progress, State, restore
from benchmark.engine.feed import BaseFeed, prefetched
from benchmark.engine.request import Request
from benchmark.engine.training import TrainingPlan, fit
from benchmark.engine.world import World, open_world, pick_device
from benchmark.files import cache_folder, make_folder, waiting_lock
from benchmark.records import provenance
from benchmark.seeds import repeatable
from benchmark.tokens.backbone import LastBlock
from methods.contract import LabelledBatch
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


def base_session(world: World, cache: Path) -> tuple[BaseLearner, Progress, bool]:
    """The trained base model, what was logged of it, and whether it came from the cache.

    Shared by every run that asks the same question of it; whoever comes first trains, the others wait.
    """
    request, budget = world.request, world.request.budget
    question = base_question(request)
    folder = make_folder(base_folder(request, world.device.type, torch.get_num_threads(), cache))
    world.seeded("init", 0, 0)
    head = CosineHead(world.block.width, world.stream.new(0), request.shared.tau_c).to(world.device)
    learner = BaseLearner(world.block, head)
    feed = BaseFeed(world, budget.batch)
    save = Checkpoint(folder / "state.safetensors", question)
    total = budget.base_epochs * feed.steps
    shape = {"epochs": budget.base_epochs, "steps": feed.steps, "images": feed.size, "memory": 0}
    with waiting_lock(folder / "lock", "training the same base session", world.display, world.stop):
        loaded = save.load(lambda progress: progress.shapes == [shape] and 0 <= progress.step <= total)
        progress, momentum = Progress(terms=[{}], diagnostics=[{}], shapes=[shape]), {}
        if loaded is not None:
            restore(learner, loaded.model)
            progress, momentum = loaded.progress, loaded.momentum
        cached = loaded is not None and progress.step == total
        if not cached:
            plan = TrainingPlan("base session", 0, 0, budget.base_epochs, budget.base_lr, budget.clip, request.shared)
            state = State(progress, momentum, save)
            with prefetched(feed) as ready:
                fit(learner, ready, plan, seed=world.seed, state=state, stop=world.stop, display=world.display)
        save.before.unlink(missing_ok=True)
        (folder / DONE).touch()
    return learner, progress, cached


def trained_beforehand(request: Request, device: str, threads: int | None, display: Display, stop: Stop) -> Path:
    """What `bench base` does: where the trained base session is."""
    cache = cache_folder()
    with repeatable(threads), display:
        world = open_world(request, pick_device(device), display, stop)
        base_session(world, cache)
        return base_folder(request, world.device.type, torch.get_num_threads(), cache)
