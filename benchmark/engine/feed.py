"""Which images and which views a step takes: drawn epoch by epoch, from the seed and the place in the run alone."""

import math
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from benchmark.data.views import CLEAN
from benchmark.engine.world import World
from benchmark.seeds import generator
from benchmark.tokens.sources import BankSource
from methods.contract import Batch, LabelledBatch, MemoryBatch, Phase, Tokens

Given_co = TypeVar("Given_co", covariant=True)
"""What a feed's batches are."""


class Feed(Protocol[Given_co]):
    """Batches by epoch and step."""

    steps: int
    from_disk: bool
    """Whether tokens are read from disk, so that reading ahead gains time."""

    def batch(self, epoch: int, step: int) -> Given_co: ...


def shuffled_places(size: int, count: int, random: torch.Generator) -> Tensor:
    """`count` places out of `size` in shuffled rounds: nothing comes twice before everything came once."""
    rounds = [torch.randperm(size, generator=random) for _ in range(math.ceil(count / size))]
    return torch.cat(rounds)[:count]


def different_views(count: int, views: int | str, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two different augmented views for each of `count` images."""
    if views == "live":
        first, second = torch.randint(CLEAN + 1, 2**62, (2, count), generator=random)
        return first, second
    total = int(views)
    first = torch.randint(total, (count,), generator=random)
    second = (first + 1 + torch.randint(total - 1, (count,), generator=random)) % total
    return first + CLEAN + 1, second + CLEAN + 1


class Prefetcher(Generic[Given_co]):
    """Gathers the next batch in a thread while this one is computed with; batches are what they would be without.

    What a batch holds depends on its epoch and step alone, so asking for another one than expected only costs time.
    """

    def __init__(self, feed: Feed[Given_co]) -> None:
        self.feed, self.steps, self.from_disk = feed, feed.steps, False
        self.pool = ThreadPoolExecutor(1)
        self.expected: tuple[tuple[int, int], Future[Given_co]] | None = None

    def batch(self, epoch: int, step: int) -> Given_co:
        if self.expected is not None and self.expected[0] == (epoch, step):
            found = self.expected[1].result()
        else:
            found = self.pool.submit(self.feed.batch, epoch, step).result()
        following = (epoch, step + 1) if step + 1 < self.steps else (epoch + 1, 0)
        self.expected = (following, self.pool.submit(self.feed.batch, *following))
        return found


@contextmanager
def prefetched(feed: Feed[Given_co]) -> Iterator[Feed[Given_co]]:
    """The feed, reading ahead if its tokens come from disk: the trunk, or what is in memory, gains nothing by it."""
    if not feed.from_disk:
        yield feed
        return
    ahead = Prefetcher(feed)
    try:
        yield ahead
    finally:
        ahead.pool.shutdown(wait=True, cancel_futures=True)


@dataclass
class BaseFeed:
    """Session 0: one augmented view and the label."""

    world: World
    size: int
    _plan: tuple[int, Tensor, Tensor] | None = None

    def __post_init__(self) -> None:
        self.ids = self.world.stream.ids(0)
        self.size = min(self.size, len(self.ids))
        self.steps = max(1, len(self.ids) // self.size)
        self.from_disk = isinstance(self.world.source, BankSource)

    def batch(self, epoch: int, step: int) -> LabelledBatch:
        seed = self.world.seed
        if self._plan is None or self._plan[0] != epoch:
            order = shuffled_places(len(self.ids), self.steps * self.size, generator(seed, "order", 0, 0, epoch))
            total = self.world.request.question.views
            views, _ = different_views(len(order), total, generator(seed, "views", 0, 0, epoch))
            self._plan = (epoch, order, views)
        here = slice(step * self.size, (step + 1) * self.size)
        ids = self.ids[self._plan[1][here]]
        tokens = self.world.source.get(ids, self._plan[2][here])
        labels = torch.from_numpy(self.world.stream.hidden[ids.numpy()]).to(self.world.device)
        return LabelledBatch(tokens, labels)


@dataclass
class NovelFeed:
    """A phase of a discovery session: two views of session images, and of exemplars if the phase asks for them."""

    world: World
    session: int
    phase: int
    shape: Phase
    epochs: int
    exemplars: tuple[Tensor, Tensor]

    def __post_init__(self) -> None:
        self.ids = self.world.stream.ids(self.session)
        whole = self.world.request.budget.batch
        self.novel = min(max(1, round(self.shape.novel * whole)), len(self.ids))
        self.replayed = min(round(self.shape.memory * whole), len(self.exemplars[0]))
        pool = len(self.ids) + (len(self.exemplars[0]) if self.shape.pool == "session+memory" else 0)
        taken = self.novel + (self.replayed if self.shape.pool == "session+memory" else 0)
        self.steps = max(1, pool // taken)
        self.from_disk = isinstance(self.world.source, BankSource)
        self._epoch = -1

    def shape_for_record(self) -> dict[str, int]:
        """Its size, as records have it."""
        return {"epochs": self.epochs, "steps": self.steps, "images": self.novel, "memory": self.replayed}

    def _plan(self, epoch: int) -> None:
        """Draw which images and views the steps of an epoch take."""
        seed, views = self.world.seed, self.world.request.question.views
        where = (self.session, self.phase, epoch)
        self._order = shuffled_places(len(self.ids), self.steps * self.novel, generator(seed, "order", *where))
        self._views = different_views(len(self._order), views, generator(seed, "views", *where))
        if self.replayed:
            count = self.steps * self.replayed
            self._memory = shuffled_places(len(self.exemplars[0]), count, generator(seed, "memory-order", *where))
            self._memory_views = different_views(count, views, generator(seed, "memory-views", *where))
        self._epoch = epoch

    def batch(self, epoch: int, step: int) -> Batch:
        if self._epoch != epoch:
            self._plan(epoch)
        here = slice(step * self.novel, (step + 1) * self.novel)
        ids = self.ids[self._order[here]]
        memory = None
        if self.replayed:
            there = slice(step * self.replayed, (step + 1) * self.replayed)
            chosen = self._memory[there]
            memory = MemoryBatch(
                self._pair(self.exemplars[0][chosen], self._memory_views, there),
                self.exemplars[1][chosen].to(self.world.device),
            )
        return Batch(self._pair(ids, self._views, here), ids.to(self.world.device), epoch, self.epochs, memory)

    def _pair(self, ids: Tensor, views: tuple[Tensor, Tensor], here: slice) -> Tokens:
        return self.world.source.get(torch.cat([ids, ids]), torch.cat([views[0][here], views[1][here]]))
