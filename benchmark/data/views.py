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
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F2

CLEAN = 0

Render = Callable[[npt.NDArray[np.uint8], Tensor, Tensor, int], Tensor]
"""(images, their ids, their views, pixels a side) -> pictures, channels first, in bytes or in [0, 1]."""


def uniform(ids: Tensor, view: Tensor, numbers: int) -> Tensor:
    """Uniform numbers in [0, 1), a row for each (image, view) that depends on that pair alone."""
    rows = [
        np.random.Generator(np.random.Philox(key=[int(i), int(v)])).random(numbers)
        for i, v in zip(ids.tolist(), view.tolist(), strict=True)
    ]
    return torch.from_numpy(np.array(rows).reshape(len(rows), numbers)).float()


def render_digits(images: npt.NDArray[np.uint8], ids: Tensor, view: Tensor, size: int) -> Tensor:
    """Small rotations (15 degrees), scales (15 %), shifts (10 % of the side) and contrasts.

    No flips: a flipped digit is another sign.
    """
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    turn, zoom, right, down, contrast = (2 * uniform(ids, view, 5) - 1).mul((view != CLEAN).float()[:, None]).unbind(1)
    angle, scale = turn * (torch.pi / 12), 1 + 0.15 * zoom
    cos, sin = torch.cos(angle) / scale, torch.sin(angle) / scale
    affine = torch.stack([torch.stack([cos, -sin, 0.2 * right], 1), torch.stack([sin, cos, 0.2 * down], 1)], 1)
    grid = F.affine_grid(affine, [len(pixels), pixels.shape[1], size, size], align_corners=False)
    moved = F.grid_sample(pixels, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return (moved * (1 + 0.4 * contrast)[:, None, None, None]).clamp(0, 1)


KEPT_SHARE = 0.875
"""A picture is resized so that this share of its side remains after cropping (224 of 256; code:simgcd)."""
JITTER = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}
"""Strengths of the preset `jitter` (ours: SimGCD names a colour jitter and leaves all its strengths at zero)."""


def render_simgcd(images: npt.NDArray[np.uint8], ids: Tensor, view: Tensor, size: int) -> Tensor:
    """Resize (bicubic), crop, flip every other picture (spec section 8). The clean view is the centre, not flipped."""
    resized = F2.resize(
        torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(),
        [round(size / KEPT_SHARE)],  # of the shorter side
        InterpolationMode.BICUBIC,
        antialias=True,
    )
    room = torch.tensor(resized.shape[2:]) - size
    down, right, flip = uniform(ids, view, 3).unbind(1)
    corner = (torch.stack([down, right], 1) * (room + 1)).long().minimum(room)
    corner[view == CLEAN] = (room / 2).round().long()
    cropped = torch.stack(
        [
            picture[:, top : top + size, left : left + size]
            for picture, (top, left) in zip(resized, corner.tolist(), strict=True)
        ]
    )
    mirrored = (flip < 0.5) & (view != CLEAN)
    cropped[mirrored] = cropped[mirrored].flip(3)
    return cropped


def render_jitter(images: npt.NDArray[np.uint8], ids: Tensor, view: Tensor, size: int) -> Tensor:
    """As `simgcd`, then brightness, contrast, saturation and hue, in an order drawn for each picture."""
    pictures = render_simgcd(images, ids, view, size)
    adjust = (F2.adjust_brightness, F2.adjust_contrast, F2.adjust_saturation, F2.adjust_hue)
    numbers = uniform(ids, view, 3 + 2 * len(adjust))[:, 3:]  # the first three chose crop and flip
    for k in torch.nonzero(view != CLEAN).flatten().tolist():
        strength, order = (2 * numbers[k, : len(adjust)] - 1).tolist(), numbers[k, len(adjust) :].argsort().tolist()
        for which in order:
            amount = strength[which] * [*JITTER.values()][which]
            pictures[k] = adjust[which](pictures[k], amount if which == 3 else 1 + amount)
    return pictures


PRESETS: dict[str, Render] = {"digits": render_digits, "simgcd": render_simgcd, "jitter": render_jitter}
