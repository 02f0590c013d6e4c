"""VB-CGCD: a Gaussian with a covariance of its own for every class, on frozen features. Nothing is trained.

Paper: Variational Bayesian continual generalized category discovery (arXiv 2507.17382), with code. Each session is
clustered; Gaussians are fitted to the clusters and made as wide as those of known classes; images are given anew to the
most likely of the new classes, and the fit is repeated. Known classes never change.
Deviations: the released descent hardly moves from its start, so the optimum of the same penalised likelihood is taken
in closed form, and the widths are made equal in one step instead of by stopping early; docs/methods.md has the reasons.
"""

from typing import Literal

import torch
from torch import Tensor

from methods.clustering import class_means, k_means
from methods.contract import LabelledSession, Method, Phase, Session, Tokens, knob
from methods.memory import Gaussians, log_volume, mahalanobis, penalised_fit


class VBCGCD(Method):
    class Params(Method.Params):
        """Knobs of VB-CGCD."""

        dims: float = knob(0.5, "code:vb", "share of the feature's dimensions that are kept", gt=0, le=1)
        prior: float = knob(1.0, "ours", "images of the prior covariance that a class has seen, per dimension", gt=0)
        pooled: bool = knob(False, "ours", "prior covariance: that of the base classes around their means, not I")
        align: bool = knob(True, "code:vb", "make new classes as wide as known ones")
        ratio: float = knob(0.0, "code:vb", "R, logarithm of the volume of new classes by that of known ones")
        relabel: Literal["new", "filter", "none"] = knob(
            "new", "ours", "after the first fit: most likely new class, or (letter) leave out what looks known"
        )
        score: Literal["density", "mahalanobis"] = knob("density", "code:vb", "what the best class has most of")
        restarts: int = knob(10, "ours", "random starts of k-means, the tightest of which is kept", ge=1)

    params: Params
    centre: Tensor
    axes: Tensor

    def build(self) -> None:
        self.kept = max(1, round(self.params.dims * self.width))
        self.register_buffer("centre", torch.zeros(self.width))
        self.register_buffer("axes", torch.zeros(self.width, self.kept))
        if self.params.pooled:
            self.register_buffer("pooled", torch.eye(self.kept))
        self.gaussians = Gaussians(self.kept)

    def phases(self) -> tuple[Phase, ...]:
        return ()

    def end(self, session: Session) -> None:
        h = self.clean_features(session)
        if isinstance(session, LabelledSession):
            self.find_axes(h, session.labels, session.new)
            self.gaussians.add(*self.fitted(self.project(h), session.labels, session.new))
            return
        z = self.project(h)
        rows = k_means(z, session.new, self.params.restarts)
        mean, factor = self.aligned(*self.fitted(z, rows, session.new))
        if self.params.relabel != "none":
            rows = self.given_anew(z, rows, mean, factor)
            mean, factor = self.aligned(*self.fitted(z, rows, session.new))
        self.gaussians.add(mean, factor)

    def find_axes(self, h: Tensor, labels: Tensor, classes: int) -> None:
        """Principal axes of the base features, in a scale in which classes have variance one on average."""
        points = h.double()
        centre = points.mean(dim=0)
        centred = points - centre
        _, vectors = torch.linalg.eigh(centred.T @ centred / len(points))
        axes = vectors[:, -self.kept :].flip(1)
        z = centred @ axes
        inside = z - class_means(z, labels, classes)[labels]
        scale = inside.square().mean().sqrt()
        self.centre, self.axes = centre.to(h), (axes / scale).to(h)
        if self.params.pooled:
            self.pooled = (inside.T @ inside / len(z) / scale**2).to(h)

    def project(self, h: Tensor) -> Tensor:
        return (h - self.centre) @ self.axes

    def fitted(self, z: Tensor, rows: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """Means and Cholesky factors of classes; rows of -1 are left out, and a class without images is at the mean."""
        points = z.double()
        prior = self.pooled.to(points) if self.params.pooled else torch.eye(self.kept).to(points)
        members = [points[rows == row] for row in range(classes)]
        weight = self.params.prior * self.kept
        found = [
            penalised_fit(own, prior, weight) if len(own) else (points.mean(dim=0), torch.linalg.cholesky(prior))
            for own in members
        ]
        return torch.stack([mean for mean, _ in found]), torch.stack([factor for _, factor in found])

    def aligned(self, mean: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        """New classes in one scale in which their mean determinant is that of all known classes."""
        if not self.params.align:
            return mean, factor
        known = mean_volume(self.gaussians.factors().double())
        grow = (known + self.params.ratio - mean_volume(factor)) / self.kept
        return mean, factor * (grow / 2).exp()

    def given_anew(self, z: Tensor, rows: Tensor, mean: Tensor, factor: Tensor) -> Tensor:
        """The new row of every image after the first fit; -1 for images that are left out."""
        new = self.scores(z.double(), mean, factor)
        if self.params.relabel == "new":
            return new.argmax(dim=1)
        known = self.scores(z.double(), self.gaussians.mean.double(), self.gaussians.factors().double())
        left = torch.where(known.max(dim=1).values > new.max(dim=1).values, -1, rows)
        for row in rows.unique():
            if not (left == row).any():  # a cluster that would lose all its images keeps them
                left[rows == row] = row
        return left

    def scores(self, z: Tensor, mean: Tensor, factor: Tensor) -> Tensor:
        """How well each class fits each image: its log density, up to a number that all share."""
        wide = log_volume(factor) if self.params.score == "density" else 0.0
        return -(mahalanobis(z, mean, factor) + wide) / 2

    def predict(self, tokens: Tokens) -> Tensor:
        z = self.project(self.block(tokens))
        return self.scores(z, self.gaussians.mean, self.gaussians.factors()).argmax(dim=1)


def mean_volume(factor: Tensor) -> Tensor:
    """Logarithm of the mean determinant."""
    return log_volume(factor).logsumexp(dim=0) - torch.tensor(float(len(factor))).log()
