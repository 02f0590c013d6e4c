"""From a plan of tokens to sources that serve them: what a run and `bench bank` have in common, nothing of a method."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from benchmark.data.datasets import Dataset
from benchmark.data.layout import SplitName
from benchmark.data.stream import lay_out
from benchmark.data.views import PRESETS
from benchmark.display import Display, Stop
from benchmark.files import cache_folder
from benchmark.tokens.backbone import LastBlock, Trunk, open_backbone, require_units
from benchmark.tokens.bank import Bank, Recipe, Shape, selection_of, wanted_pieces
from benchmark.tokens.builder import Builder
from benchmark.tokens.plan import TokenPlan
from benchmark.tokens.sources import BankSource, CleanFromBank, InMemory, Live, TokenSource


@dataclass(frozen=True)
class OpenTokens:
    """Tokens of both splits, ready to be served, and the block that is trained on them."""

    dataset: Dataset
    train: TokenSource
    test: TokenSource
    block: LastBlock
    seconds: float = 0.0
    """Time spent on tokens that were not there yet."""


def open_tokens(plan: TokenPlan, device: torch.device, display: Display, stop: Stop) -> OpenTokens:
    """Open data and backbone; make the tokens that are not there yet."""
    dataset = plan.images()
    require_units(plan.shared.trunk, device)
    trunk, block = open_backbone(plan.backbone, plan.weights, plan.shared.trunk)
    trunk, block = trunk.to(device), block.to(device)
    if not block.fast:
        display.say(f"notice: the last block of {plan.backbone.name} has another shape, the slower plain block is used")
    if plan.protocol.data.pictures is not None:
        display.say(described(dataset))
    if dataset.in_both:
        display.say(f"notice: {dataset.in_both} test images of {dataset.name} are training images too")
    if not plan.needs_bank:
        return OpenTokens(dataset, *in_memory(trunk, dataset, plan), block)
    render = PRESETS[plan.protocol.augmentation]
    builder = Builder(open_bank(plan, dataset, trunk), trunk, dataset.splits, render, display, stop)
    builder.build_sound(wanted_pieces(builder.bank, plan.views))
    train, test = (BankSource(builder.bank, split, device) for split in ("train", "test"))
    train.trunk_images = builder.images
    source = CleanFromBank(train, Live(trunk, dataset.train.images, render)) if plan.views == "live" else train
    return OpenTokens(dataset, source, test, block, builder.seconds)


def described(dataset: Dataset) -> str:
    """What was found by looking at own images."""
    height, width = dataset.train.images.shape[1:3]
    counts = " and ".join(
        f"{least if least == most else f'{least} to {most}'} {'training' if split == 'train' else 'test'}"
        for split, (least, most) in dataset.counts.items()
    )
    sizes = f"{counts} images per class, {width} x {height} pixels"
    return f"{dataset.name}: {len(dataset.classes)} classes, {sizes}, digest {dataset.digest[:12]}"


def in_memory(trunk: Trunk, dataset: Dataset, plan: TokenPlan) -> tuple[TokenSource, TokenSource]:
    """Tokens that are computed when they are first asked for; live views each time."""
    render = PRESETS[plan.protocol.augmentation]
    train, test = (Live(trunk, split.images, render) for split in (dataset.train, dataset.test))
    return train if plan.views == "live" else InMemory(train), InMemory(test)


def open_bank(plan: TokenPlan, dataset: Dataset, trunk: Trunk) -> Bank:
    """The bank of a plan: where it lies and what it holds, which are the images that its protocol uses."""
    spec, used = plan.backbone, lay_out(plan.protocol, dataset)
    members: dict[SplitName, npt.NDArray[np.int64]] = {
        "train": np.flatnonzero(used.hidden >= 0).astype(np.int64),
        "test": np.flatnonzero(used.hidden_test >= 0).astype(np.int64),
    }
    recipe = Recipe(
        dataset=dataset.name,
        data_digest=dataset.digest,
        backbone=spec.name,
        weights=plan.weights_digest,
        # banks from before there was a choice keep their address
        network=spec.network | ({} if plan.shared.trunk == "float32" else {"trunk": plan.shared.trunk}),
        augmentation=plan.protocol.augmentation,
        precision=plan.shared.bank,
        normalised=trunk.eps is not None,
        selection=selection_of(members, dataset.splits),
    )
    return Bank(cache_folder() / "bank" / recipe.folder, recipe, Shape(*trunk.shape, recipe.precision), members)
