"""What methods that look at clean features share: clusters of a session, means of classes, their covariance."""

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.covariance import ledoit_wolf, shrunk_covariance
from threadpoolctl import threadpool_limits
from torch import Tensor

LEAST_VARIANCE = 1e-12
"""Of the largest: directions in which points do not vary are not blown up without end."""


def k_means(points: Tensor, clusters: int, restarts: int = 10) -> Tensor:
    """A cluster (0, 1, ...) for every point: the tightest of so many random starts.

    Single-threaded and in float64: with threads, the order of sums would depend on the machine.
    """
    seed = int(torch.randint(2**31, ()))
    if len(points) <= clusters:  # every point is a cluster of its own
        return torch.arange(len(points), device=points.device)
    with threadpool_limits(1):
        found = KMeans(clusters, n_init=restarts, random_state=seed).fit_predict(points.cpu().double().numpy())
    return torch.from_numpy(found.astype(np.int64)).to(points.device)


def class_means(points: Tensor, rows: Tensor, classes: int) -> Tensor:
    """The mean of every class, by its row (0 to classes - 1). A class without points is infinitely far from all."""
    far = points.new_full(points.shape[1:], torch.inf)
    members = [points[rows == row] for row in range(classes)]
    return torch.stack([own.mean(dim=0) if len(own) else far for own in members])


def distances(points: Tensor, means: Tensor) -> Tensor:
    """Euclidean distance of every point to every mean, by differences.

    By products, as torch prefers for many points, close means cannot be told apart, and which of them is nearest then
    depends on the batch.
    """
    return torch.cdist(points, means, compute_mode="donot_use_mm_for_euclid_dist")


def whitening_of(centred: Tensor, shrinkage: float | None = None) -> Tensor:
    """The inverse root of the shrunk covariance of points around their means; single-threaded, in float64.

    `shrinkage` is the share of the average variance that takes the covariance's place; none: Ledoit and Wolf's.
    """
    points = centred.cpu().double().numpy()
    with threadpool_limits(1):
        if shrinkage is None:
            covariance, _ = ledoit_wolf(points, assume_centered=True)
        else:
            covariance = shrunk_covariance(points.T @ points / len(points), shrinkage)
    values, vectors = torch.linalg.eigh(torch.from_numpy(covariance))
    values = values.clamp(min=LEAST_VARIANCE * float(values.max()))
    return ((vectors / values.sqrt()) @ vectors.T).to(centred)
