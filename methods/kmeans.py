"""k-means: the plain floor. Nothing is trained after session 0.

Each session's clean features are clustered by k-means; an image goes to the class with the nearest mean, over all
classes met so far. Features are the base model's, normalised. No paper: any method should beat it.
Deviations: none.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from methods.clustering import class_means, distances, k_means
from methods.contract import LabelledSession, Method, Phase, Session, Tokens, knob


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

    def end(self, session: Session) -> None:
        h = F.normalize(self.clean_features(session), dim=1)
        rows = session.labels if isinstance(session, LabelledSession) else k_means(h, session.new, self.params.restarts)
        self.mean = torch.cat([self.mean.to(h), class_means(h, rows, session.new)])

    def predict(self, tokens: Tokens) -> Tensor:
        return distances(F.normalize(self.block(tokens), dim=1), self.mean).argmin(dim=1)
