"""A sound method, and others that each break one rule of the contract: `bench try` must name the rule."""

import gc
import random

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from benchmark.data.stream import Stream
from methods.clustering import k_means
from methods.contract import Method


class Sound(Method):
    """Clusters are learnt as labels."""

    def build(self) -> None:
        self.register_buffer("ids", torch.zeros(0, dtype=torch.long))
        self.register_buffer("row", torch.zeros(0, dtype=torch.long))

    def prepare(self, session, phase) -> None:
        self.ids, self.row = session.ids, self.rows_of(session)

    def rows_of(self, session) -> Tensor:
        return session.known + k_means(F.normalize(self.clean_features(session), dim=1), session.new)

    def losses(self, batch) -> dict[str, Tensor]:
        rows = self.row[torch.searchsorted(self.ids, batch.ids)]
        return {"label": F.cross_entropy(self.head(self.block(batch.a)), rows)}


class Stray(Sound):
    """State outside buffers and parameters."""

    def rows_of(self, session) -> Tensor:
        self.latest = super().rows_of(session)
        return self.latest


class PeeksAtFile(Sound):
    """Reads the dataset itself."""

    def rows_of(self, session) -> Tensor:
        labels = torch.from_numpy(load_digits().target)
        return session.known + labels[: len(session.ids)] % session.new


class PeeksAtEngine(Sound):
    """Looks for the engine's labels among all objects."""

    def rows_of(self, session) -> Tensor:
        stream = [thing for thing in gc.get_objects() if type(thing) is Stream][-1]
        return torch.from_numpy(stream.hidden[session.ids.numpy()])


class Idle(Sound):
    """A term that is detached."""

    def losses(self, batch) -> dict[str, Tensor]:
        h = self.block(batch.a)
        return super().losses(batch) | {"hold": (h.detach() - 1).square().mean()}


class Logits(Sound):
    """Predicts scores instead of rows."""

    def predict(self, tokens) -> Tensor:
        return self.head(self.block(tokens))


class Chance(Sound):
    """Draws random numbers that nobody seeds."""

    def losses(self, batch) -> dict[str, Tensor]:
        return {name: term * (1 + random.random()) for name, term in super().losses(batch).items()}


class Foreign(Sound):
    """Remembers images that it never met."""

    def memory(self) -> tuple[Tensor, Tensor]:
        return torch.arange(5), torch.zeros(5, dtype=torch.long)


class MovesRows(Sound):
    """Draws the whole head anew when it grows."""

    def begin(self, session, phase) -> None:
        super().begin(session, phase)
        self.head.weight = nn.Parameter(0.02 * torch.randn(session.total, self.width))


class Begins(Sound):
    """Builds in `begin` from what it learnt: a resumed run builds another thing."""

    def begin(self, session, phase) -> None:
        super().begin(session, phase)
        self.share = float(self.block.block.norm2.weight.detach().mean()) if session.number > 1 else 0.5


class Fails(Sound):
    """A mistake like any other."""

    def losses(self, batch) -> dict[str, Tensor]:
        return {"label": self.nothing(batch)}


class Forgets(Sound):
    """Goes by what it counted, which a resumed run has not."""

    steps = 0

    def losses(self, batch) -> dict[str, Tensor]:
        self.steps += 1
        return {name: term * self.steps for name, term in super().losses(batch).items()}
