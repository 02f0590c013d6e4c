"""`bench speed --tricks`: what each trick of the training step gains, one at a time.

The step as it is and the step without one trick take turns in one process, so that a machine that is slow today is slow
for both. What replaces a trick gives equal results; a trick that gains less than 5 % on ViT-B/16 and on ViT-S/14 at 112
pixels is not worth its code.
"""

import itertools
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmark.engine.feed import Prefetcher
from benchmark.protocol.models import Backbone
from benchmark.seeds import repeatable
from benchmark.speed import ROWS, Banked, Cached, onednn_off, seconds, trainer
from benchmark.tokens import backbone, kernels
from benchmark.tokens.backbone import build_vit, split_vit
from benchmark.tokens.memory import MemoryPool

ROUNDS, STEPS = 12, 10
"""Turns of every way to step, and steps of a turn."""


@dataclass(frozen=True)
class Trick:
    """A trick by name, and the step without it."""

    name: str
    without: Callable[[], AbstractContextManager[Any]]
    reads_ahead: bool = True


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Another value under this name, for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def by_autograd(probe: Tensor, x0_hat: Tensor, rest: Tensor, _pool: MemoryPool) -> Tensor:
    return kernels.plain_attention(probe, x0_hat, rest)


def fresh_memory(_pool: MemoryPool, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype)


TRICKS = (
    Trick("oneDNN multiplies (methods/products.py)", onednn_off),
    Trick(
        "attention's gradient by hand, in the cache (tokens/kernels.py)",
        lambda: replaced(backbone, "Attend", SimpleNamespace(apply=by_autograd)),
    ),
    Trick("attention a few images at a time (tokens/kernels.py)", lambda: replaced(kernels, "CACHED_BYTES", 1 << 60)),
    Trick("memory used again (tokens/memory.py)", lambda: replaced(MemoryPool, "take", fresh_memory)),
    Trick("the next batch read ahead (engine/feed.py)", nullcontext, reads_ahead=False),
)


@dataclass(frozen=True)
class Price:
    """How much longer a step takes without a trick: the median of the turns' ratios, and the middle half of them."""

    name: str
    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class Prices:
    """All tricks on one backbone."""

    backbone: str
    batch: int
    device: str
    threads: int
    step: float
    """Seconds of the step as it is."""
    tricks: tuple[Price, ...]


def price(spec: Backbone, batch: int, device: torch.device, threads: int | None, say: Callable[[str], None]) -> Prices:
    """Measure all tricks on a machine that should have nothing else to do."""
    with repeatable(threads), tempfile.TemporaryDirectory(prefix="bench-speed-") as folder, ExitStack() as stack:
        torch.manual_seed(0)
        trunk, block = split_vit(build_vit(spec), spec)
        feed = Banked(Path(folder), trunk.to(device), batch, device)
        ahead = Prefetcher(feed)
        stack.enter_context(ahead.pool)
        step = trainer(Cached(block).to(device), torch.randint(ROWS, (batch,), device=device))
        number = itertools.count()

        def turn(trick: Trick | None) -> float:
            """Median of some steps; the first is not counted."""
            source = ahead if trick is None or trick.reads_ahead else feed
            with nullcontext() if trick is None else trick.without():
                taken = [seconds(lambda: step(source.batch(0, next(number))), device) for _ in range(STEPS + 1)]
            return statistics.median(taken[1:])

        own: list[float] = []
        ratios: dict[str, list[float]] = {trick.name: [] for trick in TRICKS}
        for round_ in range(ROUNDS):
            say(f"round {round_ + 1} of {ROUNDS}")
            for trick in TRICKS:
                before, without, after = turn(None), turn(trick), turn(None)
                own += [before, after]
                ratios[trick.name].append(2 * without / (before + after))
        return Prices(
            backbone=spec.name,
            batch=batch,
            device=str(device),
            threads=torch.get_num_threads(),
            step=statistics.median(own),
            tricks=tuple(Price(name, *quartiles(values)) for name, values in ratios.items()),
        )


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Median, lower and upper quartile."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, low, high


def prices_text(prices: Prices) -> str:
    """For a terminal."""
    from tabulate import tabulate  # noqa: PLC0415

    rows = [[one.name, f"{one.ratio:.2f}", f"{one.low:.2f} to {one.high:.2f}"] for one in prices.tricks]
    heading = f"{prices.backbone}, {prices.batch} images a step, {prices.device}, {prices.threads} threads: "
    heading += f"{prices.step * 1e3:.1f} ms a step"
    headers = ["without", "times as long", "middle half"]
    return f"{heading}\n{tabulate(rows, headers=headers, tablefmt='simple', disable_numparse=True)}"
