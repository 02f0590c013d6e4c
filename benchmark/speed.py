"""`bench speed`: what the exact shortcut gains here, measured side by side in one process.

Three ways to make the same training step on as many images: the usual one (every image through the whole network, last
block trained), the cached one (tokens out of the bank, plain last block) and ours (tokens out of the bank, the class
token alone). They take turns, and medians are compared, so a machine that is slow today is slow for all three. The
trunk is measured in float32 and, where the machine has units for it, in bfloat16 (`shared.trunk`). What oneDNN gains
(methods/products.py) is measured by our step and the trunk, with it and with torch told to do without it.
"""

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmark.engine.feed import Prefetcher
from benchmark.engine.training import descend, sgd
from benchmark.protocol.models import Backbone, Shared
from benchmark.seeds import repeatable
from benchmark.tokens.backbone import PASS_ON_CPU, LastBlock, Trunk, build_vit, has_bfloat16_units, split_vit
from benchmark.tokens.bank import Bank, Piece, Recipe, Shape, shards
from benchmark.tokens.builder import PartFile
from benchmark.tokens.sources import BankSource
from methods.contract import Tokens
from methods.heads import CosineHead
from methods.products import ONEDNN, product

ROWS = 100
"""Rows of the classifier on top."""
ROUNDS = 4
STEPS_A_TURN = 20
"""Our steps after each step of another way, so that they meet the machine in as many moods as the long ones do."""
WARM_STEPS = 5
BANKED = 256
"""Images in the bank that steps draw from; their tokens (77 MB for ViT-B/16) are more than a cache holds."""
MATRIX_SIZES = (1024, 2048, 4096)
READ_BYTES = 1 << 29


@dataclass(frozen=True)
class Speed:
    """What was measured, in seconds, images and operations a second, and what follows."""

    backbone: str
    batch: int
    device: str
    threads: int
    usual_step: float
    plain_step: float
    our_step: float
    step_ratio: float
    plain_ratio: float
    trunk_images_per_second: float
    trunk_flops_per_image: float
    peak_flops: float
    trunk_fraction_of_peak: float
    trunk_bfloat16_images_per_second: float | None
    """None: this machine has no units for it."""
    trunk_bfloat16_ratio: float | None
    without_onednn_step_ratio: float | None
    """How much longer our step takes without oneDNN; None: it is not there."""
    without_onednn_trunk_ratio: float | None
    read_bytes_per_second: float
    step_bytes: float
    step_flops: float
    roofline_step: float
    step_over_roofline: float


def seconds(work: Callable[[], Any], device: torch.device) -> float:
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def median(work: Callable[[], Any], times: int, device: torch.device) -> float:
    return statistics.median(seconds(work, device) for _ in range(times))


def matrix_peak(device: torch.device) -> float:
    """The best rate of matrix products of several sizes, in operations a second, whoever multiplies."""
    rates = []
    for size in MATRIX_SIZES:
        a, b = torch.randn(2, size, size, device=device)
        ways: list[Callable[[Tensor, Tensor], Tensor]] = [torch.mm]
        if device.type == "cpu" and ONEDNN is not None:
            ways.append(product)
        for multiply in ways:
            seconds(lambda: multiply(a, b), device)  # noqa: B023 - called at once
            rates.append(2 * size**3 / median(lambda: multiply(a, b), 3, device))  # noqa: B023
    return max(rates)


@contextmanager
def onednn_off() -> Iterator[None]:
    """Torch multiplies by its other kernels for a while."""
    flags: Any = torch.backends.mkldnn
    before, flags.enabled = flags.enabled, False
    try:
        yield
    finally:
        flags.enabled = before


def without_onednn(work: Callable[[], Any]) -> Callable[[], Any]:
    """The same work, all of it by torch's other kernels."""

    def done() -> None:
        with onednn_off():
            work()

    return done


