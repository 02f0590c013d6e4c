"""From what the user typed to the question a run answers. Everything is checked here, before any work begins."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

import methods
from benchmark.data.datasets import Dataset, dataset_folder, open_dataset
from benchmark.engine.own_code import own_line
from benchmark.errors import DataError, MissingError, UsageError
from benchmark.files import file_digest
from benchmark.protocol.catalogue import load_backbone, load_backbones, weight_file
from benchmark.protocol.models import NAME, Backbone, Budget, DatasetSpec, Shared
from benchmark.protocol.overrides import ParamSet, by_part, load_params, parse_views
from benchmark.protocol.protocols import Protocol, load_protocol, protocol_names
from benchmark.protocol.reading import suggest, validated
from benchmark.records.question import DataIdentity, Given, Own, Question
from benchmark.records.reference import difference
from benchmark.tokens.plan import TokenPlan
from methods.errors import NotAMethodError

if TYPE_CHECKING:
    from benchmark.data.fetch import Fetching
    from methods.contract import Method

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Request:
    """A validated request: the question, and the parts it was made of."""

    question: Question
    method: methods.Loaded
    params: "Method.Params"
    budget: Budget
    tokens: TokenPlan
    changed: dict[str, Any]
    own: Own
    """What the package does not have of it, for the record."""
    given: Given
    """Files that the user gave by path, for the record."""

    @property
    def protocol(self) -> Protocol:
        return self.tokens.protocol

    @property
    def shared(self) -> Shared:
        return self.tokens.shared

    @property
    def backbone(self) -> Backbone:
        return self.tokens.backbone

    @property
    def data(self) -> DatasetSpec:
        """The dataset, or the part of it that was asked for."""
        return self.tokens.data


class Lookups:
    """What questions are made of, each looked up once: a sweep asks thousands of them.

    Without `fetching`, all that a question needs must be here.
    """

    def __init__(self, fetching: "Fetching | None" = None) -> None:
        self.fetching = fetching
        self.protocol = cache(load_protocol)
        self.method = cache(find_method)
        self.params = cache(load_params)
        self.backbone = cache(load_backbone)
        self._weights: dict[tuple[str, Path | None], tuple[Path, str]] = {}
        self._images: dict[tuple[str, Path | None, int | None], tuple[DataIdentity, Dataset | None]] = {}

    def weights(self, name: str, given: Path | None) -> tuple[Path, str]:
        """The file of a backbone's weights, and the digest that stands for them."""
        if (name, given) not in self._weights:
            self._weights[name, given] = self.find_weights(self.backbone(name), given)
        return self._weights[name, given]

    def images(self, protocol: str, data_dir: Path | None, images: int | None) -> tuple[DataIdentity, Dataset | None]:
        """Which images a protocol has here, and the images if they are here yet."""
        key = (protocol, data_dir, images)
        if key not in self._images:
            self._images[key] = self.find_images(self.protocol(protocol, data_dir).data_with(images), data_dir)
        return self._images[key]

    def find_weights(self, spec: Backbone, given: Path | None) -> tuple[Path, str]:
        path = weights_at_hand(spec, given, self.fetching)
        return path, weights_identity(spec, path, given=given is not None)

    def find_images(self, spec: DatasetSpec, data_dir: Path | None) -> tuple[DataIdentity, Dataset | None]:
        found = data_at_hand(spec, data_dir, self.fetching)
        return DataIdentity(digest=found.digest, **found.counts), found


