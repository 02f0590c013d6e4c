"""What a run answers. Two runs with the same question are the same run; its digest is the run's key."""

import re
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from benchmark.digests import digest_of
from benchmark.protocol.models import NAME, Spec, Views
from benchmark.protocol.protocols import Protocol
from benchmark.records.reference import flat

MAX_CLASSES = 5_000
"""More than any protocol has; a record that claims more would only fill the memory."""

Place = Annotated[int, Field(ge=0, lt=MAX_CLASSES)]
Amount = Annotated[int, Field(gt=0, le=1_000_000_000)]


class DataIdentity(Spec):
    """Which images: their digest, and the fewest and the most of a class in each split."""

    digest: str
    train: tuple[int, int]
    test: tuple[int, int]


class Question(Spec):
    """What a run answers. Two runs with the same question are the same run; its hash is the run's key."""

    schema_version: Literal[2] = Field(2, alias="schema")
    method: str = Field(pattern=NAME)
    method_version: int
    method_source: str | None = Field(
        None, pattern=r"^[0-9a-f]{64}$", description="digest of the user's own files; none: a method of the suite"
    )
    params: dict[str, Any]
    protocol: dict[str, Any]
    backbone: dict[str, Any]
    budget: dict[str, Any]
    shared: dict[str, Any]
    views: Views
    seed: int = Field(ge=0, lt=2**32)
    data: DataIdentity

    @model_validator(mode="after")
    def _parts_are_named(self) -> "Question":
        name, classes = self.protocol.get("name"), self.protocol.get("classes")
        if not isinstance(name, str) or not re.fullmatch(NAME, name) or not isinstance(classes, list):
            raise ValueError("protocol: it needs a name and classes")
        if not all(isinstance(self.backbone.get(key), str) for key in ("name", "weights")):
            raise ValueError("backbone: it needs a name and weights")
        images = self.shared.get("images")
        if images is not None and (type(images) is not int or images < 1):
            raise ValueError("shared: images must be a number of images per class")
        return self

    @property
    def session_count(self) -> int:
        return len(self.protocol["classes"])

    def document(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)

    @property
    def key(self) -> str:
        return digest_of(self.document())

    def difference(self, other: dict[str, Any]) -> str:
        """First place where a stored question is another one, for an error message; empty if it is the same."""
        mine, theirs = flat(self.document()), flat(other)
        for key in sorted(mine.keys() | theirs.keys()):
            if mine.get(key) != theirs.get(key):
                return f"{key} is {theirs.get(key)!r} there and {mine.get(key)!r} here"
        return ""


class Own(Spec):
    """What the package does not have: the user's own protocol, and the default parameters of an own method."""

    protocol: Protocol | None = None
    defaults: dict[str, Any] | None = None


class Given(Spec):
    """Files that the run was given by path, so that its command can be typed again. Published records hold none.

    What lies in the user's home begins with `~`: a record names nobody.
    """

    method: str | None = Field(None, description="path/to/mine.py:Mine")
    protocol: str | None = None
    backbone: str | None = None
    weights: str | None = None
    data_dir: str | None = None
