"""Statistics of a batch in `predict`, in good faith: features are centred by the mean of whatever comes together."""

from cheating import Cheat
from torch.nn import functional as F

from methods.clustering import distances


class BatchStatistics(Cheat):
    def predict(self, tokens):
        h = F.normalize(self.block(tokens), dim=1)
        return distances(h - h.mean(dim=0), self.mean - self.mean.mean(dim=0)).argmin(dim=1)
