"""Small datasets and a small backbone in the layouts of the real ones: drawn, not copied."""

import hashlib
import io
import pickle
import pickletools
import tarfile
from pathlib import Path

import numpy as np
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer

from benchmark.protocol.catalogue import load_datasets
from benchmark.protocol.models import DatasetSpec, Members

TRAIN, TEST = 8, 4
"""Images of every class."""
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 2}


def picture_of(side: int, label: int, number: int) -> np.ndarray:
    """A picture of its class: stripes of a direction and colour that belong to the label, under noise."""
    random = np.random.default_rng([side, label, number])
    rows, columns = np.mgrid[:side, :side] / side
    wave = np.sin(2 * np.pi * ((1 + label % 5) * rows + (label // 5) * 3 * columns) + random.random())
    colour = np.random.default_rng([label]).random(3)
    picture = 110 + 60 * wave[..., None] * colour + random.normal(0, 15, (side, side, 3))
    return picture.clip(0, 255).astype(np.uint8)


def pictures(label: int, split: str, side: int = 32, train: int = TRAIN, test: int = TEST) -> list[np.ndarray]:
    first, count = (0, train) if split == "train" else (1000, test)
    return [picture_of(side, label, first + number) for number in range(count)]


def write_folders(root: Path, suffix: str = "png", prefix: str = "", train: int = TRAIN, test: int = TEST) -> Path:
    """CIFAR-10 as class folders."""
    for split in ("train", "test"):
        for label, name in enumerate(NAMES):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number, picture in enumerate(pictures(label, split, train=train, test=test)):
                options = {"lossless": True} if suffix == "webp" else {}
                Image.fromarray(picture).save(folder / f"{prefix}{number:04d}.{suffix}", **options)
    return root


def as_python2(raw: bytes) -> bytes:
    """A pickle as Python 2 wrote CIFAR's: byte strings are plain strings there."""
    codes, changed = {"BINBYTES": b"T", "SHORT_BINBYTES": b"U", "PROTO": b"\x80\x02"}, bytearray(raw)
    for opcode, _, position in pickletools.genops(raw):
        replacement = codes.get(opcode.name, b"")
        changed[position : position + len(replacement)] = replacement
    return bytes(changed)


def batch(split: str, classes: range) -> dict:
    """What CIFAR's pickles hold: rows of red, green, blue, and labels, in an order of their own."""
    rows = [(p.transpose(2, 0, 1).ravel(), label) for label in classes for p in pictures(label, split)]
    order = np.random.default_rng(5).permutation(len(rows))
    return {"data": np.stack([rows[k][0] for k in order]), "labels": [rows[k][1] for k in order]}


def write_pickles(root: Path) -> tuple[Path, DatasetSpec]:
    """CIFAR-10 as its official pickles, in two batches, and the specification with their digests."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    contents = {
        "data_batch_1": batch("train", range(5)),
        "data_batch_2": batch("train", range(5, 10)),
        "test_batch": batch("test", range(10)),
        "batches.meta": {"label_names": list(NAMES)},
    }
    digests = {}
    for name, content in contents.items():
        raw = as_python2(pickle.dumps(content, protocol=3))
        (folder / name).write_bytes(raw)
        digests[name] = hashlib.md5(raw).hexdigest()
    members = Members(
        folder=folder.name,
        label_key="labels",
        names_key="label_names",
        names={"batches.meta": digests["batches.meta"]},
        train={name: digests[name] for name in ("data_batch_1", "data_batch_2")},
        test={"test_batch": digests["test_batch"]},
    )
    return folder, load_datasets()["cifar10"].model_copy(update={"members": members})


def tarred(folder: Path, target: Path) -> Path:
    with tarfile.open(target, "w:gz") as archive:
        archive.add(folder, arcname=folder.name)
    return target


def tar_of(target: Path, entries: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    """An archive with exactly these entries, whatever they say."""
    with tarfile.open(target, "w:gz") as archive:
        for info, content in entries:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return target


def write_tiny(root: Path, classes: int = 200) -> Path:
    """Tiny-ImageNet in its official layout, every seventh picture grey."""
    place, lines = root / "tiny-imagenet-200", []
    wnids = [f"n{10_000_000 + 37 * k}" for k in range(classes)]
    (place / "val" / "images").mkdir(parents=True)
    for label, wnid in enumerate(wnids):
        folder = place / "train" / wnid / "images"
        folder.mkdir(parents=True)
        for number in range(2):
            picture = Image.fromarray(picture_of(64, label, number))
            picture = picture.convert("L") if label % 7 == 0 else picture
            picture.save(folder / f"{wnid}_{number}.JPEG")
        name = f"val_{(label * 7) % classes}.JPEG"
        Image.fromarray(picture_of(64, label, 99)).save(place / "val" / "images" / name)
        lines.append(f"{name}\t{wnid}\t0\t0\t62\t62")
    (place / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    (place / "wnids.txt").write_text("\n".join(reversed(wnids)) + "\n")
    return place


def small_transformer() -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(num_classes=0, **SIZES)


def write_backbone(root: Path) -> tuple[Path, Path]:
    """A backbone of the user's own: its description and its weights."""
    weights = root / "small.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in small_transformer().state_dict().items()}, weights)
    fields = {
        "architecture": "vit",
        "vit": SIZES,
        "weights": None,
        "sha256": None,
        "image_size": 32,
        "mean": [0.5, 0.5, 0.5],
        "std": [0.25, 0.25, 0.25],
        "projector": [16, 16, 8],
        "trained_on": "nothing",
        "saw_novel_classes": False,
    }
    description = root / "small.yaml"
    description.write_text(yaml.safe_dump(fields))
    return description, weights
