"""Protocols, budgets and backbones: frozen data, validated when loaded from protocols/ or from the user's own file.

A protocol fixes everything that methods share. What a method may choose for itself is in its `Params`.
"""

import difflib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import numpy as np
import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from benchmark.errors import DataError, MissingError, UsageError
from benchmark.files import cache_folder
from benchmark.intact import digest_of

NAME = r"^[a-z0-9][a-z0-9._-]{0,63}$"
FILE = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
MAX_YAML_BYTES = 1_000_000
MAX_YAML_DEPTH = 20

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
        if self.name in load_datasets():
            raise ValueError(f"name: the suite has a dataset '{self.name}', rename yours")
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
    pixels: str | None = Field(None, description="digest of the complete dataset (benchmark/pixels.py); none: unknown")
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
        told = self.train if split == "train" else self.test
        return [*told] if isinstance(told, tuple) else None if told is None else [told, told]

    def most(self, split: Literal["train", "test"]) -> int:
        """Images of a class in the complete dataset, at most; 0: nobody says."""
        span = self.span(split)
        return 0 if span is None else span[1]


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


def suggest(word: str, known: Any) -> str:
    """`, did you mean 'x'?` or `; known: a, b`, for the end of a sentence about an unknown word."""
    names = sorted(map(str, known))
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f", did you mean '{close[0]}'?" if close else f"; known: {', '.join(names)}"


class _Loader(yaml.SafeLoader):
    """Safe YAML that also refuses a key given twice, which plain YAML silently overwrites."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for place, _ in node.value:
            key = self.construct_object(place, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key '{key}' is given twice", node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


UNREADABLE = (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""What YAML's own reader raises for text that it cannot make sense of, such as an impossible date."""


class NotAllowedError(yaml.YAMLError):
    """YAML that we do not take: its `problem` says why."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


def parsed_yaml(text: str) -> Any:
    """A YAML document without aliases and not too deep; whatever is wrong raises one of `UNREADABLE`."""
    depth = 0
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.AliasEvent):
            raise NotAllowedError("aliases (*name) are not allowed here, write the values out")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_YAML_DEPTH:
            raise NotAllowedError(f"nested more than {MAX_YAML_DEPTH} deep")
    return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader with one more rule


def read_yaml(path: Path | Traversable) -> Any:
    """The document of a YAML file; whatever is wrong with it becomes one sentence that names the file."""
    try:
        raw = path.read_bytes()
        if len(raw) > MAX_YAML_BYTES:
            raise UsageError(f"{path}: larger than {MAX_YAML_BYTES} bytes, not read")
        return parsed_yaml(raw.decode("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not UTF-8 text") from None
    except UNREADABLE as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "a value in it cannot be read"
        raise UsageError(f"{path}{where}: broken YAML: {problem}") from None


Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], values: Any, source: str) -> Model:
    """`values` as a model, or one sentence with the source, the key, the value and the nearest valid key."""
    if not isinstance(values, dict):
        raise UsageError(f"{source}: expected a mapping of keys to values, found {type(values).__name__}")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UsageError(f"{source}: {_sentence(model, error)}") from None


def _sentence(model: type[BaseModel], error: ValidationError) -> str:
    missing = [".".join(map(str, each["loc"])) for each in error.errors() if each["type"] == "missing"]
    misspelt = [each for each in error.errors() if each["type"] == "extra_forbidden"]
    if len(missing) > 1 and not misspelt:
        return f"keys {', '.join(map(repr, missing))} are missing"
    first = (misspelt or error.errors())[0]  # a key that is unknown may be one that is missing
    places = [
        str(part)
        for part in first["loc"]
        if not str(part).startswith(("tuple[", "function-", "constrained-", "literal["))
    ]
    key = ".".join(places)
    if first["type"] == "extra_forbidden":
        return (
            f"unknown key '{key}' (value {_short(first['input'])}){suggest(places[-1], _keys_at(model, places[:-1]))}"
        )
    if first["type"] == "missing":
        return f"key '{key}' is missing"
    message = first["msg"].removeprefix("Value error, ")
    return f"{key}: {_short(first['input'])}: {message}" if key else message


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _keys_at(model: type[BaseModel], places: list[str]) -> Iterator[str]:
    """Valid keys of the mapping at `places`, following nested models and mappings of models."""
    current: Any = model
    for place in places:
        field = current.model_fields.get(place) if hasattr(current, "model_fields") else None
        if field is None:
            continue  # the key of a mapping such as budgets.paper
        kinds = [field.annotation, *get_args(field.annotation)]
        current = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), current)
    yield from current.model_fields


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


def pictures_of(told: dict[str, Any], file: Path, given: Path | None) -> Pictures:
    """The user's own images as a protocol file tells of them; classes that it does not list are those in the folder."""
    source = f"{file}: dataset"
    if not isinstance(told.get("folder"), str):
        raise UsageError(f"{source}: key 'folder' is missing: the folder of the images, seen from {file.name}")
    place = given or file.parent / Path(told["folder"]).expanduser()
    if "classes" not in told and place.is_dir():
        refuse_unsplit(place, told.get("test_share"))  # or the names of two splits would be taken for classes
    classes = told["classes"] if "classes" in told else class_names(place)
    named = {"name": file.stem, "title": f"images in {place.name}"}
    return validated(Pictures, named | told | {"folder": str(place), "classes": classes}, source)


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


