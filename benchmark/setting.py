"""What a run works with once everything is opened: images in order of arrival, their tokens, the trained block."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmark.backbone import LastBlock, Trunk, open_backbone
from benchmark.bank import Bank, BankSource, Builder, Recipe, Shape, members_of, wanted_pieces
from benchmark.data import Dataset, open_dataset
from benchmark.errors import UsageError
from benchmark.files import cache_folder
from benchmark.progress import Display, Stop
from benchmark.protocol import load_datasets
from benchmark.request import Request
from benchmark.seeds import derive
from benchmark.stream import Labelled, Stream, Unlabelled, lay_out
from benchmark.tokens import CleanFromBank, CleanReader, Kept, Live, TokenSource
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
        readable = ids if exemplars is None else torch.cat([ids, exemplars.cpu()])
        positions = dict(zip(readable.tolist(), self.position(readable).tolist(), strict=True))
        reader = CleanReader(self.source, positions, len(ids), self.device)
        if number == 0:
            labels = torch.from_numpy(self.stream.hidden[ids.numpy()]).to(self.device)
            return Labelled(number, known, new, reader, labels)
        return Unlabelled(number, known, new, reader)

    def position(self, ids: Tensor) -> Tensor:
        return torch.from_numpy(self.stream.position[ids.cpu().numpy()])

    def seeded(self, purpose: str, *where: int) -> None:
        """Before a method is called: what it draws depends on where it is, not on what was drawn before."""
        torch.manual_seed(derive(self.seed, purpose, *where))


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError):
        raise UsageError(f"--device: '{name}' is not usable here, try auto or cpu") from None
    return device


def open_setting(request: Request, device: torch.device, display: Display, stop: Stop) -> Setting:
    """Open data and backbone; make the tokens that are not there yet."""
    protocol = request.protocol
    dataset = open_dataset(protocol.dataset, request.data_dir)
    trunk, block = open_backbone(request.backbone, request.weights)
    trunk, block = trunk.to(device), block.to(device)
    if not block.fast:
        display.say(
            f"notice: the last block of {request.backbone.name} has another shape, the slower plain block is used"
        )
    if dataset.in_both:
        display.say(f"notice: {dataset.in_both} test images of {dataset.name} are training images too")
    opened = Setting(
        request, lay_out(protocol, dataset), *in_memory(trunk, dataset, request), block, dataset, device, display, stop
    )
    if load_datasets()[protocol.dataset].layout == "embedded" and request.shared.bank == "float32":
        return opened  # a few small images: their tokens are kept in memory
    builder = Builder(
        open_bank(request, dataset, trunk), trunk, dataset.splits, PRESETS[protocol.augmentation], display, stop
    )
    views, labels = request.question.views, sorted(label for classes in protocol.classes for label in classes)
    pieces = wanted_pieces(labels, views)
    builder.build(pieces)
    for piece in pieces:
        builder.bank.check(piece)
    train, test = (BankSource(builder.bank, split, device) for split in ("train", "test"))
    train.trunk_images = builder.images
    source = CleanFromBank(train, Live(trunk, dataset.train.images, builder.render)) if views == "live" else train
    return replace(opened, source=source, test_source=test, bank_seconds=builder.seconds)


def in_memory(trunk: Trunk, dataset: Dataset, request: Request) -> tuple[TokenSource, TokenSource]:
    """Tokens that are computed when they are first asked for; live views each time."""
    render = PRESETS[request.protocol.augmentation]
    train, test = (Live(trunk, split.images, render) for split in (dataset.train, dataset.test))
    return train if request.question.views == "live" else Kept(train), Kept(test)


def open_bank(request: Request, dataset: Dataset, trunk: Trunk) -> Bank:
    """The bank of a run: where it lies and what it holds."""
    spec = request.backbone
    recipe = Recipe(
        dataset=dataset.name,
        data_digest=dataset.digest,
        backbone=spec.name,
        weights=request.question.backbone["weights"],
        network=spec.network,
        augmentation=request.protocol.augmentation,
        precision=request.shared.bank,
        normalised=trunk.eps is not None,
    )
    members = {name: members_of(split, len(dataset.classes)) for name, split in dataset.splits.items()}
    return Bank(cache_folder() / "bank" / recipe.folder, recipe, Shape(*trunk.shape, recipe.precision), members)
