"""k-means: the floor under every table. Nothing is trained after session 0.

Each session's clean features are clustered by k-means; an image goes to the class with the nearest mean, over all
classes met so far. Features are the base model's, normalised. No paper: any method should beat it.
Deviations: none.
"""

from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans as Clustering
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn import functional as F

from benchmark.stream import Batch, Labelled, Unlabelled
from methods.base import Method, Phase, knob
from methods.memory import distances


class KMeans(Method):
    class Params(Method.Params):
        """Knobs of the floor."""

        restarts: int = knob(10, "ours", "random starts, the tightest of which is kept", ge=1)

    params: Params
    mean: Tensor

    def build(self) -> None:
        self.register_buffer("mean", torch.zeros(0, self.width))

    def phases(self) -> tuple[Phase, ...]:
        return ()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        raise NotImplementedError("k-means trains nothing")

    def end(self, session: Unlabelled | Labelled) -> None:
        h = F.normalize(self.clean_features(session), dim=1)
        rows = session.labels if isinstance(session, Labelled) else self.cluster(h, session.new)
        means = torch.stack([h[rows == row].mean(dim=0) for row in range(session.new)])
        self.mean = torch.cat([self.mean.to(means), means])

    def cluster(self, h: Tensor, clusters: int) -> Tensor:
        """Single-threaded and in float64: with threads, the order of sums would depend on the machine."""
        seed = int(torch.randint(2**31, ()))
        with threadpool_limits(1):
            found = Clustering(clusters, n_init=self.params.restarts, random_state=seed).fit_predict(
                h.cpu().double().numpy()
            )
        return torch.from_numpy(found.astype(np.int64)).to(h.device)

    def predict(self, tokens: Any) -> Tensor:
        h = F.normalize(self.block(tokens), dim=1)
        return distances(h, self.mean).argmin(dim=1)