@cache
def load_datasets() -> dict[str, DatasetSpec]:
    """By name. A dataset that is held out of another lies where that one lies, and is fetched as that one is."""
    document = read_yaml(files("protocols") / "datasets.yaml")
    places = ("layout", "side", "folders", "archive", "members")
    for values in document.values():
        if "held_out_of" in values:
            whole = document[values["held_out_of"]]
            values |= {key: whole[key] for key in places}
    return {
        name: validated(DatasetSpec, {"name": name, **values}, f"datasets.yaml: {name}")
        for name, values in document.items()
    }


@cache
def load_backbones() -> dict[str, Backbone]:
    document = read_yaml(files("protocols") / "backbones.yaml")
    return {
        name: validated(Backbone, {"name": name, **values}, f"backbones.yaml: {name}")
        for name, values in document.items()
    }


def load_backbone(name: str) -> Backbone:
    """A backbone of the suite by name, or the user's own by path (`my/backbone.yaml`)."""
    if name.endswith((".yaml", ".yml")):
        document = read_yaml(Path(name))
        own = {"name": Path(name).stem.lower(), **document} if isinstance(document, dict) else document
        spec = validated(Backbone, own, name)
        if spec.name in load_backbones():
            raise UsageError(f"{name}: the suite has a backbone '{spec.name}', rename yours")
        return spec
    backbones = load_backbones()
    if name not in backbones:
        raise UsageError(f"unknown backbone '{name}'{suggest(name, backbones)} (your own: --backbone my/backbone.yaml)")
    return backbones[name]


def weight_file(backbone: Backbone, given: Path | None) -> Path:
    """Where the weights are, or how to get them."""
    if given is not None:
        if not given.is_file():
            raise DataError(f"no weight file at {given}: give a safetensors or .pth file with --weights FILE")
        return given
    if backbone.weights is not None:
        return Path(str(files("protocols") / "weights" / backbone.weights))
    hint = "give a safetensors or .pth file with --weights FILE"
    if backbone.download is None:
        raise MissingError(f"backbone '{backbone.name}' ships no weights: {hint}")
    fetched = fetched_weights(backbone.download)
    if not fetched.is_file():
        size = f"about {backbone.download.megabytes} MB"
        raise MissingError(
            f"the weights of backbone '{backbone.name}' are not here: "
            f"`bench fetch {backbone.name}` downloads them ({size}), or {hint}"
        )
    return fetched


def fetched_weights(download: Archive) -> Path:
    """Where `bench fetch` puts weights."""
    return cache_folder() / "weights" / download.file