def ask(
    method: str = "fea",
    protocol: str = "digits-t2",
    seed: int = 0,
    *,
    backbone: str | None = None,
    weights: Path | None = None,
    budget: str = "paper",
    views: int | str | None = None,
    params: str | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
    data_dir: Path | None = None,
    lookups: Lookups | None = None,
) -> Request:
    """Resolve names, files and overrides into one question."""
    lookups = lookups or Lookups()
    if not 0 <= seed < 2**32:
        raise UsageError(f"--seed: {seed}: must be a whole number from 0 to {2**32 - 1}")
    chosen = lookups.protocol(protocol, data_dir)
    if budget not in chosen.budgets:
        raise UsageError(f"unknown budget '{budget}' of {chosen.name}{suggest(budget, chosen.budgets)}")
    loaded = lookups.method(method)
    named = lookups.params(params, loaded.name) if params is not None else ParamSet(method=loaded.name)
    typed = by_part(settings)

    spec = lookups.backbone(chosen.backbone if backbone is None else backbone)
    reference = {
        "params": chosen.params_of(loaded.name, spec.name),
        "budget": chosen.budgets[budget].model_dump(),
        "shared": chosen.shared.model_dump(),
    }
    plain_params = loaded.cls.Params.defaults()

    def settled(part: str, kind: type[Model], where: str) -> Model:
        """A part from protocol, parameter set and `--set`; each is checked by itself, so that the right is named."""
        validated(kind, reference[part], f"{chosen.name}: {loaded.name}" if part == "params" else part)
        named_part = reference[part] | getattr(named, part)
        validated(kind, named_part, f"{params}: {part}")
        return validated(kind, named_part | typed[part], where)

    own_params = settled("params", loaded.cls.Params, loaded.name)
    budget_model = settled("budget", Budget, "budget")
    shared_model = settled("shared", Shared, "shared")
    tokens = token_plan(chosen, shared_model, lookups, protocol, backbone, weights, views, data_dir)
    identity, _ = lookups.images(protocol, data_dir, shared_model.images)
    question = Question(
        method=loaded.name,
        method_version=loaded.cls.version,
        method_source=loaded.source,
        params=own_params.model_dump(mode="json"),
        protocol=chosen.identity,
        backbone={
            "name": spec.name,
            "weights": tokens.weights_digest,
            "projector": list(spec.projector),
            "network": spec.network,
        },
        budget=budget_model.model_dump(mode="json"),
        shared=shared_model.model_dump(mode="json"),
        views=tokens.views,
        seed=seed,
        data=identity,
    )
    own = Own(
        protocol=None if chosen.name in protocol_names() else chosen.without_places(),
        defaults=None if loaded.source is None else plain_params,
    )
    given = Given(
        method=None if loaded.typed is None else portable(loaded.typed),
        protocol=portable(protocol) if own.protocol is not None else None,
        backbone=portable(backbone) if backbone is not None and spec.name not in load_backbones() else None,
        weights=None if weights is None else portable(weights),
        data_dir=portable(folder) if (folder := folder_given(tokens.data, data_dir)) is not None else None,
    )
    changes = difference(question.document(), chosen, plain_params)
    return Request(question, loaded, own_params, budget_model, tokens, changes.changed, own, given)


def ask_tokens(
    protocol: str,
    *,
    backbone: str | None = None,
    weights: Path | None = None,
    views: int | str | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
    data_dir: Path | None = None,
    lookups: Lookups | None = None,
) -> TokenPlan:
    """The tokens that runs on a protocol need, whatever their method, budget and seed."""
    lookups = lookups or Lookups()
    chosen, changed = lookups.protocol(protocol, data_dir), by_part(settings)
    odd = [*changed["params"], *(f"budget.{key}" for key in changed["budget"])]
    if odd:
        raise UsageError(f"--set {odd[0]}: tokens depend on shared.* only")
    shared = validated(Shared, chosen.shared.model_dump() | changed["shared"], "shared")
    return token_plan(chosen, shared, lookups, protocol, backbone, weights, views, data_dir)


def token_plan(
    chosen: Protocol,
    shared: Shared,
    lookups: Lookups,
    protocol: str,
    backbone: str | None,
    weights: Path | None,
    views: int | str | None,
    data_dir: Path | None,
) -> TokenPlan:
    """Images, weights and views of a protocol, with what was typed in place of its own."""
    name = chosen.backbone if backbone is None else backbone
    spec, wanted_views = lookups.backbone(name), parse_views(views) if views is not None else chosen.views
    data = chosen.data_with(shared.images)
    refuse_more(data)
    if data_dir is not None and data.layout == "embedded":
        raise UsageError(f"--data-dir: {chosen.name} does not use it, its images come with the package")
    if len(spec.mean) != data.channels:
        raise UsageError(
            f"backbone '{spec.name}' takes pictures of {len(spec.mean)} channels, {data.name} has {data.channels}"
        )
    path, digest = lookups.weights(name, weights)
    _, dataset = lookups.images(protocol, data_dir, shared.images)
    return TokenPlan(chosen, shared, spec, path, digest, wanted_views, dataset)


