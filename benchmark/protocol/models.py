"""Budgets, shared constants, datasets and backbones: frozen data, checked when they are loaded."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

NAME = r"^[a-z0-9][a-z0-9._-]{0,63}$"
FILE = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"

Views = Annotated[int, Field(ge=2, le=1024)] | Literal["live"]


class Spec(BaseModel):
    """Frozen data with no room for misspelt keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Budget(Spec):
    """How long and how fast to train; the same for every method of a group."""

    base_epochs: int = Field(ge=0, le=100_000)
    novel_epochs: int = Field(ge=0, le=100_000)
    batch: int = Field(128, ge=2, le=65_536)
    base_lr: float = Field(gt=0, le=100)
    lr: float = Field(gt=0, le=100)
    clip: float | None = Field(None, gt=0, description="largest norm of the whole gradient; none: not clipped")


UNSAID = {"trunk": "float32", "images": None}
"""Shared constants that came later: left out of questions where they are as they were before they could be chosen."""


class Shared(Spec):
    """Constants of the setting that no method may change (spec 1.2 and 1.3)."""

    tau_c: float = Field(0.1, gt=0, le=100)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(5e-5, ge=0)
    lr_floor: float = Field(1e-3, ge=0, le=1, description="last learning rate as a share of the first")
    bank: Literal["float16", "float32"] = Field("float32", description="how tokens are kept; float32 is exact")
    trunk: Literal["float32", "bfloat16"] = Field(
        "float32", description="matrix products of the frozen trunk; the trained block always computes in float32"
    )
    images: int | None = Field(
        None,
        ge=1,
        strict=True,
        description="training images per class: the first in order of their digests; none: all there are",
    )

    @model_serializer(mode="wrap")
    def _unsaid_by_default(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """So that records and caches from before keep their keys."""
        return {key: value for key, value in dump(self).items() if key not in UNSAID or UNSAID[key] != value}


class Archive(Spec):
    """A file that `bench fetch` downloads and unpacks."""

    file: str = Field(pattern=FILE, description="its name once it is here")
    megabytes: int = Field(ge=0, description="about, for people who wait")
    bytes: int | None = Field(None, ge=1, description="exactly, if known")
    urls: tuple[str, ...] = Field(
        min_length=1,
        description="tried in this order, all serve the same bytes: http(s)://..., or hub:owner/name@REVISION/file",
    )
    md5: str | None = Field(None, pattern=r"^[0-9a-f]{32}$")
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    digest_from: str | None = Field(None, description="who states the digest")


class Members(Spec):
    """The pickled files inside CIFAR's archive, with their md5 digests."""

    folder: str
    label_key: str
    names_key: str
    names: dict[str, str]
    train: dict[str, str]
    test: dict[str, str]

    @property
    def digests(self) -> dict[str, str]:
        return self.names | self.train | self.test


class Pictures(Spec):
    """A dataset of the user's own, written into a protocol file: a folder of images by class."""

    name: str = Field(pattern=NAME)
    title: str
    folder: str | None = Field(None, description="where it is, seen from the protocol's file; no record holds it")
    classes: tuple[str, ...] = Field(
        min_length=2, description="class folders in the order of their labels; not given: all, in order of name"
    )
    test_share: float | None = Field(
        None, gt=0, lt=1, description="of every class, held out for testing, where there is no train/ and test/"
    )
    split_seed: int = Field(0, ge=0, le=10**9, description="which images those are")
    side: int = Field(
        256, ge=8, le=1024, description="images of several sizes are cut to squares of so many pixels a side"
    )

    @model_validator(mode="after")
    def _named_once(self) -> "Pictures":
        outside = [name for name in self.classes if not name or "/" in name or "\\" in name or name in (".", "..")]
        if outside:
            raise ValueError(f"classes: '{outside[0]}' is not the name of a folder")
        twice = sorted({name for name in self.classes if self.classes.count(name) > 1})
        if twice:
            raise ValueError(f"classes: '{twice[0]}' is listed twice")
        return self


class DatasetSpec(Spec):
    """A dataset by name: how many images of which size, how it lies on disk, where it can be had."""

    name: str = Field(pattern=NAME)
    title: str
    classes: int = Field(ge=1)
    layout: Literal["embedded", "cifar", "tiny", "own"]
    channels: int = 3
    side: int | None = None
    train: int | tuple[int, int] | None = Field(
        None, description="images per class, or the fewest and the most; none: whatever is there (own images)"
    )
    test: int | tuple[int, int] | None = None
    folders: tuple[str, ...] = Field((), description="names its folder may have below --data-dir")
    archive: Archive | None = None
    members: Members | None = None
    pixels: str | None = Field(None, description="digest of the complete dataset (data/pixels.py); none: unknown")
    held_out_of: str | None = Field(
        None, description="the dataset of whose first classes these are training images, some as test images"
    )
    pictures: Pictures | None = Field(None, description="what the user's protocol says of it, if it is the user's own")
    subsets: dict[int, str] = Field({}, description="digests of the first so many training images of every class")
    first: int | None = Field(None, description="only so many training images of every class (`shared.images`)")

    @property
    def whole(self) -> "DatasetSpec":
        """The same with all its images."""
        return self.model_copy(update={"first": None})

    def reduced(self, images: int) -> "DatasetSpec":
        """The same with the first so many training images of every class, and all test images."""
        return self.model_copy(update={"first": images})

    @property
    def registered(self) -> str | None:
        """The digest that its images must have; none: nobody knows."""
        return self.pixels if self.first is None else self.subsets.get(self.first)

    def span(self, split: Literal["train", "test"]) -> list[int] | None:
        """The fewest and the most images of a class, if all are here; none: nobody says."""
        if split == "train" and self.first is not None:
            return [self.first, self.first]
        count = self.train if split == "train" else self.test
        return [*count] if isinstance(count, tuple) else None if count is None else [count, count]

    def most(self, split: Literal["train", "test"]) -> int:
        """Images of a class in the complete dataset, at most; 0: nobody says."""
        span = self.span(split)
        return 0 if span is None else span[1]


class Backbone(Spec):
    """A timm vision transformer, its weights, and what may be known of its past."""

    name: str = Field(pattern=NAME)
    architecture: str = Field(description="timm model name, or 'vit' with its sizes in `vit`")
    vit: dict[str, Any] = {}
    depth: int | None = Field(None, ge=2, description="keep the first blocks only; none: all")
    download: Archive | None = Field(None, description="where `bench fetch` gets the weights")
    weights: str | None = Field(None, description="file in protocols/weights; none: fetched, or given with --weights")
    sha256: str | None = Field(None, description="digest of the weight file; none: nobody states it")
    tensors: str | None = Field(None, description="digest of the tensors, where files with the same weights differ")
    digest_from: str | None = Field(None, description="who states the digests")
    image_size: int = Field(ge=4)
    mean: tuple[float, ...]
    std: tuple[Annotated[float, Field(gt=0)], ...]
    projector: tuple[int, ...] = Field(description="hidden and output widths of every method's projectors")
    trained_on: str
    saw_novel_classes: bool | None = Field(None, description="may it have seen the novel classes? none: unknown")

    @property
    def identity(self) -> str | None:
        """What stands for the registered weights in questions: the digest of their tensors, else of their file."""
        return self.tensors or self.sha256

    @property
    def network(self) -> dict[str, Any]:
        """What makes a network of the weights, for questions and banks."""
        return self.model_dump(mode="json", include={"architecture", "vit", "depth", "image_size", "mean", "std"})
