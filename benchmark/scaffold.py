"""`bench new`: files to begin with, filled in with all that can be found out, and commented."""

import os
import re
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import yaml

import methods
from benchmark.data.layout import FORMATS
from benchmark.data.own_images import image_files
from benchmark.errors import DataError, UsageError
from benchmark.protocol.catalogue import load_backbone, load_backbones, load_datasets
from benchmark.protocol.models import NAME, Backbone
from benchmark.protocol.protocols import class_names, has_splits, load_protocol, protocol_names
from benchmark.protocol.reading import suggest

FEW_CLASSES = 20
"""Up to so many, values that depend on the number of classes are those of CIFAR-10, else those of CIFAR-100."""
TEST_SHARE = 0.2
FEW_IMAGES = 1000
FEW_RATES = "those of digits-t2: the paper's learning rates spoil features where sessions have few images"
PAPER_RATES = "the paper's; choose other learning rates on labelled classes only, never by test figures"
BACKBONE = "vit-s14-dinov2-112"


def template(name: str) -> str:
    return (files("benchmark") / "templates" / name).read_text(encoding="utf-8")


def write_new(path: Path, text: str) -> Path:
    """A new file; one that is there is never touched."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} is already there: give another name with --out, or remove it") from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    return path


def slug(text: str) -> str:
    """A name of lower-case letters, digits and dashes."""
    found = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60]
    if not found:
        raise UsageError(f"'{text}' makes no name: give one of letters and digits with --out")
    return found


def yaml_path(out: Path | None, name: str, taken: list[str]) -> Path:
    """Where a YAML file goes: its stem is the name of what it describes."""
    path = out or Path(f"{slug(name)}.yaml")
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"--out: {path}: must end in .yaml")
    if not re.fullmatch(NAME, path.stem):
        raise UsageError(f"--out: {path}: name the file with small letters, digits, '.', '_' and '-' only")
    if path.stem in taken:
        raise UsageError(f"the suite has a '{path.stem}' already: give another name with --out NAME.yaml")
    return path


def session_sizes(text: str) -> list[int]:
    """`6+2+2` as numbers."""
    if not re.fullmatch(r"\d{1,4}(\+\d{1,4})+", text):
        raise UsageError(f"--sessions: '{text}': write the number of classes of every session, such as 6+2+2")
    return [int(part) for part in text.split("+")]


def new_protocol(data: Path, sessions: str, backbone: str, out: Path | None) -> tuple[Path, str]:
    """A protocol for a folder of images; where it is, and what was found in the folder."""
    if not data.is_dir():
        raise DataError(f"there is no folder {data}: --data is the folder that holds train/ and test/, or the classes")
    if backbone not in load_backbones():
        own = "(a file of your own is given with --backbone when you run)"
        raise UsageError(f"unknown backbone '{backbone}'{suggest(backbone, load_backbones())} {own}")
    path = yaml_path(out, data.resolve().name, [*protocol_names(), *load_datasets()])
    apart = has_splits(data)
    if (data / "train").is_dir() and (data / "val").is_dir() and not apart:
        raise DataError(f"{data} has train/ and val/, but no test/: rename one, or link test to val")
    classes, sizes = class_names(data), session_sizes(sessions)
    if sum(sizes) > len(classes):
        raise UsageError(f"--sessions: {sum(sizes)} classes asked for, {data} has {len(classes)}")
    like = load_protocol("cifar10-t2" if len(classes) <= FEW_CLASSES else "cifar100-t5")
    counts = files_per_class(data, classes, apart=apart)
    few = min(counts[0]) * min(sizes[1:]) < FEW_IMAGES  # in the smallest session
    budgets = load_protocol("digits-t2" if few else like.name).budgets
    held_out = f"  test_share: {TEST_SHARE} # of every class, held out for testing; split_seed: 1 takes others\n"
    text = Template(template("protocol.yaml")).substitute(
        file=path,
        name=quoted(path.stem),
        title=quoted(f"images in {data.resolve().name}"),
        folder=quoted(os.path.relpath(data, path.parent)),
        split="" if apart else held_out,
        sessions=", ".join(map(str, sizes)),
        backbone=quoted(backbone),
        like=like.data.title,
        rates=FEW_RATES if few else PAPER_RATES,
        budgets="\n".join(
            f"  {name}: {in_braces(each.model_dump(exclude_none=True))}" for name, each in budgets.items()
        ),
        params="\n".join(f"  {method}: {in_braces(values)}" for method, values in like.params.items()),
    )
    write_new(path, text)
    try:
        load_protocol(str(path))  # what we write must be read
    except UsageError:
        path.unlink()
        raise
    return path, found_in(data, classes, counts)


def quoted(text: str) -> str:
    """As YAML takes it for text, whatever letters it has: `yes` and `2024` are none without quotes."""
    plain = re.fullmatch(r"[A-Za-z.][\w ./-]*", text) and yaml.safe_load(text) == text
    return text if plain else "'" + text.replace("'", "''") + "'"


def in_braces(values: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in values.items()) + "}"


def files_per_class(data: Path, classes: list[str], *, apart: bool) -> list[list[int]]:
    """Of every class, in the folder, or in train and in test."""
    folders = [data / "train", data / "test"] if apart else [data]
    for folder in folders:
        absent = [name for name in classes if not (folder / name).is_dir()]
        if absent:
            raise DataError(f"{folder} has no folder '{absent[0]}', which train/ has")
    counts = [[len(image_files(folder / name)) for name in classes] for folder in folders]
    for folder, own in zip(folders, counts, strict=True):
        if 0 in own:
            raise DataError(f"there are no images in {folder / classes[own.index(0)]}")
    return counts


def found_in(data: Path, classes: list[str], counts: list[list[int]]) -> str:
    texts = [f"{min(own)}" if min(own) == max(own) else f"{min(own)} to {max(own)}" for own in counts]
    per_class = " and ".join(f"{text}{where}" for text, where in zip(texts, (" in train", " in test"), strict=False))
    per_class = per_class if len(counts) == 2 else texts[0]
    return f"{data}: {len(classes)} classes, {per_class} files per class (read are {', '.join(FORMATS)})"


def new_backbone(name: str, weights: Path | None, size: int | None, out: Path | None) -> Path:
    """A description of a vision transformer of timm, with all that timm knows of it."""
    import timm  # noqa: PLC0415 - imports torch

    from benchmark.tokens.backbone import build_vit  # noqa: PLC0415
    from benchmark.tokens.weights import fitted, needed, read_weights, tensor_digest  # noqa: PLC0415

    known = timm.list_models("vit*")
    if not timm.is_model(name.partition(".")[0]):
        raise UsageError(f"--timm: timm has no architecture '{name}'{suggest(name, known)[:300]}")
    try:
        config = timm.get_pretrained_cfg(name)
    except RuntimeError:  # a tag that it does not have
        config = None
    if config is None:
        raise UsageError(f"--timm: timm has no weights '{name}': leave what follows the dot out, or correct it")
    path = yaml_path(out, name, [*load_backbones()])
    native = int(config.input_size[-1])
    about = {"architecture": name, "image_size": size or native, "mean": config.mean, "std": config.std}
    spec = Backbone(name=path.stem, **about, projector=(1,), trained_on="unknown")
    vit = build_vit(spec)
    digest = ""
    if weights is not None:
        if not weights.is_file():
            raise DataError(f"no weight file at {weights}")
        state = read_weights(weights)
        fitted(state, vit, spec, weights)
        digest = f"tensors: {tensor_digest(needed(state))} # of the weights in {weights.name}\n"
    hidden = 2048 if vit.embed_dim >= 768 else 512 if vit.embed_dim >= 384 else 256
    text = Template(template("backbone.yaml")).substitute(
        file=path,
        option="--weights FILE" if weights is None else f"--weights {weights}",
        architecture=name,
        digest=digest,
        size=spec.image_size,
        note="" if spec.image_size == native else f"; it was trained at {native}",
        mean=[*config.mean],
        std=[*config.std],
        projector=[hidden, hidden, 64 if hidden == 256 else 256],
        trained_on=quoted(f"timm does not say, see {config.origin_url or config.hf_hub_id or 'its paper'}"),
        download=pinned_later(slug(name), config.hf_hub_id, sum(p.numel() for p in vit.parameters())),
    )
    write_new(path, text)
    load_backbone(str(path))  # what we write must be read
    return path


def pinned_later(name: str, hub: str | None, parameters: int) -> str:
    """How to have the weights fetched: timm knows the repository, but no revision."""
    lines = (
        "To have its weights fetched, give a revision of the hub (the 40 digits of a commit) and uncomment:",
        "download:",
        f"  file: {name}.safetensors",
        f"  megabytes: {4 * parameters // 1_000_000}",
        f"  urls: [hub:{hub}@REVISION/model.safetensors]",
    )
    return "".join(f"# {line}\n" for line in lines) if hub else ""


def new_method(name: str, out: Path | None) -> tuple[Path, str]:
    """A method to begin with, which runs as it is; its file and its class."""
    stem = slug(name).replace("-", "_")
    cls = "".join(part.capitalize() for part in stem.split("_"))
    path = out or Path(f"{stem}.py")
    if path.suffix != ".py":
        raise UsageError(f"--out: {path}: must end in .py")
    if path.stem.lower() in methods.entries():
        raise UsageError(f"the suite has a method '{path.stem.lower()}', take another name")
    if not cls.isidentifier():
        raise UsageError(f"'{name}' makes no name of a class: begin it with a letter")
    return write_new(path, re.sub(r"\bMine\b", cls, template("method.py"))), cls