def refuse_more(wanted: DatasetSpec) -> None:
    """A part of a dataset has fewer images than all of it: else one question could be asked in two ways."""
    if wanted.first is None:
        return
    whole, span = wanted.whole, wanted.whole.span("train")
    if whole.layout == "embedded":
        raise UsageError(f"shared.images: {whole.title} is small enough, all its images are taken")
    if span is not None and wanted.first >= span[1]:
        raise UsageError(
            f"shared.images: {wanted.first}: {whole.title} has {span[1]} training images per class: ask for fewer, or "
            "leave it out"
        )


def portable(path: Path | str) -> str:
    """A path as it was typed, the user's home aside: records name nobody."""
    text, home = str(path), str(Path.home())
    return f"~{text.removeprefix(home)}" if text.startswith(f"{home}/") else text


def folder_given(spec: DatasetSpec, data_dir: Path | None) -> Path | None:
    """The folder of the data that a command must name: the option, or what `$CNCD_DATA` says."""
    if data_dir is not None or spec.layout in ("embedded", "own"):
        return data_dir
    return Path(os.environ["CNCD_DATA"]) if os.environ.get("CNCD_DATA") else None


def weights_at_hand(spec: Backbone, given: Path | None, fetching: "Fetching | None") -> Path:
    """The weight file, fetched if it may be."""
    from benchmark.data.fetch import is_sound  # noqa: PLC0415 - slow to import

    try:
        path = weight_file(spec, given)
    except MissingError:
        if fetching is None or spec.download is None:
            raise
        return fetching.weights(spec)
    if given is None and spec.download is not None and not is_sound(path, spec.sha256):
        if fetching is None:
            raise DataError(f"{path} is damaged: `bench fetch {spec.name}` gets it again")
        return fetching.weights(spec)
    return path


def data_at_hand(spec: DatasetSpec, given: Path | None, fetching: "Fetching | None") -> Dataset:
    """The dataset, fetched if it may be. A folder that was given and does not exist is taken for a mistake."""
    try:
        return open_dataset(spec, given)
    except MissingError:
        if fetching is None or spec.archive is None or (given is not None and not given.is_dir()):
            raise
    fetching.dataset(spec, dataset_folder(spec, given))
    return open_dataset(spec, given)


def weights_identity(spec: Backbone, path: Path, *, given: bool) -> str:
    """The digest that stands for the weights in the question.

    The package's own weights go by their file. Others go by their tensors: the same weights come in files that differ.
    Registered weights go by the digest that is registered, whichever of the two it is.
    """
    if spec.weights is not None and not given:
        digest = file_digest(path)
        if digest != spec.sha256:
            raise DataError(f"{path} is damaged: its sha256 is {digest[:12]}…, not the registered one; reinstall")
        return digest
    if spec.sha256 is not None and spec.identity is not None and file_digest(path) == spec.sha256:
        return spec.identity
    return tensors_of(path)


def tensors_of(path: Path) -> str:
    from benchmark.tokens.weights import needed, read_weights, tensor_digest  # noqa: PLC0415 - imports torch

    return tensor_digest(needed(read_weights(path)))


def find_method(name: str) -> methods.Loaded:
    """A method of the suite, or the user's own class as `path/to/mine.py:Mine`."""
    known = methods.entries()
    if name in known:
        return methods.load(name)
    path, _, cls = name.rpartition(":")
    if not path.endswith(".py"):
        raise UsageError(f"unknown method '{name}'{suggest(name, known)} (your own: --method path/to/mine.py:Mine)")
    if not Path(path).is_file():
        raise UsageError(f"--method: there is no file {path}")
    if Path(path).stem.lower() in known:
        raise UsageError(f"--method: {path}: the suite has a method of that name, rename the file")
    if not re.fullmatch(NAME, Path(path).stem.lower()):
        raise UsageError(f"--method: {path}: name the file with letters, digits, '.', '_' and '-' only")
    try:
        return methods.load_own(Path(path), cls)
    except NotAMethodError as error:
        raise UsageError(f"--method: {error}") from None
    except Exception as error:  # whatever the user's file raises while it is imported
        place = own_line(error, Path(path).resolve().parent) or path
        raise UsageError(f"--method: {place}: cannot be imported: {type(error).__name__}: {error}") from error
