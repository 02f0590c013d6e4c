"""What the cheats of this folder share: a nearest-mean classifier that takes somebody's guess for the labels.

Each cheat overrides `guess`, which is asked for a class of every image of a session, or `predict`. Guesses are kept in
buffers, so that a test can compare them with the labels that nobody should know.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from methods.clustering import distances
from methods.contract import LabelledSession, Method, Phase


class Cheat(Method):
    mean: Tensor
    ids: Tensor
    guessed: Tensor

    def build(self) -> None:
        self.register_buffer("mean", torch.zeros(0, self.width))
        self.register_buffer("ids", torch.zeros(0, dtype=torch.long))
        self.register_buffer("guessed", torch.zeros(0, dtype=torch.long))

    def phases(self) -> tuple[Phase, ...]:
        return ()

    def losses(self, batch) -> dict[str, Tensor]:
        raise NotImplementedError

    def guess(self, session, ids: Tensor, h: Tensor) -> Tensor:
        """A class from 0 to `session.new` - 1 for every image: here, by chance."""
        return torch.randint(session.new, (len(ids),))

    def end(self, session) -> None:
        ids = torch.cat([part.ids for part in session.clean()])
        h = F.normalize(torch.cat([self.block(part.tokens) for part in session.clean()]), dim=1)
        if isinstance(session, LabelledSession):
            rows = session.labels
        else:
            rows = self.guess(session, ids, h)
            self.ids, self.guessed = torch.cat([self.ids, ids]), torch.cat([self.guessed, rows])
        middle = h.mean(dim=0)
        means = [h[rows == row].mean(dim=0) if (rows == row).any() else middle for row in range(session.new)]
        self.mean = torch.cat([self.mean, torch.stack(means)])

    def nearest(self, tokens) -> Tensor:
        return distances(F.normalize(self.block(tokens), dim=1), self.mean)

    def predict(self, tokens) -> Tensor:
        return self.nearest(tokens).argmin(dim=1)


def by_place(place: Tensor, classes: int) -> Tensor:
    """The class of an image if images lay class by class."""
    return (place * classes // len(place)).clamp(max=classes - 1)


def tightest(guesses: list[Tensor], h: Tensor, classes: int) -> Tensor:
    """Of several guesses the one whose classes lie closest together: no label is needed to tell which was right."""

    def spread(rows: Tensor) -> float:
        return sum(float((h[rows == k] - h[rows == k].mean(dim=0)).square().sum()) for k in range(classes))

    return min(guesses, key=spread)
