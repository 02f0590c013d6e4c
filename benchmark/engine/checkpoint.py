"""Crash-safe state of an unfinished run: one file with the model, the optimiser's momentum and how far training got.

The file holds the digest of all of it: a damaged one is noticed when it is read, moved aside, and the run goes on from
the one before, which is kept beside it.
No random state is saved: every random number is derived from its place in the run (seeds.py).
"""

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from benchmark.digests import SEAL, move_aside
from benchmark.errors import UsageError
from benchmark.files import atomic_write, make_folder
from benchmark.records.question import Question
from benchmark.tokens.weights import tensor_digest

SECONDS_BETWEEN_SAVES = 60.0
"""Within an epoch, the state is saved at least this often."""
SECONDS_BETWEEN_EPOCH_SAVES = 1.0
"""At the end of an epoch it is saved too, unless the last save is younger than this, or than twenty times what saving
takes: epochs can take milliseconds."""


@dataclass
class Progress:
    """How far training got: phase and step of a session, and what has been logged of it."""

    session: int = 0
    ended: bool = False
    """The session is over: `end` was called and its result is in the record."""
    phase: int = -1
    """The phase that was begun last; -1: none yet."""
    step: int = 0
    """Steps of that phase that are done."""
    terms: list[dict[str, list[float | None]]] = field(default_factory=list)
    """For each phase of the session so far: terms of the loss by epoch."""
    diagnostics: list[dict[str, list[float | None]]] = field(default_factory=list)
    """Likewise the method's diagnostic figures."""
    sums: dict[str, list[float]] = field(default_factory=dict)
    """Sum and number of values of each term in the epoch under way."""
    seconds: float = 0.0
    """Time spent training in this session, over all attempts."""
    optimiser_steps: int = 0
    session_seconds: list[float] = field(default_factory=list)
    attempts: int = 0
    shapes: list[dict[str, int]] = field(default_factory=list)
    """For each phase of the session so far: its epochs, steps per epoch, images and exemplars per step."""
    threads: int = 0
    """Threads that the run was begun with: they decide the last bits."""
    engine: str = ""
    """Digest of the suite's files when the run was begun: a run of two codes is a run of neither."""
    held: list[int] = field(default_factory=list)
    """Exemplars the method held when the last session ended: what it may recall, beside the session's own images."""

    def is_within(self, sessions: int) -> bool:
        """Whether it can be a place in a run of so many sessions."""
        numbers = (self.session, self.phase, self.step, self.attempts, self.optimiser_steps)
        return (
            all(isinstance(number, int) for number in numbers)
            and 0 <= self.session < sessions
            and self.phase >= -1
            and self.step >= 0
            and len(self.terms) == len(self.diagnostics) == len(self.shapes)
            and len(self.session_seconds) == self.session + self.ended
        )

    def enter(self, session: int) -> None:
        """Go on to a session; what counts for the whole run stays."""
        self.session, self.ended, self.phase, self.step = session, False, -1, 0
        self.terms, self.diagnostics, self.sums, self.shapes, self.seconds = [], [], {}, [], 0.0

    def add_phase(self, shape: dict[str, int]) -> None:
        """Begin to log a phase."""
        self.terms.append({})
        self.diagnostics.append({})
        self.shapes.append(shape)


class Stateful(Protocol):
    """Whatever has tensors to save."""

    def state_dict(self) -> dict[str, Any]: ...


