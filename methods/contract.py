"""What a method is, and all that it ever sees. The engine imports this; this imports nothing of the engine.

`LabelledSession` is session 0. Any other `Session` has sizes, and images in an order that says nothing about their
classes: what a method must not know has no field to be read from.

An image's id is its place among the training images, which are ordered by the SHA-256 of their pixels.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, JsonValue, SerializerFunctionWrapHandler, model_serializer
from torch import Tensor, nn

from methods.errors import ContractError
from methods.heads import CosineHead

OVER = "the method reads images in begin or of a session that is over: read in prepare and end, keep some as memory"
Value = TypeVar("Value")
CHUNK = 256
"""Images whose clean tokens are handed out together."""


@dataclass(frozen=True)
class Tokens:
    """What the trunk gives for n pictures: the raw class token (n, d) and the other tokens (n, l, d).

    The other tokens are already normalised (without scale and shift) if the last block takes the class-token path,
    raw otherwise; out of a float16 bank they come as they are stored. Methods pass tokens to the block and need not
    know.
    """

    cls: Tensor
    rest: Tensor

    def __len__(self) -> int:
        return len(self.cls)

    def __getitem__(self, places: Tensor | slice) -> "Tokens":
        return Tokens(self.cls[places], self.rest[places])

    @staticmethod
    def cat(parts: "list[Tokens]") -> "Tokens":
        return Tokens(torch.cat([part.cls for part in parts]), torch.cat([part.rest for part in parts]))


@dataclass(frozen=True)
class Clean:
    """Some of a session's images in the clean view."""

    ids: Tensor
    tokens: Tokens
    """In the order of `ids`, 256 images or fewer."""


def plain(tensor: object, what: str) -> Tensor:
    """A tensor from a method, if it is one of torch's own: a subclass could answer the engine's questions itself."""
    if type(tensor) is not Tensor:
        raise ContractError(f"the method's {what} must be a plain torch.Tensor, not {type(tensor).__name__}")
    return tensor


Reading = Generator[Tokens | None, Tensor, None]
"""Takes ids, gives tokens. A generator, because no attribute of one leads to what it reads from (tokens/sources.py)."""


@dataclass(frozen=True)
class Session:
    """A discovery session as a method sees it."""

    number: int
    """0 for the labelled session, then 1, 2 and so on."""
    known: int
    """Number of classes of all earlier sessions: they have the output rows 0 to known - 1."""
    new: int
    """Number of classes of this session. Methods are told how many, never which image is of which."""
    ids: Tensor
    """Ids of the session's images, increasing; a vector of integers on the run's device."""
    reading: Reading = field(repr=False)

    @property
    def total(self) -> int:
        """Output rows once the session's are added: known + new."""
        return self.known + self.new

    @property
    def new_rows(self) -> slice:
        """The session's own output rows: known to total - 1."""
        return slice(self.known, self.total)

    def clean(self) -> Iterator[Clean]:
        """All images as `Clean`, some at a time, in the order of `ids`. Only `prepare` and `end` may ask."""
        return self.recall(self.ids)

    def recall(self, ids: Tensor) -> Iterator[Clean]:
        """The same for images with these ids, in that order: of this session, or exemplars the method came with."""
        for part in plain(ids, "ids").split(CHUNK):
            try:
                tokens = self.reading.send(part)
            except StopIteration:
                raise ContractError(OVER) from None
            assert tokens is not None
            yield Clean(part, tokens)

    def close(self) -> None:
        """Once the session is over nothing more is read, so that a method cannot keep images by keeping the session."""
        self.reading.close()


@dataclass(frozen=True)
class LabelledSession(Session):
    """Session 0, the only one whose labels are known."""

    labels: Tensor
    """The output row of every image, in the order of `ids`."""


