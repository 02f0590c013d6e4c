"""What is remembered of a class once its images are gone: statistics of its features, or a few of the images."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from methods.clustering import distances, whitening_of

Inference = Literal["head", "gaussian"]
"""How images get their rows: by the trained head, or by the class means that are stored anyway."""

TIE = 1e-12
"""Distances that differ by less are equal."""
NEIGHBOUR_CHUNK = 1024
"""Images whose distances to all others are held at once: a session's whole table would not fit."""


class Prototypes(nn.Module):
    """Mean and per-dimension deviation of every class that had images; written once, never refreshed.

    With `covariance`, also one whitening for all classes, of the features that came first: those of the base classes.
    """

    row: Tensor
    mean: Tensor
    deviation: Tensor
    whitening: Tensor

    def __init__(self, width: int, *, covariance: bool = False) -> None:
        super().__init__()
        if covariance:
            self.register_buffer("whitening", torch.eye(width))
        self.register_buffer("row", torch.zeros(0, dtype=torch.long))
        self.register_buffer("mean", torch.zeros(0, width))
        self.register_buffer("deviation", torch.zeros(0, width))

    @torch.no_grad()
    def add(self, h: Tensor, rows: Tensor, *, unbiased: bool = False, floor: float = 0.0) -> None:
        """Store the classes that occur in `rows`.

        Variances are divided by n, as FEA's paper prints them, or by n - 1 if `unbiased`, and raised by `floor`. A
        class of one image has no deviation of its own and takes the average of the others that arrive with it, unless
        there is a floor.
        """
        present, counts = rows.unique(return_counts=True)
        members = [h[rows == row] for row in present]
        means = torch.stack([own.mean(dim=0) for own in members])
        if "whitening" in self._buffers and not len(self.row):
            self.whitening = whitening_of(h - means[torch.searchsorted(present, rows)])
        deviations = torch.stack([own.std(dim=0, correction=int(unbiased and len(own) > 1)) for own in members])
        alone = counts == 1
        if floor > 0:
            deviations = (deviations.square() + floor).sqrt()
        elif alone.any() and not alone.all():
            deviations[alone] = deviations[~alone].mean(dim=0)
        self.row = torch.cat([self.row.to(present), present])
        self.mean = torch.cat([self.mean.to(means), means])
        self.deviation = torch.cat([self.deviation.to(deviations), deviations])

    def draw(self, each: int, *, shared: bool = False) -> tuple[Tensor, Tensor]:
        """`each` pseudo features of every class, Gaussian around its mean, with their rows."""
        deviation = self.deviation.mean(dim=0, keepdim=True).expand_as(self.mean) if shared else self.deviation
        noise = torch.randn(each, *self.mean.shape).to(self.mean)
        features = self.mean + deviation * noise
        return features.flatten(0, 1), self.row.repeat(each)

    def nearest(self, h: Tensor) -> Tensor:
        """The row of the class with the nearest mean once all is whitened: the linear discriminant."""
        return self.row[distances(h @ self.whitening, self.mean @ self.whitening).argmin(dim=1)]


