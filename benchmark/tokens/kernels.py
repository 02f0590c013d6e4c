"""Attention for the class token alone, written out with its gradient."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from benchmark.tokens.memory import MemoryPool

CACHED_BYTES = 5 << 20
"""Tokens that a CPU's cache surely holds."""


class Attend(torch.autograd.Function):
    """For every head the sum of the normalised tokens, weighted by the softmax of their products with its probe.

    Written out with its gradient for the tokens' sake, which are most of what a step reads. On a CPU they are taken a
    few images at a time, so that they are in its cache when they are needed again, and those stored in half precision
    are widened there, forward and backward, and never stand in memory at full width. Images do not touch each other
    here, so all of it gives the bits that the plain formula gives. Tokens are constants: they get no gradient.
    """

    @staticmethod
    def forward(ctx: Any, probe: Tensor, x0_hat: Tensor, rest: Tensor, pool: MemoryPool) -> Tensor:
        mixed, weights = [], []
        for few, others in in_cache(rest, pool):
            part, first = probe[few], x0_hat[few, None]
            own = (part * first).sum(2, keepdim=True)
            weight = torch.cat([own, torch.bmm(part, others.transpose(1, 2))], dim=2).softmax(dim=2)
            mixed.append(torch.bmm(weight[:, :, 1:], others) + weight[:, :, :1] * first)
            weights.append(weight)
        ctx.save_for_backward(x0_hat, rest, *weights)
        ctx.pool = pool
        return torch.cat(mixed)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (above,), (x0_hat, rest, *weights) = gradients, ctx.saved_tensors
        below = []
        for (few, others), weight in zip(in_cache(rest, ctx.pool), weights, strict=True):
            part, first = above[few], x0_hat[few, None]
            own = (part * first).sum(2, keepdim=True)
            slope = torch.cat([own, torch.bmm(part, others.transpose(1, 2))], dim=2)
            slope = torch.ops.aten._softmax_backward_data(slope, weight, 2, weight.dtype)  # noqa: SLF001 - not public, and the only one
            below.append(torch.bmm(slope[:, :, 1:], others) + slope[:, :, :1] * first)
        return torch.cat(below), None, None, None


def in_cache(rest: Tensor, pool: MemoryPool) -> Iterator[tuple[slice, Tensor]]:
    """A few images' tokens at a time, in float32 and, on a CPU, in its cache; all at once on a GPU."""
    if rest.is_cuda:
        yield slice(None), rest.float()
        return
    together = max(1, CACHED_BYTES // (4 * rest[0].numel()))
    scratch = None if rest.dtype == torch.float32 else pool.take((together, *rest.shape[1:]), torch.float32)
    for start in range(0, len(rest), together):
        few = slice(start, start + together)
        yield few, rest[few] if scratch is None else scratch[: len(rest[few])].copy_(rest[few])
