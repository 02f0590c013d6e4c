"""Matrix products of wide layers in float32 on a CPU, by the faster of the two libraries that torch brings.

torch hands these products to MKL, which does not use the widest units of processors that are not Intel's. oneDNN does;
torch brings it too, and has it multiply all other number formats. Both are exact float32; their last bits differ.
"""

from typing import Any

import torch
from torch import Tensor, nn

FEW_ROWS = 16
"""With fewer, matrix products take other kernels, which round differently."""
MANY_WEIGHTS = 100_000
"""Layers with fewer gain little."""
ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
"""Not public, so it may be gone one day: then MKL is used."""


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """What the layer gives; on a CPU in less time. Narrow layers keep the bits they have without this."""
    if x.is_cuda or len(x) < FEW_ROWS or layer.bias is None or is_wide(layer, x):
        return wide_linear(layer, x)
    return WeightsFirst.apply(x, layer.weight, layer.bias)


def wide_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """What the layer gives; by oneDNN if it is wide."""
    return Wide.apply(x, layer.weight, layer.bias) if is_wide(layer, x) else layer(x)


def is_wide(layer: nn.Linear, x: Tensor) -> bool:
    """Whether oneDNN should multiply."""
    return (
        ONEDNN is not None
        and bool(torch.backends.mkldnn.enabled)
        and x.device.type == "cpu"
        and x.dtype == layer.weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and layer.bias is not None
        and x.numel() >= FEW_ROWS * x.shape[-1]
        and layer.weight.numel() >= MANY_WEIGHTS
    )


class FrozenLinear(nn.Linear):
    """A layer without gradients whose inputs may have any number of dimensions; multiplied by oneDNN if it is wide."""

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight, self.bias) if is_wide(self, x) else super().forward(x)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The layer x Wᵀ + b by oneDNN."""
    assert ONEDNN is not None
    return ONEDNN(x, weight, bias, "none", [], "")


class Wide(torch.autograd.Function):
    """x Wᵀ + b by oneDNN, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        above, (x, weight) = gradients[0].contiguous(), ctx.saved_tensors
        wanted = ctx.needs_input_grad
        return (
            product(above, weight.T) if wanted[0] else None,
            product(above.T, x.T) if wanted[1] else None,
            above.sum(0) if wanted[2] else None,
        )


class WeightsFirst(torch.autograd.Function):
    """x Wᵀ + b as (W xᵀ + b)ᵀ, forward and backward.

    A matrix library shares a product out by the rows of its left factor. Weights have many more of them than a batch,
    and every core then keeps to its own part of them.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.addmm(bias[:, None], weight, x.T).T.contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (above,), (x, weight) = gradients, ctx.saved_tensors
        return torch.mm(weight.T, above.T).T.contiguous(), torch.mm(above.T, x), above.sum(0)
