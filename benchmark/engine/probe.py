"""The probe: how well do a method's own features still tell the classes apart, whatever its head makes of them?

At the end of every session the mean of each new class is written down: of the images that the method puts on that
class's row, in the features it has then. Means of earlier sessions stay as they are. One covariance serves all classes,
that of the base classes in session 0. An image goes to the nearest mean: the linear discriminant of the Gaussian floor.

It is the same for every method, costs one more pass over the images, and is counted beside the method's own
predictions. It is a diagnosis, not a result. Where the probe forgets less than the method, the head lost what the
features still hold. Where it forgets more, the features have moved away from the means that were written down; whether
the classes could still be told apart with fresh means, it cannot say.
"""

import torch
from torch import Tensor, nn

from methods.clustering import class_means, distances, whitening_of
from methods.contract import Tokens


class Probe(nn.Module):
    """Class means and a whitening of features; its tensors are saved with the run's state."""

    mean: Tensor
    whitening: Tensor
    blind: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(0, width))  # of every class, whitened
        self.register_buffer("whitening", torch.eye(width))
        self.register_buffer("blind", torch.tensor(False))  # whether it ever met features it cannot read

    @torch.no_grad()
    def features(self, block: object, tokens: Tokens) -> Tensor | None:
        """What the block makes of tokens, if it is what the probe can read: finite numbers, as many as at first."""
        h = block(tokens) if callable(block) else None
        if type(h) is not Tensor or h.ndim != 2 or not h.is_floating_point() or h.shape[1] != len(self.whitening):
            return None
        return h.float() if bool(h.isfinite().all()) else None

    @torch.no_grad()
    def learn(self, h: Tensor, rows: Tensor, classes: int) -> None:
        """A session's new classes from features and output rows of its images; those on earlier rows are left out.

        The first session is the labelled one. A class without an image is infinitely far from everything.
        """
        known = len(self.mean)
        if known == 0:
            self.whitening = whitening_of(h - class_means(h, rows, classes)[rows])
        own = rows >= known
        means = class_means(h[own] @ self.whitening, rows[own] - known, classes)
        self.mean = torch.cat([self.mean.to(means), means])

    @torch.no_grad()
    def predict(self, h: Tensor) -> Tensor:
        return distances(h @ self.whitening, self.mean).argmin(dim=1)
