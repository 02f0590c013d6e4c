"""What a run works with once everything is opened: images in order of arrival, their tokens, the trained block."""

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmark.backbone import LastBlock, open_backbone
from benchmark.data import Dataset, open_dataset
from benchmark.errors import UsageError
from benchmark.progress import Display, Stop
from benchmark.request import Request
from benchmark.seeds import derive
from benchmark.stream import Labelled, Stream, Unlabelled, lay_out
from benchmark.tokens import CleanReader, Kept, Live, TokenSource
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
    """Open data and backbone; tokens are computed when they are first asked for."""
    protocol = request.protocol
    dataset = open_dataset(protocol.dataset)
    trunk, block = open_backbone(request.backbone, request.weights)
    trunk, block = trunk.to(device), block.to(device)
    if not block.fast:
        display.say(
            f"notice: the last block of {request.backbone.name} has another shape, the slower plain block is used"
        )
    train, test = (Live(trunk, split.images, PRESETS[protocol.augmentation]) for split in (dataset.train, dataset.test))
    source = train if request.question.views == "live" else Kept(train)
    return Setting(request, lay_out(protocol, dataset), source, Kept(test), block, dataset, device, display, stop)
