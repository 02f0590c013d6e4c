"""A protocol: which classes arrive when. One of the suite by name, or a file of the user's own."""

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from benchmark.digests import digest_of
from benchmark.errors import DataError, UsageError
from benchmark.protocol.catalogue import load_backbones, load_datasets
from benchmark.protocol.models import NAME, Budget, DatasetSpec, Pictures, Shared, Spec, Views
from benchmark.protocol.reading import read_yaml, suggest, validated


class Protocol(Spec):
    """Which classes arrive when, seen through which backbone, trained within which budgets."""

    name: str = Field(pattern=NAME)
    version: int = Field(1, ge=1)
    title: str
    dataset: str | Pictures = Field(description="a dataset of the suite by name, or the user's own images")
    sessions: tuple[int | tuple[int, ...], ...] = Field(
        min_length=2, description="classes of each session, base first: how many, or which labels"
    )
    class_order: str = Field("natural", pattern=r"^(natural|seed:\d{1,9})$")
    K: Literal["known"] = "known"
    selection: Literal["last"] = "last"
    backbone: str = Field(pattern=NAME)
    augmentation: Literal["digits", "simgcd", "jitter"]
    views: Views = 8
    shared: Shared = Shared()
    budgets: dict[str, Budget]
    params: dict[str, dict[str, Any]] = Field(
        {},
        description="values of a method that depend on the dataset (`fea`), or also on the backbone (`fea@NAME`)",
    )

    @field_validator("dataset")
    @classmethod
    def _known_dataset(cls, value: str | Pictures) -> str | Pictures:
        known = load_datasets()
        if isinstance(value, str) and value not in known:
            raise ValueError(f"unknown dataset{suggest(value, known)}")
        if isinstance(value, Pictures) and value.name in known:
            raise ValueError(f"the suite has a dataset '{value.name}', rename yours")
        return value

    @field_validator("backbone")
    @classmethod
    def _known_backbone(cls, value: str) -> str:
        if value not in load_backbones():
            own = " (a file of your own is given with --backbone when you run)"
            raise ValueError(f"unknown backbone{suggest(value, load_backbones())}{own}")
        return value

    @field_validator("params")
    @classmethod
    def _known_backbones(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for key in value:
            _, at, backbone = key.partition("@")
            if at and backbone not in load_backbones():
                raise ValueError(f"'{key}': unknown backbone{suggest(backbone, load_backbones())}")
        return value

    @field_validator("budgets")
    @classmethod
    def _has_budgets(cls, value: dict[str, Budget]) -> dict[str, Budget]:
        missing = [name for name in ("paper", "quick") if name not in value]
        if missing:
            raise ValueError(f"budget '{missing[0]}' is missing")
        return value

    @model_validator(mode="after")
    def _disjoint(self) -> "Protocol":
        name, available = self.data.name, self.data.classes
        listed = [session for session in self.sessions if isinstance(session, tuple)]
        labels = list(chain.from_iterable(listed))
        sizes = [len(session) if isinstance(session, tuple) else session for session in self.sessions]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        outside = [label for label in labels if not 0 <= label < available]
        if listed and len(listed) < len(self.sessions):
            raise ValueError("sessions: give all of them as numbers of classes, or all as lists of classes")
        if twice:
            raise ValueError(f"sessions: class {twice[0]} is in more than one place; sessions must be disjoint")
        if outside:
            raise ValueError(f"sessions: {name} has no class {outside[0]}, only 0 to {available - 1}")
        if listed and self.class_order != "natural":
            raise ValueError("class_order: must be natural when sessions list their classes")
        if sum(sizes) > available:
            raise ValueError(f"sessions: {sum(sizes)} classes asked for, {name} has {available}")
        if sizes[0] < 2 or min(sizes) < 1:
            raise ValueError("sessions: the base needs at least two classes, every other session at least one")
        return self

    def params_of(self, method: str, backbone: str) -> dict[str, Any]:
        """What the protocol sets for a method; what it says for this backbone comes first."""
        return self.params.get(method, {}) | self.params.get(f"{method}@{backbone}", {})

    @property
    def data(self) -> DatasetSpec:
        """The dataset: one of the suite, or the user's own, of which only looking tells how many images there are."""
        return self.data_with(self.shared.images)

    def data_with(self, images: int | None) -> DatasetSpec:
        """The dataset with so many training images of every class; none: all."""
        if isinstance(self.dataset, str):
            spec = load_datasets()[self.dataset]
        else:
            own = self.dataset
            spec = DatasetSpec(name=own.name, title=own.title, classes=len(own.classes), layout="own", pictures=own)
        return spec if images is None else spec.reduced(images)

    @property
    def digest(self) -> str:
        """Of all that it asks: two protocols of one name with different digests must not meet in a table."""
        return digest_of(self.without_places().model_dump(mode="json", exclude={"title": True, "dataset": {"title"}}))

    def without_places(self) -> "Protocol":
        """As records hold it: where somebody's images lie is nobody else's business."""
        if isinstance(self.dataset, str):
            return self
        return self.model_copy(update={"dataset": self.dataset.model_copy(update={"folder": None})})

    @property
    def classes(self) -> tuple[tuple[int, ...], ...]:
        """The dataset's labels of every session, in order of arrival: a matter of the protocol, not of the seed."""
        order = np.arange(self.data.classes)
        if self.class_order != "natural":
            np.random.default_rng(int(self.class_order.removeprefix("seed:"))).shuffle(order)
        waiting = iter(order.tolist())
        return tuple(
            session if isinstance(session, tuple) else tuple(islice(waiting, session)) for session in self.sessions
        )

    @property
    def identity(self) -> dict[str, Any]:
        """What of a protocol is part of every question."""
        return {
            "name": self.name,
            "version": self.version,
            "dataset": self.data.name,
            "classes": [list(classes) for classes in self.classes],
            "augmentation": self.augmentation,
            "K": self.K,
            "selection": self.selection,
        }


@cache
def protocol_names() -> tuple[str, ...]:
    names = {entry.name for entry in files("protocols").iterdir()}
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml") and "-t" in name))


@cache
def suite_protocol(name: str) -> Protocol:
    """A protocol of the suite, read once."""
    return load_protocol(name)


def load_protocol(name: str, data_dir: Path | None = None) -> Protocol:
    """A protocol of the suite by name, or the user's own by path (`my/protocol.yaml`); `data_dir` is for its images."""
    own = name.endswith((".yaml", ".yml"))
    if own:
        path: Path | Traversable = Path(name)
        expected = Path(name).stem
    elif name in protocol_names():
        path, expected = files("protocols") / f"{name}.yaml", name
    else:
        raise UsageError(
            f"unknown protocol '{name}'{suggest(name, protocol_names())} (your own: --protocol my/protocol.yaml)"
        )
    document = read_yaml(path)
    if own and isinstance(document, dict) and isinstance(document.get("dataset"), dict):
        document = document | {"dataset": pictures_of(document["dataset"], Path(name), data_dir)}
    protocol = validated(Protocol, document, name)
    if own and protocol.name in protocol_names() and protocol != load_protocol(protocol.name):
        raise UsageError(f"{name}: the suite has a protocol '{protocol.name}', and this is another: rename yours")
    if protocol.name != expected:
        raise UsageError(f"{name}: name: '{protocol.name}': must equal the file's name '{expected}'")
    return protocol


def pictures_of(given_values: dict[str, Any], file: Path, given: Path | None) -> Pictures:
    """The user's own images as a protocol file tells of them; classes that it does not list are those in the folder."""
    source = f"{file}: dataset"
    if not isinstance(given_values.get("folder"), str):
        raise UsageError(f"{source}: key 'folder' is missing: the folder of the images, seen from {file.name}")
    place = given or file.parent / Path(given_values["folder"]).expanduser()
    if "classes" not in given_values and place.is_dir():
        refuse_unsplit(place, given_values.get("test_share"))  # or the names of two splits would be taken for classes
    classes = given_values["classes"] if "classes" in given_values else class_names(place)
    named = {"name": file.stem, "title": f"images in {place.name}"}
    return validated(Pictures, named | given_values | {"folder": str(place), "classes": classes}, source)


def has_splits(place: Path) -> bool:
    """Whether a folder holds train/ and test/, not classes; either name alone may be that of a class."""
    return (place / "train").is_dir() and (place / "test").is_dir()


def refuse_unsplit(place: Path, test_share: float | None) -> None:
    """Test images have a folder of their own, or are a share of every class: one of the two."""
    if not has_splits(place) and test_share is None:
        raise DataError(f"{place} has no train/ and test/: write test_share (such as 0.2) into the protocol's dataset")
    if has_splits(place) and test_share is not None:
        raise DataError(f"{place} has train/ and test/: take test_share out of the protocol's dataset")


def class_names(place: Path) -> list[str]:
    """Names of class folders, in order: in `train`, or in the folder itself; not those that systems leave behind."""
    inner = place / "train" if has_splits(place) else place
    try:
        return sorted(e.name for e in inner.iterdir() if e.is_dir() and not e.name.startswith((".", "__")))
    except OSError as error:
        raise DataError(f"cannot read folder {inner}: {error.strerror or error}") from None