def read_bandwidth(device: torch.device) -> float:
    """How fast a large array can be read, in bytes a second."""
    array = torch.ones(READ_BYTES // 4, device=device)
    seconds(array.sum, device)
    return READ_BYTES / median(array.sum, 3, device)


def trunk_flops(trunk: Trunk) -> float:
    """Operations of the matrix products for one image: patches, then every frozen block."""
    vit, tokens, width = trunk.vit, sum(trunk.shape[:1]) + 1, trunk.shape[1]
    patch = 2 * vit.patch_embed.num_patches * vit.patch_embed.proj.weight.numel()
    blocks = 0
    for block in vit.blocks:
        weights = sum(p.numel() for p in block.parameters() if p.ndim == 2)
        blocks += 2 * tokens * weights + 4 * tokens * tokens * width
    return float(patch + blocks)


def step_cost(block: LastBlock, trunk: Trunk, batch: int, stored: int) -> tuple[float, float]:
    """Bytes that a class-token step cannot avoid moving, and operations it cannot avoid.

    Bytes: the stored tokens once; trained weights once forward and once backward, their gradients written once, and the
    optimiser's reading of weights, gradients and momentum and writing of weights and momentum. Operations: each trained
    matrix with one token forward, twice backward; scores and weighted sum of tokens forward, both again backward (there
    is no gradient for the tokens).
    """
    weights = sum(p.numel() for p in block.block.parameters() if p.ndim == 2)
    heads, (tokens, width) = block.block.attn.num_heads, trunk.shape
    flops = 3 * 2 * batch * weights + 4 * 2 * batch * heads * (tokens + 1) * width
    return float(batch * stored + 4 * weights * (2 + 1 + 5)), float(flops)


class Usual(nn.Module):
    """The step of the usual code: the whole network, then the head; only the last block and the head are trained."""

    def __init__(self, spec: Backbone) -> None:
        super().__init__()
        self.vit = build_vit(spec).requires_grad_(False)
        self.vit.blocks[-1].requires_grad_(True)
        self.head = CosineHead(self.vit.embed_dim, ROWS, 0.1)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.vit.forward_features(pixels)[:, 0])


class Cached(nn.Module):
    """The step on tokens, by the class-token path or by the plain block."""

    def __init__(self, block: LastBlock) -> None:
        super().__init__()
        self.block, self.head = block, CosineHead(block.width, ROWS, 0.1)

    def forward(self, tokens: Tokens) -> Tensor:
        return self.head(self.block(tokens))


