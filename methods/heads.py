"""Classifiers, projectors and frozen copies that methods share."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from methods.products import linear

ROW_STD = 0.02
"""Standard deviation of a fresh row: rows are normalised in use, so their length only scales their learning rate."""


class CosineHead(nn.Module):
    """Unified cosine classifier: a row for every class, compared by angle, divided by a temperature, without bias."""

    def __init__(self, width: int, rows: int, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.weight = nn.Parameter(nn.init.trunc_normal_(torch.empty(rows, width), std=ROW_STD))

    @property
    def rows(self) -> int:
        return len(self.weight)

    def cosine(self, h: Tensor) -> Tensor:
        return F.normalize(h, dim=1) @ F.normalize(self.weight, dim=1).T

    def forward(self, h: Tensor) -> Tensor:
        return self.cosine(h) / self.temperature

    @torch.no_grad()
    def grow(self, rows: int) -> None:
        """Append fresh rows; the old ones stay as they are, bit by bit."""
        old = self.weight
        fresh = nn.init.trunc_normal_(torch.empty(rows, old.shape[1]), std=ROW_STD).to(old)
        self.weight = nn.Parameter(torch.cat([old.detach(), fresh]))


class Projector(nn.Sequential):
    """MLP with GELU between its layers; small normal weights, zero biases (SimGCD's head)."""

    def __init__(self, width: int, sizes: tuple[int, ...]) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in zip((width, *sizes[:-1]), sizes, strict=True):
            layer = nn.Linear(inputs, outputs)
            nn.init.trunc_normal_(layer.weight, std=ROW_STD)
            nn.init.zeros_(layer.bias)
            layers += [layer, nn.GELU()]
        super().__init__(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = linear(layer, x) if isinstance(layer, nn.Linear) else layer(x)
        return x


def frozen(module: nn.Module) -> nn.Module:
    """A copy that no optimiser will touch: a teacher."""
    return copy.deepcopy(module).requires_grad_(False)