@dataclass(frozen=True)
class MemoryBatch:
    """Two views of exemplars and the output rows they were stored under."""

    both: Tokens
    """View a on top of view b."""
    row: Tensor
    """The output row that `memory()` gave each image."""

    @property
    def a(self) -> Tokens:
        """One augmented view of every image."""
        return self.both[: len(self.both) // 2]

    @property
    def b(self) -> Tokens:
        """Another view of the same images, in the same order."""
        return self.both[len(self.both) // 2 :]


@dataclass(frozen=True)
class Batch:
    """Two augmented views of the same images of the session."""

    both: Tokens
    """View a on top of view b, 2 n pictures: for one pass through the block instead of two."""
    ids: Tensor
    """Ids of the n images; none of them is from memory."""
    epoch: int
    """Epochs of this phase that are over: 0 in the first."""
    epochs: int
    """All epochs of this phase."""
    memory: MemoryBatch | None = None
    """Exemplars; none if the phase asks for none, or if no image is kept."""

    @property
    def a(self) -> Tokens:
        """One augmented view of every image."""
        return self.both[: len(self.ids)]

    @property
    def b(self) -> Tokens:
        """Another view of the same images, in the same order."""
        return self.both[len(self.ids) :]


@dataclass(frozen=True)
class LabelledBatch:
    """One view of labelled images, for the base session."""

    tokens: Tokens
    labels: Tensor


def knob(
    default: Value,
    provenance: str,
    why: str,
    *,
    later: bool = False,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
) -> Value:
    """A parameter with where its value comes from and what it does.

    Provenance is `paper`, `code:<repo>`, `inferred`, `study` (docs/readings.md) or `ours`. A knob that came `later` is
    left out of a run's question at its default, so that runs from before it keep their key.
    """
    extra: dict[str, JsonValue] = {"provenance": provenance, "later": later}
    return Field(default, description=why, json_schema_extra=extra, ge=ge, gt=gt, le=le, lt=lt)


@dataclass(frozen=True)
class Phase:
    """A stretch of a session with its own optimiser and cosine."""

    name: str = "discover"
    """What logs and records call it."""
    share: float = 1.0
    """Its part of the session's epochs; all phases together have 1."""
    novel: float = 1.0
    """Images of the session per step, as a multiple of the budget's batch size."""
    memory: float = 0.0
    """Exemplars per step, likewise."""
    pool: Literal["session", "session+memory"] = "session"
    """An epoch takes as many images as the session has, or as session and memory have together."""


class Method(nn.Module):
    """A learner that meets sessions in order and names classes by output row."""

    version: ClassVar[int] = 1
    """Raised when a change to the code may change results: it is part of the question a run answers."""

    class Params(BaseModel):
        """The method's own knobs; everything shared belongs to the protocol."""

        model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

        @classmethod
        def defaults(cls) -> dict[str, object]:
            """All knobs as they are if nobody sets them, also those that questions then leave out."""
            plain = cls()
            return dict(plain) | plain.model_dump(mode="json")

        @model_serializer(mode="wrap")
        def _without_later_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, object]:
            later = {
                name: field.default
                for name, field in type(self).model_fields.items()
                if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("later")
            }
            return {name: value for name, value in dump(self).items() if name not in later or value != later[name]}

    params: Params

    def __init__(self, block: nn.Module, head: CosineHead, params: Params, projector: tuple[int, ...]) -> None:
        super().__init__()
        self.block, self.head, self.params, self.projector_sizes = block, head, params, projector
        self.width = head.weight.shape[1]
        self.new_rows = slice(0, head.rows)
        """The rows of the session under way."""
        self.build()

    def build(self) -> None:
        """Modules and buffers that are there from the start; ValueError for a knob that does not fit the backbone."""

    def require_dimensions(self, count: int) -> None:
        """Refuse a knob that asks for more dimensions than a feature has."""
        if count > self.width:
            raise ValueError(f"topk is {count}, but features have {self.width} dimensions")

    def phases(self) -> tuple[Phase, ...]:
        """Stretches of a session, in order; none at all: nothing is trained after session 0."""
        return (Phase(),)

    def begin(self, session: Session, phase: Phase) -> None:  # noqa: ARG002 - for methods with several phases
        """Build modules for a phase from sizes alone; here: the head gets the session's rows, once."""
        self.new_rows = session.new_rows
        if self.head.rows < session.total:
            self.head.grow(session.total - self.head.rows)

    def prepare(self, session: Session, phase: Phase) -> None:
        """Look at the session's clean images before a phase; what is found goes into buffers."""

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """The weighted terms of the loss by name; a term that is switched off is absent. Not needed without phases."""
        raise NotImplementedError("write losses(batch), or let phases() return () to train nothing")

    def diagnose(self, batch: Batch) -> dict[str, Tensor]:
        """Figures to trust the method by, of the last batch of every epoch: logged, never descended on."""
        rows = self.predict(batch.a)
        filled = rows[rows >= self.new_rows.start]
        empty = self.new_rows.stop - self.new_rows.start - len(filled.unique())
        return {"share_on_new_rows": torch.tensor(len(filled) / len(rows)), "empty_rows": torch.tensor(empty)}

    def end(self, session: Session) -> None:
        """Distil what must outlive the session; session 0 comes with labels."""

    @torch.no_grad()
    def clean_features(self, session: Session) -> Tensor:
        """Features of all the session's images in the clean view, in the order of `session.clean()`."""
        return torch.cat([self.block(part.tokens) for part in session.clean()])

    @staticmethod
    def believed_rows(session: Session, h: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
        """Rows of a session's images: by label in session 0, else the best of the new rows.

        `score` gives a column for each new row: all images are novel, so the old rows do not compete.
        """
        return session.labels if isinstance(session, LabelledSession) else session.known + score(h).argmax(dim=1)

    def predict(self, tokens: Tokens) -> Tensor:
        """Output rows, without being told the session."""
        return self.head(self.block(tokens)).argmax(dim=1)

    def memory(self) -> tuple[Tensor, Tensor]:
        """Exemplars as (image ids, output rows); the engine turns them into tokens for phases that ask."""
        nothing = torch.zeros(0, dtype=torch.long)
        return nothing, nothing
