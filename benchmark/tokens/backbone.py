"""The frozen trunk and the one block that is trained.

Only the class token leaves the last block, and the block's input is a constant of (image, view). So attention needs
neither keys nor values of the other tokens: with x̂ the parameter-free normalisation of the input, the key of token j
meets the query only through (W_kᵀ q)·x̂_j, and the values only through Σ_j a_j x̂_j. `LastBlock` computes that; the
result equals the plain block's in value and in the gradient of every parameter (docs/tokens.md).
"""

from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import timm
import torch
from timm.layers import Attention, LayerNorm, LayerScale, Mlp
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from benchmark.errors import UsageError
from benchmark.protocol.models import Backbone
from benchmark.tokens.kernels import Attend
from benchmark.tokens.memory import MemoryPool
from benchmark.tokens.weights import fitted, read_weights
from methods.contract import Tokens
from methods.products import FrozenLinear, linear

Precision = Literal["float32", "bfloat16"]
"""Of the trunk's matrix products."""

CPU_UNITS = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
"""How torch is asked for a processor's units for bfloat16: not public, so it may be gone one day."""

PASS_ON_CPU, PASS_ON_GPU = 16, 256
"""Pictures that pass the trunk together: few on a CPU, so that what a layer hands to the next stays in its cache."""


def takes_class_token_path(block: nn.Module) -> bool:
    """Whether the block is the plain pre-norm block whose class token can be computed alone."""
    if type(block) is not Block or type(block.attn) is not Attention or type(block.mlp) is not Mlp:
        return False
    attention: Any = block.attn
    inner = (attention.q_norm, attention.k_norm, attention.norm, block.mlp.norm)
    if any(getattr(part, "p", 0) or getattr(part, "drop_prob", 0) for part in block.modules()):  # of dropouts
        return False
    return (
        all(isinstance(norm, nn.Identity) for norm in inner)
        and getattr(attention, "gate", None) is None
        and isinstance(block.norm1, LayerNorm | nn.LayerNorm)
        and all(isinstance(scale, nn.Identity | LayerScale) for scale in (block.ls1, block.ls2))
    )


class LastBlock(nn.Module):
    """The trained block and the frozen final norm: tokens in, the class token's feature h out."""

    def __init__(self, block: Block, norm: nn.Module) -> None:
        super().__init__()
        self.block = block.requires_grad_(True)
        self.norm = norm.requires_grad_(False)
        self.fast = takes_class_token_path(block)
        self.pool = MemoryPool()

    @property
    def width(self) -> int:
        return int(self.block.norm2.weight.numel())

    def forward(self, tokens: Tokens) -> Tensor:
        if tokens.cls.requires_grad or tokens.rest.requires_grad:
            raise UsageError("tokens are constants of the frozen trunk: the block gives no gradient for them")
        return self.norm(self._class_token(tokens) if self.fast else self._plain(tokens))

    def _plain(self, tokens: Tokens) -> Tensor:
        whole = torch.cat([tokens.cls[:, None], tokens.rest.float()], dim=1)
        return self.block(whole)[:, 0]

    def _class_token(self, tokens: Tokens) -> Tensor:
        block, attention, norm = self.block, self.block.attn, self.block.norm1
        x0, rest = tokens.cls, tokens.rest
        heads, size, width = attention.num_heads, attention.head_dim, x0.shape[1]
        w_q, w_k, w_v = attention.qkv.weight.view(3, heads, size, width).unbind(0)
        bias = attention.qkv.bias
        b_q, b_v = (bias.view(3, heads, 1, size)[k] if bias is not None else 0.0 for k in (0, 2))

        x0_hat = F.layer_norm(x0, (width,), eps=norm.eps)
        first = (x0_hat * norm.weight + norm.bias).expand(heads, -1, -1)
        query = torch.bmm(first, w_q.transpose(1, 2)) + b_q  # heads, n, size
        # W_kᵀ q, scaled by γ: what the normalised tokens are compared with. β and the key bias add the same number
        # to every score of a head, which the softmax does not see.
        probe = (torch.bmm(query * attention.scale, w_k) * norm.weight).transpose(0, 1)  # n, heads, width
        mixed = Attend.apply(probe, x0_hat, rest, self.pool)
        mixed = (mixed * norm.weight + norm.bias).transpose(0, 1)  # the weights sum to one, so β enters once
        value = torch.bmm(mixed, w_v.transpose(1, 2)) + b_v
        x = x0 + block.ls1(linear(attention.proj, value.transpose(0, 1).flatten(1)))
        hidden = block.mlp.act(linear(block.mlp.fc1, block.norm2(x)))
        return x + block.ls2(linear(block.mlp.fc2, hidden))


