"""The contract: what a method must say, and the little that all methods share.

A method is built with the trained last block and the base head. It never sees a file, an optimiser, a device, a test
image or a hidden label. The engine calls, for every session t = 1, 2, ...:

    for each phase:  begin (sizes only) -> prepare (may read clean images) -> losses (once a step), diagnose (an epoch)
    then             end (may read clean images)

and `predict` whenever it wants to know; all but `losses` run without gradients. Session 0 is trained by the engine; a
method meets it in `end` alone, with labels. What must outlive an interruption goes into parameters and buffers: a
resumed run is built anew, `begin` is called for every phase up to now, and the saved tensors are put back; so register
them in `build` or `begin`. A method that trains nothing returns no phases: then only `end` and `predict` are called.
Draw random numbers with torch's default generator: the engine seeds it before every call from (seed, purpose, session,
phase, step).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer
from torch import Tensor, nn

from benchmark.stream import Batch, Labelled, Unlabelled
from methods.heads import CosineHead


def knob(default: Any, provenance: str, why: str, *, later: bool = False, **limits: Any) -> Any:
    """A parameter with where its value comes from and what it does.

    Provenance is `paper`, `code:<repo>`, `inferred`, `study` (docs/readings.md) or `ours`. A knob that came `later` is
    left out of a run's question at its default, so that runs from before it keep their key.
    """
    return Field(default, description=why, json_schema_extra={"provenance": provenance, "later": later}, **limits)


@dataclass(frozen=True)
class Phase:
    """A stretch of a session with its own optimiser and cosine.

    `share` of the session's epochs; `novel` and `memory` images a step as multiples of the budget's batch; an epoch
    takes as many images as the `session`, or as `session+memory`, has.
    """

    name: str = "discover"
    share: float = 1.0
    novel: float = 1.0
    memory: float = 0.0
    pool: Literal["session", "session+memory"] = "session"


class Method(nn.Module):
    """A learner that meets sessions in order and names classes by output row."""

    version: ClassVar[int] = 1
    """Raised when a change to the code may change results: it is part of the question a run answers."""

    class Params(BaseModel):
        """The method's own knobs; everything shared belongs to the protocol."""

        model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

        @classmethod
        def defaults(cls) -> dict[str, Any]:
            """All knobs as they are if nobody sets them, also those that questions then leave out."""
            plain = cls()
            return dict(plain) | plain.model_dump(mode="json")

        @model_serializer(mode="wrap")
        def _without_later_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
            later = {
                name: field.default
                for name, field in type(self).model_fields.items()
                if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("later")
            }
            return {name: value for name, value in dump(self).items() if name not in later or value != later[name]}

    def __init__(self, block: nn.Module, head: CosineHead, params: Any, projector: tuple[int, ...]) -> None:
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

    def begin(self, session: Unlabelled, phase: Phase) -> None:  # noqa: ARG002 - for methods with several phases
        """Build modules for a phase from sizes alone; here: the head gets the session's rows, once."""
        self.new_rows = session.new_rows
        if self.head.rows < session.total:
            self.head.grow(session.total - self.head.rows)

    def prepare(self, session: Unlabelled, phase: Phase) -> None:
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

    def end(self, session: Unlabelled | Labelled) -> None:
        """Distil what must outlive the session; session 0 comes with labels."""

    @torch.no_grad()
    def clean_features(self, session: Unlabelled) -> Tensor:
        """Features of all the session's images in the clean view, in the order of `session.clean()`."""
        return torch.cat([self.block(part.tokens) for part in session.clean()])

    @staticmethod
    def believed_rows(session: Unlabelled, h: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
        """Rows of a session's images: by label in session 0, else the best of the new rows.

        `score` gives a column for each new row: all images are novel, so the old rows do not compete.
        """
        return session.labels if isinstance(session, Labelled) else session.known + score(h).argmax(dim=1)

    def predict(self, tokens: Any) -> Tensor:
        """Output rows, without being told the session."""
        return self.head(self.block(tokens)).argmax(dim=1)

    def memory(self) -> tuple[Tensor, Tensor]:
        """Exemplars as (image ids, output rows); the engine turns them into tokens for phases that ask."""
        nothing = torch.zeros(0, dtype=torch.long)
        return nothing, nothing