def trainer(model: nn.Module, labels: Tensor) -> Callable[[Any], None]:
    """One training step as the engine makes it."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = sgd(parameters, 0.01, Shared())

    def step(inputs: Any) -> None:
        descend(optimiser, parameters, {"label": F.cross_entropy(model(inputs), labels)})

    return step


class Banked:
    """Batches out of a bank on disk, as runs read them."""

    def __init__(self, folder: Path, trunk: Trunk, batch: int, device: torch.device) -> None:
        shape = Shape(*trunk.shape, "float16")
        recipe = Recipe("none", "", "random", "", {}, "none", "float16", trunk.eps is not None, "all")
        bank = Bank(folder, recipe, shape, {"train": np.arange(BANKED), "test": np.arange(0)})
        random = torch.Generator().manual_seed(0)
        for shard in range(shards(BANKED)):
            part = PartFile(bank, Piece("train", 0, shard))
            while part.done < bank.images(part.piece):
                count = min(64, bank.images(part.piece) - part.done)
                rest = torch.randn(count, *trunk.shape, generator=random)
                part.append(Tokens(torch.randn(count, shape.width, generator=random), rest))
            part.finish()
        self.source, self.batch_size, self.random = BankSource(bank, "train", device), batch, random
        self.steps, self.from_disk = 1 << 30, True
        self.stored = shape.image_bytes

    def batch(self, epoch: int, step: int) -> Tokens:  # noqa: ARG002 - a Feed, but every batch is drawn anew
        ids = torch.randint(BANKED, (self.batch_size,), generator=self.random)
        return self.source.get(ids, torch.zeros_like(ids))


def measure(spec: Backbone, batch: int, device: torch.device, threads: int | None, say: Callable[[str], None]) -> Speed:
    """Everything, one after the other, on a machine that should have nothing else to do."""
    with repeatable(threads), tempfile.TemporaryDirectory(prefix="bench-speed-") as folder:
        torch.manual_seed(0)
        trunk, block = split_vit(build_vit(spec), spec)
        trunk, block = trunk.to(device), block.to(device)
        rounded = split_vit(build_vit(spec), spec, "bfloat16")[0].to(device) if has_bfloat16_units(device) else None
        labels = torch.randint(ROWS, (batch,), device=device)
        channels = trunk.vit.patch_embed.proj.in_channels
        pixels = torch.randn(batch, channels, spec.image_size, spec.image_size, device=device)
        feed = Banked(Path(folder), trunk, batch, device)
        ahead = Prefetcher(feed)
        plain = LastBlock(block.block, block.norm)
        plain.fast = False
        usual, cached, ours = (
            trainer(model.to(device), labels) for model in (Usual(spec), Cached(plain), Cached(block))
        )
        some = pixels[: min(batch, PASS_ON_CPU if device.type == "cpu" else batch)]
        times: dict[str, list[float]] = {
            name: [] for name in ("usual", "plain", "ours", "trunk", "rounded", "step without", "trunk without")
        }
        two_libraries = device.type == "cpu" and ONEDNN is not None
        peaks: list[float] = []
        bandwidths: list[float] = []
        number = itertools.count()
        others: list[tuple[str, Callable[[], Any], int]] = [
            ("usual", lambda: usual(pixels), 1),
            ("plain", lambda: cached(ahead.batch(0, next(number))), 1),
            ("trunk", lambda: trunk(some), 3),
            *([("rounded", lambda: rounded(some), 3)] if rounded is not None else []),
            *([("trunk without", without_onednn(lambda: trunk(some)), 3)] if two_libraries else []),
            *(
                [("step without", without_onednn(lambda: ours(ahead.batch(0, next(number)))), STEPS_A_TURN)]
                if two_libraries
                else []
            ),
        ]
        with ahead.pool:
            for _ in range(WARM_STEPS):
                ours(ahead.batch(0, next(number)))
            for turn in range(ROUNDS):
                say(f"round {turn + 1} of {ROUNDS}")
                peaks.append(matrix_peak(device))
                bandwidths.append(read_bandwidth(device))
                for name, make, repeats in others:
                    times[name] += [seconds(make, device) for _ in range(repeats)]
                    ours(ahead.batch(0, next(number)))  # the others have left its memory cold: so is no step of a run
                    times["ours"] += [
                        seconds(lambda: ours(ahead.batch(0, next(number))), device) for _ in range(STEPS_A_TURN)
                    ]
        middle = {name: statistics.median(values) for name, values in times.items() if values}
        fast = middle.get("rounded")
        peak, bandwidth = statistics.median(peaks), statistics.median(bandwidths)
        bytes_moved, flops = step_cost(block, trunk, batch, feed.stored)
        rate, work = len(some) / middle["trunk"], trunk_flops(trunk)
        roofline = bytes_moved / bandwidth + flops / peak
        return Speed(
            backbone=spec.name,
            batch=batch,
            device=str(device),
            threads=torch.get_num_threads(),
            usual_step=middle["usual"],
            plain_step=middle["plain"],
            our_step=middle["ours"],
            step_ratio=middle["usual"] / middle["ours"],
            plain_ratio=middle["plain"] / middle["ours"],
            trunk_images_per_second=rate,
            trunk_flops_per_image=work,
            peak_flops=peak,
            trunk_fraction_of_peak=rate * work / peak,
            trunk_bfloat16_images_per_second=None if fast is None else len(some) / fast,
            trunk_bfloat16_ratio=None if fast is None else middle["trunk"] / fast,
            without_onednn_step_ratio=middle["step without"] / middle["ours"] if two_libraries else None,
            without_onednn_trunk_ratio=middle["trunk without"] / middle["trunk"] if two_libraries else None,
            read_bytes_per_second=bandwidth,
            step_bytes=bytes_moved,
            step_flops=flops,
            roofline_step=roofline,
            step_over_roofline=middle["ours"] / roofline,
        )
