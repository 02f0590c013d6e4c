"""What methods that look at clean features share: clusters of a session, and means of classes."""

import numpy as np
import torch
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits
from torch import Tensor


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
    """Euclidean, by differences.

    By products, as torch prefers for many points, close means cannot be told apart, and which of them is nearest then
    depends on the batch.
    """
    return torch.cdist(points, means, compute_mode="donot_use_mm_for_euclid_dist")
