"""Which layout a dataset has on this disk."""

from pathlib import Path

from benchmark.data.folders import class_folders, tiny_imagenet
from benchmark.data.layout import Layout
from benchmark.data.own_images import own_folders
from benchmark.data.pickled import Pickled
from benchmark.protocol.models import DatasetSpec


def find_layout(spec: DatasetSpec, root: Path) -> Layout | None:
    """The dataset in `root` itself or, under one of its usual names, below it; none if it is not there."""
    if spec.layout == "own":
        return own_folders(spec, root) if root.is_dir() else None
    for place in (root, *(root / name for name in spec.folders)):
        if spec.layout == "tiny":
            if (place / "train").is_dir() and (place / "val").is_dir():
                return tiny_imagenet(spec, place)
            continue
        assert spec.members is not None
        if all((place / name).is_file() for name in spec.members.digests):
            return Pickled(place, spec)
        if (place / "train").is_dir() and (place / "test").is_dir():
            return class_folders(spec, place)
    archive = root if root.is_file() else root / spec.archive.file if spec.archive else root
    return Pickled(archive, spec) if spec.layout == "cifar" and archive.is_file() else None
