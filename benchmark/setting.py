"""What a run works with once everything is opened: images in order of arrival, their tokens, the trained block."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmark.backbone import LastBlock, Trunk, open_backbone, require_units
from benchmark.bank import Bank, BankSource, Builder, Recipe, Shape, selection_of, wanted_pieces
from benchmark.data import Dataset, open_dataset
from benchmark.errors import UsageError
from benchmark.files import cache_folder
from benchmark.layouts import SplitName
from benchmark.progress import Display, Stop
from benchmark.request import Request
from benchmark.seeds import derive
from benchmark.stream import Labelled, Stream, Unlabelled, lay_out
from benchmark.tokens import CleanFromBank, Kept, Live, TokenSource, opened_reading
from benchmark.views import PRESETS


@dataclass
class Setting:
    """What a run works with once everything is opened."""

    request: Request
    stream: Stream
    source: TokenSource
    """Tokens of training images."""
    test_source: TokenSource
    """Tokens of test images, for the evaluator alone."""
    block: LastBlock
    dataset: Dataset
    device: torch.device
    display: Display
    stop: Stop
    bank_seconds: float = 0.0
    """Time spent on tokens that were not there yet."""

    @property
    def seed(self) -> int:
        return self.request.question.seed

    def session(self, number: int, exemplars: Tensor | None = None) -> Unlabelled | Labelled:
        """A session as methods see it. Only session 0 is built with labels; exemplars are ids that may be recalled."""
        known, new = self.stream.known(number), self.stream.new(number)
        ids = self.stream.ids(number)
        serve = opened_reading(self.source, ids if exemplars is None else torch.cat([ids, exemplars.cpu()]))
        if number == 0:
            labels = torch.from_numpy(self.stream.hidden[ids.numpy()]).to(self.device)
            return Labelled(number, known, new, ids.to(self.device), serve, labels)
        return Unlabelled(number, known, new, ids.to(self.device), serve)

    def seeded(self, purpose: str, *where: int) -> None:
        """Before a method is called: what it draws depends on where it is, not on what was drawn before."""
        torch.manual_seed(derive(self.seed, purpose, *where))


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except Exception:  # noqa: BLE001 - what a missing backend raises is its own affair
        raise UsageError(f"--device: '{name}' is not usable here, try auto or cpu") from None
    return device


def open_setting(request: Request, device: torch.device, display: Display, stop: Stop) -> Setting:
    """Open data and backbone; make the tokens that are not there yet."""
    protocol = request.protocol
    dataset = open_dataset(request.data, request.data_dir)
    require_units(request.shared.trunk, device)
    trunk, block = open_backbone(request.backbone, request.weights, request.shared.trunk)
    trunk, block = trunk.to(device), block.to(device)
    if not block.fast:
        display.say(
            f"notice: the last block of {request.backbone.name} has another shape, the slower plain block is used"
        )
    if protocol.data.pictures is not None:
        display.say(told_of(dataset))
    if dataset.in_both:
        display.say(f"notice: {dataset.in_both} test images of {dataset.name} are training images too")
    opened = Setting(
        request, lay_out(protocol, dataset), *in_memory(trunk, dataset, request), block, dataset, device, display, stop
    )
    if not needs_bank(request):
        return opened
    builder = Builder(
        open_bank(request, dataset, trunk), trunk, dataset.splits, PRESETS[protocol.augmentation], display, stop
    )
    views = request.question.views
    builder.build_sound(wanted_pieces(builder.bank, views))
    train, test = (BankSource(builder.bank, split, device) for split in ("train", "test"))
    train.trunk_images = builder.images
    source = CleanFromBank(train, Live(trunk, dataset.train.images, builder.render)) if views == "live" else train
    return replace(opened, source=source, test_source=test, bank_seconds=builder.seconds)


def needs_bank(request: Request) -> bool:
    """Whether tokens go to disk; those of a few small images are kept in memory."""
    return request.protocol.data.layout != "embedded" or request.shared.bank != "float32"


def told_of(dataset: Dataset) -> str:
    """What was found by looking at own images."""
    height, width = dataset.train.images.shape[1:3]
    counts = " and ".join(
        f"{least if least == most else f'{least} to {most}'} {'training' if split == 'train' else 'test'}"
        for split, (least, most) in dataset.counts.items()
    )
    sizes = f"{counts} images per class, {width} x {height} pixels"
    return f"{dataset.name}: {len(dataset.classes)} classes, {sizes}, digest {dataset.digest[:12]}"


def in_memory(trunk: Trunk, dataset: Dataset, request: Request) -> tuple[TokenSource, TokenSource]:
    """Tokens that are computed when they are first asked for; live views each time."""
    render = PRESETS[request.protocol.augmentation]
    train, test = (Live(trunk, split.images, render) for split in (dataset.train, dataset.test))
    return train if request.question.views == "live" else Kept(train), Kept(test)


def open_bank(request: Request, dataset: Dataset, trunk: Trunk) -> Bank:
    """The bank of a run: where it lies and what it holds, which are the images that its protocol uses."""
    spec, used = request.backbone, lay_out(request.protocol, dataset)
    members: dict[SplitName, npt.NDArray[np.int64]] = {
        "train": np.flatnonzero(used.hidden >= 0).astype(np.int64),
        "test": np.flatnonzero(used.hidden_test >= 0).astype(np.int64),
    }
    recipe = Recipe(
        dataset=dataset.name,
        data_digest=dataset.digest,
        backbone=spec.name,
        weights=request.question.backbone["weights"],
        # banks from before there was a choice keep their address
        network=spec.network | ({} if request.shared.trunk == "float32" else {"trunk": request.shared.trunk}),
        augmentation=request.protocol.augmentation,
        precision=request.shared.bank,
        normalised=trunk.eps is not None,
        selection=selection_of(members, dataset.splits),
    )
    return Bank(cache_folder() / "bank" / recipe.folder, recipe, Shape(*trunk.shape, recipe.precision), members)
