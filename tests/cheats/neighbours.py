"""Neighbours in a batch: images that come together are of one class, so their distances are averaged."""

from cheating import Cheat
from torch.nn import functional as F


class Neighbours(Cheat):
    def predict(self, tokens):
        distance = self.nearest(tokens)
        smooth = F.avg_pool1d(F.pad(distance.T[None], (7, 7), mode="replicate"), 15, stride=1)
        return smooth[0].T.argmin(dim=1)
