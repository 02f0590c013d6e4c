"""What is remembered of a class once its images are gone."""

import torch
from torch import Tensor, nn


class Prototypes(nn.Module):
    """Mean and per-dimension deviation of every class that had images; written once, never refreshed."""

    row: Tensor
    mean: Tensor
    deviation: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("row", torch.zeros(0, dtype=torch.long))
        self.register_buffer("mean", torch.zeros(0, width))
        self.register_buffer("deviation", torch.zeros(0, width))

    @torch.no_grad()
    def add(self, h: Tensor, rows: Tensor) -> None:
        """Store the classes that occur in `rows`.

        Deviations are biased (divided by n), as the paper prints them. A class of one image has none of its own and
        takes the average of the others that arrive with it.
        """
        present, counts = rows.unique(return_counts=True)
        means = torch.stack([h[rows == row].mean(dim=0) for row in present])
        deviations = torch.stack([h[rows == row].std(dim=0, correction=0) for row in present])
        alone = counts == 1
        if alone.any() and not alone.all():
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
