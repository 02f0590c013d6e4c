"""The only optimiser of the suite: `fit` descends on whatever terms a learner returns, and saves as it goes."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from benchmark.display import Display, Stop
from benchmark.engine.checkpoint import Progress, State, Stateful
from benchmark.engine.feed import Feed
from benchmark.errors import DivergedError, InterruptedRunError, UsageError
from benchmark.protocol.models import Shared
from benchmark.seeds import seed_for


@dataclass(frozen=True)
class TrainingPlan:
    """One stretch of training with its own optimiser and cosine."""

    title: str
    session: int
    phase: int
    epochs: int
    lr: float
    clip: float | None
    shared: Shared


Taken = TypeVar("Taken")
Taken_contra = TypeVar("Taken_contra", contravariant=True)
"""What a learner learns from: a batch."""


class Learner(Stateful, Protocol[Taken_contra]):
    """What can be trained: a method, or the base session's classifier."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...

    def train(self) -> object: ...

    def losses(self, batch: Taken_contra) -> dict[str, Tensor]: ...

    def diagnose(self, batch: Taken_contra) -> dict[str, Tensor]: ...


def learning_rate(lr: float, floor: float, epoch: int, epochs: int) -> float:
    """Cosine by epoch from `lr` towards `floor * lr`."""
    return lr * (floor + (1 - floor) * (1 + math.cos(math.pi * epoch / epochs)) / 2)


def fit(
    learner: Learner[Taken],
    feed: Feed[Taken],
    plan: TrainingPlan,
    *,
    seed: int,
    state: State,
    stop: Stop,
    display: Display,
) -> None:
    """Descend on the learner's terms from where `state` stands to the end of the plan.

    One optimiser for all methods: SGD with momentum, a cosine by epoch, no weight decay on biases and other 1-d
    tensors. Stops at the first loss that is not finite; the last saved state stays.
    """
    progress, shared = state.progress, plan.shared
    parameters = {name: p for name, p in learner.named_parameters() if p.requires_grad}
    optimiser = sgd([*parameters.values()], plan.lr, shared)
    for name, buffer in state.momentum.items():
        optimiser.state[parameters[name]]["momentum_buffer"] = buffer.to(parameters[name].device, copy=True)
    total = plan.epochs * feed.steps
    display.start(plan.title, total, progress.step)
    learner.train()
    clock = time.monotonic()

    def keep() -> None:
        nonlocal clock
        progress.seconds += time.monotonic() - clock
        clock = time.monotonic()
        if not all(bool(torch.isfinite(p).all()) for p in parameters.values()):
            raise DivergedError(f"a weight is not finite in {plan.title}, after {progress.step} steps")
        held = {n: optimiser.state[p].get("momentum_buffer") for n, p in parameters.items()}
        state.checkpoint.save(progress, learner, {n: b for n, b in held.items() if b is not None})

    while progress.step < total:
        epoch, step = divmod(progress.step, feed.steps)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(plan.lr, shared.lr_floor, epoch, plan.epochs)
        batch = feed.batch(epoch, step)
        seed_for(seed, "noise", plan.session, plan.phase, progress.step)
        terms = checked_terms(learner.losses(batch))
        values = dict(zip(terms, torch.stack([*terms.values()]).tolist(), strict=True)) if terms else {}
        for name, value in values.items():
            if not math.isfinite(value):
                raise DivergedError(f"term '{name}' is {value} in {plan.title}, epoch {epoch}, step {step}")
        if terms:
            descend(optimiser, [*parameters.values()], terms, plan.clip)
        for name, value in values.items():
            entry = progress.sums.setdefault(name, [0.0, 0])
            progress.sums[name] = [entry[0] + value, entry[1] + 1]
        progress.step += 1
        progress.optimiser_steps += bool(terms)
        epoch_ended = progress.step % feed.steps == 0
        if epoch_ended:
            seed_for(seed, "diagnose", plan.session, plan.phase, epoch)
            with torch.no_grad():
                log_epoch(progress, epoch, checked_figures(learner.diagnose(batch)))
        display.step(progress.step)
        if stop.signal is not None:
            keep()
            raise InterruptedRunError(stop.signal, "the state is saved")
        if state.checkpoint.due(epoch_ended=epoch_ended):
            keep()
    keep()


def sgd(parameters: list[nn.Parameter], lr: float, shared: Shared) -> torch.optim.SGD:
    """The optimiser of every method: momentum, and weight decay on matrices only."""
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "decay": shared.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "decay": 0.0},
    ]
    return torch.optim.SGD([group for group in groups if group["params"]], lr=lr, momentum=shared.momentum)


def descend(
    optimiser: torch.optim.SGD, parameters: list[nn.Parameter], terms: dict[str, Tensor], clip: float | None = None
) -> None:
    """One step down the sum of the terms."""
    optimiser.zero_grad()
    torch.stack([*terms.values()]).sum().backward()
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(parameters, clip)
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            if group["decay"] and parameter.grad is not None:
                # what torch's own weight_decay adds, to the bit, but in place: it would fill fresh memory every step
                parameter.grad.add_(parameter.detach(), alpha=group["decay"])
    optimiser.step()


def checked_terms(terms: dict[str, Tensor]) -> dict[str, Tensor]:
    """A method's terms, if the engine can descend on them."""
    if not isinstance(terms, dict):
        raise UsageError(f"the method's losses must be a dictionary of terms, not {type(terms).__name__}")
    for name, term in terms.items():
        if type(term) not in (Tensor, nn.Parameter) or term.ndim != 0:
            raise UsageError(f"the method's term '{name}' must be a tensor with a single number")
    if terms and not any(term.requires_grad for term in terms.values()):
        raise UsageError(f"none of the method's terms ({', '.join(terms)}) depends on a trained parameter")
    return terms


def checked_figures(figures: dict[str, Tensor]) -> dict[str, float]:
    """A method's diagnostic figures as numbers."""
    try:
        return {name: float(value) for name, value in figures.items()}
    except (AttributeError, TypeError, ValueError, RuntimeError):
        raise UsageError("the method's diagnose must return single numbers by name") from None


def log_epoch(progress: Progress, epoch: int, figures: dict[str, float]) -> None:
    """Close an epoch: the mean of every term and the diagnostic figures; none where one was absent or not finite."""
    means = {name: total / count for name, (total, count) in progress.sums.items()}
    for log, values in ((progress.terms[-1], means), (progress.diagnostics[-1], figures)):
        for name, value in values.items():
            rounded = float(f"{value:.4g}") if math.isfinite(value) else None
            log.setdefault(name, [None] * epoch).append(rounded)
        for logged in log.values():
            logged.extend([None] * (epoch + 1 - len(logged)))
    progress.sums = {}
