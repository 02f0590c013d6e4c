"""Datasets and backbones by name: what protocols/datasets.yaml and backbones.yaml say."""

from functools import cache
from importlib.resources import files
from pathlib import Path

from benchmark.errors import DataError, MissingError, UsageError
from benchmark.files import cache_folder
from benchmark.protocol.models import Archive, Backbone, DatasetSpec
from benchmark.protocol.reading import read_yaml, suggest, validated


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
