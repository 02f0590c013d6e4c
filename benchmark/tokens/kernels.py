"""Attention for the class token alone, written out with its gradient."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from benchmark.tokens.memory import MemoryPool

CACHED_BYTES = 5 << 20
"""Tokens that a CPU's cache surely holds."""


def plain_attention(probe: Tensor, x0_hat: Tensor, rest: Tensor) -> Tensor:
    """The formula: for every head the sum of the tokens, weighted by the softmax of their products with its probe.

    Shapes: probe n, heads, width; class token n, width; other tokens n, l, width. `Attend` computes the same.
    """
    first, others = x0_hat[:, None], rest.float()
    return weighted_sum(products(probe, first, others).softmax(dim=2), first, others)


def products(part: Tensor, first: Tensor, others: Tensor) -> Tensor:
    """Of every head's vector with every token, the class token first: n, heads, 1 + l."""
    own = (part * first).sum(2, keepdim=True)
    return torch.cat([own, torch.bmm(part, others.transpose(1, 2))], dim=2)


def weighted_sum(weight: Tensor, first: Tensor, others: Tensor) -> Tensor:
    """Of all tokens, for every head: n, heads, width."""
    return torch.bmm(weight[:, :, 1:], others) + weight[:, :, :1] * first


class Attend(torch.autograd.Function):
    """`plain_attention` with its gradient written out, for the tokens' sake, which are most of what a step reads.

    On a CPU images are taken a few at a time, so that their tokens are in its cache when they are needed again, and
    tokens stored in half precision are widened there, forward and backward: they never stand in memory at full width.
    Images do not touch each other here, so the bits are those of the formula. Tokens are constants: no gradient.
    """

    @staticmethod
    def forward(ctx: Any, probe: Tensor, x0_hat: Tensor, rest: Tensor, pool: MemoryPool) -> Tensor:
        mixed, weights = [], []
        for few, others in in_cache(rest, pool):
            first = x0_hat[few, None]
            weight = products(probe[few], first, others).softmax(dim=2)
            mixed.append(weighted_sum(weight, first, others))
            weights.append(weight)
        ctx.save_for_backward(x0_hat, rest, *weights)
        ctx.pool = pool
        return torch.cat(mixed)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (above,), (x0_hat, rest, *weights) = gradients, ctx.saved_tensors
        below = []
        for (few, others), weight in zip(in_cache(rest, ctx.pool), weights, strict=True):
            first = x0_hat[few, None]
            slope = products(above[few], first, others)
            slope = torch.ops.aten._softmax_backward_data(slope, weight, 2, weight.dtype)  # noqa: SLF001 - not public, and the only one
            below.append(weighted_sum(slope, first, others))
        return torch.cat(below), None, None, None


def in_cache(rest: Tensor, pool: MemoryPool) -> Iterator[tuple[slice, Tensor]]:
    """A few images' tokens at a time, in float32 and, on a CPU, in its cache; all at once on a GPU."""
    if rest.is_cuda:
        yield slice(None), rest.float()
        return
    together = min(len(rest), max(1, CACHED_BYTES // (4 * rest[0].numel())))
    scratch = None if rest.dtype == torch.float32 else pool.take((together, *rest.shape[1:]), torch.float32)
    for start in range(0, len(rest), together):
        few = slice(start, start + together)
        yield few, rest[few] if scratch is None else scratch[: len(rest[few])].copy_(rest[few])