class Gaussians(nn.Module):
    """Mean and full covariance of every class; written once. Of a covariance its Cholesky factor is stored, packed."""

    mean: Tensor
    packed: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("mean", torch.zeros(0, width))
        self.register_buffer("packed", torch.zeros(0, width * (width + 1) // 2))

    def add(self, mean: Tensor, factor: Tensor) -> None:
        row, column = torch.tril_indices(self.width, self.width)
        self.mean = torch.cat([self.mean.to(mean.device), mean.to(self.mean.dtype)])
        self.packed = torch.cat([self.packed.to(factor.device), factor[:, row, column].to(self.packed.dtype)])

    def factors(self) -> Tensor:
        """The Cholesky factors, n x d x d."""
        row, column = torch.tril_indices(self.width, self.width)
        whole = self.packed.new_zeros(len(self.packed), self.width, self.width)
        whole[:, row, column] = self.packed
        return whole


def penalised_fit(points: Tensor, prior: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """Mean and Cholesky factor of a Gaussian that has seen `weight` more images, of covariance `prior`.

    It minimises the points' negative log-likelihood and weight/2 (log det Σ + tr(prior Σ⁻¹)).
    """
    mean = points.mean(dim=0)
    centred = points - mean
    covariance = (weight * prior + centred.T @ centred) / (weight + len(points))
    return mean, torch.linalg.cholesky(covariance)


def log_volume(factor: Tensor) -> Tensor:
    """Logarithm of the determinant of every covariance, from its Cholesky factor."""
    return 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)


def mahalanobis(points: Tensor, mean: Tensor, factor: Tensor) -> Tensor:
    """Squared distance of every point to every class in the class's own covariance; class by class, to save memory."""
    columns = [
        torch.linalg.solve_triangular(own, (points - centre).T, upper=False).square().sum(dim=0)
        for centre, own in zip(mean, factor, strict=True)
    ]
    return torch.stack(columns, dim=1)


class Exemplars(nn.Module):
    """Ids of a few images of every class, chosen by herding, with the row each was stored under; never re-chosen."""

    ids: Tensor
    row: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ids", torch.zeros(0, dtype=torch.long))
        self.register_buffer("row", torch.zeros(0, dtype=torch.long))

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, other: "Exemplars") -> None:
        """Take over all of another's images; it is empty afterwards."""
        self.ids, self.row = torch.cat([self.ids, other.ids]), torch.cat([self.row, other.row])
        other.ids, other.row = other.ids[:0], other.row[:0]

    @torch.no_grad()
    def add(self, ids: Tensor, h: Tensor, rows: Tensor, each: int, dense: Tensor | None = None) -> None:
        """Choose up to `each` images of every class that occurs in `rows`, among the `dense` ones where it has any."""
        for row in rows.unique():
            members = torch.nonzero(rows == row).squeeze(1)
            if dense is not None and dense[members].any():
                members = members[dense[members]]
            members = members[ids[members].argsort()]
            chosen = members[herd(h[members], each)]
            self.ids = torch.cat([self.ids.to(chosen), ids[chosen]])
            self.row = torch.cat([self.row.to(chosen), rows[chosen]])


@torch.no_grad()
def herd(h: Tensor, count: int) -> Tensor:
    """Places of `count` images whose running mean stays closest to the mean of all (iCaRL); all if there are fewer.

    Features are normalised, and so is their mean. The first of equally good images is taken; in float64, and with a
    margin, so that rounding does not choose.
    """
    points = F.normalize(h.double(), dim=1)
    target = F.normalize(points.mean(dim=0), dim=0)
    chosen: list[int] = []
    total = torch.zeros_like(target)
    free = torch.ones(len(points), dtype=torch.bool, device=h.device)
    for size in range(1, min(count, len(points)) + 1):
        distance = torch.linalg.vector_norm(target - (points + total) / size, dim=1).masked_fill(~free, torch.inf)
        best = int(torch.nonzero(distance <= distance.min() + TIE)[0])
        chosen.append(best)
        total, free[best] = total + points[best], False
    return torch.tensor(chosen, dtype=torch.long, device=h.device)


@torch.no_grad()
def densest(points: Tensor, neighbours: int, keep: float) -> Tensor:
    """Marks the share `keep` of points whose distance (cosine) to their n-th nearest neighbour is smallest.

    In float64: in a space of few dimensions neighbours are closer than float32 can tell.
    """
    points = F.normalize(points.double(), dim=1)
    rank = min(neighbours, len(points) - 1)  # a point is its own nearest, at distance 0
    distance = torch.cat(
        [
            (1 - part @ points.T).topk(rank + 1, dim=1, largest=False).values[:, -1]
            for part in points.split(NEIGHBOUR_CHUNK)
        ]
    )
    marked = torch.zeros(len(points), dtype=torch.bool, device=points.device)
    marked[distance.argsort(stable=True)[: max(1, round(keep * len(points)))]] = True
    return marked
