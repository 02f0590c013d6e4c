"""Augmentation: view v of image i is always the same picture, whoever asks and in whatever order.

View 0 is the clean image; views 1, 2, ... are augmented. The random numbers of a view come from a counter-based
generator keyed by (image, view), so nothing depends on what was drawn before, and tokens of a view can be kept.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

CLEAN = 0

Render = Callable[[npt.NDArray[np.uint8], Tensor, Tensor, int], Tensor]
"""(images, their dataset indices, their views, pixels a side) -> images in [0, 1], channels first."""


def uniform(index: Tensor, view: Tensor, numbers: int) -> Tensor:
    """Uniform numbers in [0, 1), a row for each (image, view) that depends on that pair alone."""
    rows = [
        np.random.Generator(np.random.Philox(key=[int(i), int(v)])).random(numbers)
        for i, v in zip(index.tolist(), view.tolist(), strict=True)
    ]
    return torch.from_numpy(np.array(rows).reshape(len(rows), numbers)).float()


def render_digits(images: npt.NDArray[np.uint8], index: Tensor, view: Tensor, size: int) -> Tensor:
    """Small rotations (15 degrees), scales (15 %), shifts (10 % of the side) and contrasts.

    No flips: a flipped digit is another sign.
    """
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    turn, zoom, right, down, contrast = (
        (2 * uniform(index, view, 5) - 1).mul((view != CLEAN).float()[:, None]).unbind(1)
    )
    angle, scale = turn * (torch.pi / 12), 1 + 0.15 * zoom
    cos, sin = torch.cos(angle) / scale, torch.sin(angle) / scale
    affine = torch.stack([torch.stack([cos, -sin, 0.2 * right], 1), torch.stack([sin, cos, 0.2 * down], 1)], 1)
    grid = F.affine_grid(affine, [len(pixels), pixels.shape[1], size, size], align_corners=False)
    moved = F.grid_sample(pixels, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return (moved * (1 + 0.4 * contrast)[:, None, None, None]).clamp(0, 1)


PRESETS: dict[str, Render] = {"digits": render_digits}
