"""Matrix products of wide layers in float32 on a CPU, by the faster of the two libraries that torch brings.

torch hands these products to MKL, which does not use the widest units of processors that are not Intel's. oneDNN does;
torch brings it too, and has it multiply all other number formats. Both compute in full float32; their last bits differ.
`bench speed` says what it gains on a machine.
"""

from typing import Any

import torch
from torch import Tensor, nn

FEW_ROWS = 16
"""With fewer, matrix products take other kernels, which round differently."""
MANY_WEIGHTS = 100_000
"""Smaller layers, those of the embedded network among them, stay as they are: what they gain is lost in the step."""
ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
"""Not public, so it may be gone one day: then MKL is used."""


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """What the layer gives; by oneDNN if it is wide, as torch does it otherwise."""
    return Wide.apply(x, layer.weight, layer.bias) if is_wide(layer, x) and x.ndim == 2 else layer(x)


def is_wide(layer: nn.Linear, x: Tensor) -> bool:
    """Whether oneDNN should multiply."""
    return (
        ONEDNN is not None
        and bool(torch.backends.mkldnn.enabled)
        and x.device.type == "cpu"
        and x.dtype == layer.weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and layer.bias is not None
        and x.ndim > 1
        and x.shape[-1] == layer.in_features
        and x.numel() >= FEW_ROWS * x.shape[-1]
        and layer.weight.numel() >= MANY_WEIGHTS
    )


class FrozenLinear(nn.Linear):
    """A layer of the trunk, for inputs of any number of dimensions; oneDNN multiplies where no gradient is asked."""

    def forward(self, x: Tensor) -> Tensor:
        asked = torch.is_grad_enabled() and (x.requires_grad or self.weight.requires_grad)
        return product(x, self.weight, self.bias) if not asked and is_wide(self, x) else super().forward(x)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The layer x Wᵀ + b by oneDNN."""
    assert ONEDNN is not None
    return ONEDNN(x, weight, bias, "none", [], "")


class Wide(torch.autograd.Function):
    """The layer x Wᵀ + b by oneDNN, forward and backward."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return product(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004 - as torch calls it
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        above, (x, weight) = gradients[0].contiguous(), ctx.saved_tensors
        # oneDNN's product has no gradient of its own, so where gradients of gradients are asked, torch multiplies
        multiply = plain_product if torch.is_grad_enabled() else product
        wanted = ctx.needs_input_grad
        return (
            multiply(above, weight.T) if wanted[0] else None,
            multiply(above.T, x.T) if wanted[1] else None,
            above.sum(0) if wanted[2] else None,
        )


def plain_product(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.T
