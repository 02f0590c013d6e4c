"""Gaussian: the stronger floor. Nothing is trained after session 0.

Every class is a Gaussian around its mean, and all share one covariance: that of the base classes around their means,
shrunk (Ledoit and Wolf, 2004). Features are whitened by it, each session is clustered there by k-means, and an image
goes to the nearest of all means, which is the linear discriminant for classes of equal size. No paper: ours. That such
frozen baselines are hard to beat is what FRoST's authors found in later work (MSc-iNCD).
Deviations: none.
"""

import torch
from torch import Tensor

from methods.clustering import class_means, distances, k_means, whitening_of
from methods.contract import LabelledSession, Method, Phase, Session, Tokens, knob


class Gaussian(Method):
    class Params(Method.Params):
        """Knobs of the floor."""

        restarts: int = knob(10, "ours", "random starts, the tightest of which is kept", ge=1)
        shrinkage: float | None = knob(
            None, "ours", "share of the covariance given up for its mean; none: estimated", later=True, ge=0, le=1
        )

    params: Params
    mean: Tensor
    whitening: Tensor

    def build(self) -> None:
        self.register_buffer("mean", torch.zeros(0, self.width))  # of every class, whitened
        self.register_buffer("whitening", torch.eye(self.width))

    def phases(self) -> tuple[Phase, ...]:
        return ()

    def end(self, session: Session) -> None:
        h = self.clean_features(session)
        if isinstance(session, LabelledSession):
            centred = h - class_means(h, session.labels, session.new)[session.labels]
            self.whitening = whitening_of(centred, self.params.shrinkage)
        z = h @ self.whitening
        rows = session.labels if isinstance(session, LabelledSession) else k_means(z, session.new, self.params.restarts)
        self.mean = torch.cat([self.mean.to(z), class_means(z, rows, session.new)])

    def predict(self, tokens: Tokens) -> Tensor:
        return distances(self.block(tokens) @ self.whitening, self.mean).argmin(dim=1)