class Checkpoint:
    """The state file of one run."""

    def __init__(self, path: Path, question: Question | dict[str, Any]) -> None:
        self.path = path
        self.question = question
        self.beside: Stateful | None = None
        """Whatever else the run cannot go on without."""
        self.saved_at = time.monotonic()
        self.took = 0.0

    def due(self, *, epoch_ended: bool) -> bool:
        age = time.monotonic() - self.saved_at
        return age >= (max(SECONDS_BETWEEN_EPOCH_SAVES, 20 * self.took) if epoch_ended else SECONDS_BETWEEN_SAVES)

    def save(self, progress: Progress, model: Stateful, momentum: dict[str, Tensor]) -> None:
        began = time.monotonic()
        tensors = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
        tensors |= {f"momentum/{name}": tensor for name, tensor in momentum.items()}
        if self.beside is not None:
            tensors |= {f"beside/{name}": tensor for name, tensor in self.beside.state_dict().items()}
        # safetensors wants every tensor contiguous and in memory of its own
        tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
        notes = {"question": json.dumps(self._asked()), "progress": json.dumps(asdict(progress))}
        make_folder(self.path.parent)  # somebody may have tidied up
        atomic_write(self.path, save(tensors, notes | {SEAL: state_digest(tensors, notes)}), self.before)
        self.saved_at = time.monotonic()
        self.took = self.saved_at - began

    def _asked(self) -> dict[str, Any]:
        return self.question if isinstance(self.question, dict) else self.question.document()

    @property
    def before(self) -> Path:
        """The state that was saved before the last."""
        return self.path.with_name(f"{self.path.stem}-before{self.path.suffix}")

    def remove(self) -> None:
        """Nothing is left to resume."""
        for path in (self.path, self.before):
            path.unlink(missing_ok=True)

    def load(self, plausible: Callable[[Progress], bool]) -> "Saved | None":
        """The last saved state that is whole, or none. A damaged one is moved aside."""
        for path in (self.path, self.before):
            if path.exists():
                found = self._read(path, plausible)
                if found is not None:
                    return found
                with suppress(FileNotFoundError):  # where there are no locks, another may have finished meanwhile
                    move_aside(path, "what was done since the state before is done again")
        return None

    def _read(self, path: Path, plausible: Callable[[Progress], bool]) -> "Saved | None":
        """A state that is whole; one that answers another question is refused."""
        try:
            with safe_open(path, framework="pt") as file:
                notes = dict(file.metadata() or {})
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            if notes.pop(SEAL) != state_digest(tensors, notes):
                return None
            stored, reached = json.loads(notes["question"]), json.loads(notes["progress"])
            if reached.keys() != {each.name for each in fields(Progress)}:
                raise UsageError(
                    f"{path} was saved by other code of the suite: go back to it, or remove {path.parent} to start over"
                )
            progress = Progress(**reached)
            if not plausible(progress):
                return None
        except (SafetensorError, FileNotFoundError, AttributeError, KeyError, TypeError, ValueError):
            return None
        if isinstance(self.question, Question):
            difference = self.question.difference(stored)
        else:
            difference = "" if stored == self.question else "the base session asked for is another one"
        if difference:
            raise UsageError(f"{path} belongs to another run: {difference}; remove it to start over")
        return Saved(progress, *(_under(tensors, f"{part}/") for part in ("model", "momentum", "beside")))


@dataclass
class State:
    """How far training got, the optimiser's momentum there, and where both are saved."""

    progress: Progress
    momentum: dict[str, Tensor]
    checkpoint: Checkpoint


def state_digest(tensors: dict[str, Tensor], notes: dict[str, str]) -> str:
    """Over all that a state file holds, tensors and words."""
    digest = hashlib.sha256(json.dumps(notes, sort_keys=True).encode())
    digest.update(tensor_digest(tensors).encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class Saved:
    """What a state file held."""

    progress: Progress
    model: dict[str, Tensor]
    momentum: dict[str, Tensor]
    beside: dict[str, Tensor]


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


@torch.no_grad()
def restore(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Put saved tensors back. Buffers take the saved shape: what a method remembers grows with its data."""
    expected, parameters = model.state_dict(), dict(model.named_parameters(remove_duplicate=False))
    if expected.keys() != state.keys():
        odd = min(expected.keys() ^ state.keys())
        raise UsageError(f"the saved state does not fit the method: '{odd}' must be registered in build or begin")
    for name, saved in state.items():
        if name not in parameters:
            owner, _, leaf = name.rpartition(".")
            # a copy, because matrix kernels give other last bits for memory that is not aligned as torch aligns its own
            setattr(model.get_submodule(owner), leaf, saved.to(expected[name].device, copy=True))
        elif parameters[name].shape == saved.shape:
            parameters[name].copy_(saved)
        else:
            raise UsageError(f"the saved state does not fit the method: parameter '{name}' must get its size in begin")
