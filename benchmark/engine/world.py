"""What a run works with once everything is opened: images in order of arrival, their tokens, the trained block."""

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmark.data.datasets import Dataset
from benchmark.data.stream import Stream, lay_out
from benchmark.display import Display, Stop
from benchmark.engine.request import Request
from benchmark.errors import UsageError
from benchmark.seeds import seed_for
from benchmark.tokens.backbone import LastBlock
from benchmark.tokens.opening import open_tokens
from benchmark.tokens.sources import TokenSource, opened_reading
from methods.contract import LabelledSession, Session


@dataclass
class World:
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

    def session(self, number: int, exemplars: Tensor | None = None) -> Session | LabelledSession:
        """A session as methods see it. Only session 0 is built with labels; exemplars are ids that may be recalled."""
        known, new = self.stream.known(number), self.stream.new(number)
        ids = self.stream.ids(number)
        serve = opened_reading(self.source, ids if exemplars is None else torch.cat([ids, exemplars.cpu()]))
        if number == 0:
            labels = torch.from_numpy(self.stream.hidden[ids.numpy()]).to(self.device)
            return LabelledSession(number, known, new, ids.to(self.device), serve, labels)
        return Session(number, known, new, ids.to(self.device), serve)

    def seeded(self, purpose: str, *where: int) -> None:
        """Before a method is called: what it draws depends on where it is, not on what was drawn before."""
        seed_for(self.seed, purpose, *where)


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except Exception:  # noqa: BLE001 - what a missing backend raises is its own affair
        raise UsageError(f"--device: '{name}' is not usable here, try auto or cpu") from None
    return device


def open_world(request: Request, device: torch.device, display: Display, stop: Stop) -> World:
    """Open data, backbone and tokens; make the tokens that are not there yet."""
    tokens = open_tokens(request.tokens, device, display, stop)
    stream = lay_out(request.protocol, tokens.dataset)
    return World(
        request, stream, tokens.train, tokens.test, tokens.block, tokens.dataset, device, display, stop, tokens.seconds
    )