class Trunk(nn.Module):
    """Everything before the last block, frozen: pictures in, as bytes or in [0, 1]; tokens out.

    With `bfloat16` its matrix products are computed in that format. Norms, and the sum that runs through the blocks,
    stay in float32, and so do the tokens that come out.
    """

    def __init__(self, vit: VisionTransformer, spec: Backbone, last: LastBlock, precision: Precision) -> None:
        super().__init__()
        self.vit = vit.requires_grad_(False).eval()
        self.spec, self.precision = spec, precision
        if precision == "bfloat16":
            for part in vit.modules():
                if isinstance(part, nn.Linear | nn.Conv2d):
                    part.to(torch.bfloat16)  # once; autocast would convert the weights at every pass
        for part in vit.modules():
            if type(part) is nn.Linear:
                part.__class__ = FrozenLinear
        self.eps = float(last.block.norm1.eps) if last.fast else None
        self.register_buffer("mean", torch.tensor(spec.mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(spec.std).view(1, -1, 1, 1))

    @property
    def shape(self) -> tuple[int, int]:
        """Tokens beside the class token, and their width."""
        return self.vit.patch_embed.num_patches + self.vit.num_prefix_tokens - 1, self.vit.embed_dim

    @property
    def device(self) -> torch.device:
        return self.get_buffer("mean").device

    @torch.no_grad()
    def forward(self, pixels: Tensor) -> Tokens:
        mean, std = self.get_buffer("mean"), self.get_buffer("std")
        pixels = pixels.to(mean.device, non_blocking=True)
        if pixels.dtype == torch.uint8:
            pixels = pixels / 255
        rounded = self.precision == "bfloat16"
        with torch.autocast(mean.device.type, torch.bfloat16) if rounded else nullcontext():
            tokens = self.vit.forward_features((pixels - mean) / std).float()
        rest = tokens[:, 1:]
        if self.eps is not None:
            rest = F.layer_norm(rest, (rest.shape[2],), eps=self.eps)
        return Tokens(tokens[:, 0].contiguous(), rest.contiguous())


def build_vit(spec: Backbone) -> VisionTransformer:
    """The transformer with random weights and no classifier."""
    sizes = spec.vit | ({} if spec.depth is None else {"depth": spec.depth})
    if spec.architecture != "vit" and not timm.is_model(spec.architecture.partition(".")[0]):
        raise UsageError(f"backbone '{spec.name}': timm has no architecture '{spec.architecture}'")
    try:
        if spec.architecture == "vit":
            vit: Any = VisionTransformer(num_classes=0, **{"img_size": spec.image_size, **sizes})
        else:
            vit = timm.create_model(
                spec.architecture, pretrained=False, num_classes=0, img_size=spec.image_size, **sizes
            )
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise UsageError(f"backbone '{spec.name}' cannot be built: {error}") from None
    if not isinstance(vit, VisionTransformer) or vit.cls_token is None:
        raise UsageError(f"backbone '{spec.name}' is not a vision transformer with a class token")
    wanted = (len(spec.mean), (spec.image_size, spec.image_size))
    if (vit.patch_embed.proj.in_channels, tuple(vit.patch_embed.img_size)) != wanted:
        raise UsageError(f"backbone '{spec.name}': its mean, image_size and vit do not agree on the pictures")
    return vit


def split_vit(vit: VisionTransformer, spec: Backbone, precision: Precision = "float32") -> tuple[Trunk, LastBlock]:
    """Cut a transformer before its last block."""
    last = LastBlock(vit.blocks[-1], vit.norm)
    vit.blocks = vit.blocks[:-1]
    vit.norm = nn.Identity()
    return Trunk(vit, spec, last, precision), last


def open_backbone(spec: Backbone, weights: Path, precision: Precision = "float32") -> tuple[Trunk, LastBlock]:
    """The backbone with the weights of a file; `precision` is the trunk's."""
    vit = build_vit(spec)
    vit.load_state_dict(fitted(read_weights(weights), vit, spec, weights))
    return split_vit(vit, spec, precision)


def require_units(precision: Precision, device: torch.device) -> None:
    """Refuse a number format that this machine would only imitate: slower than float32, and rounded otherwise."""
    if precision == "bfloat16" and not has_bfloat16_units(device):
        where = "this processor" if device.type == "cpu" else f"device '{device}'"
        raise UsageError(
            f"shared.trunk: bfloat16: {where} has no units for it (a CPU needs AVX512-BF16 or AMX): leave it at float32"
        )


def has_bfloat16_units(device: torch.device) -> bool:
    """Whether the device multiplies matrices of this format itself. Where torch cannot tell, it does not."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            return torch.cuda.is_bf16_supported(including_emulation=False)
    asked = (getattr(torch.cpu, name, None) for name in CPU_UNITS)
    return device.type == "cpu" and any(ask() for ask in asked if ask is not None)


def images_to_tokens(trunk: Trunk, pixels: Tensor) -> Tokens:
    """Tokens of many pictures, as many at a time as the device is fastest with."""
    size = PASS_ON_CPU if trunk.device.type == "cpu" else PASS_ON_GPU
    return Tokens.cat([trunk(part) for part in pixels.split(size)])


def parameter_count(module: nn.Module) -> int:
    return int(np.sum([p.numel() for p in module.parameters() if p.requires_grad]))
