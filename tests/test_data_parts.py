"""Parts of a dataset: reduced ones, the judge, the first images of every class."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from datasets import (
    CIFAR10,
    _own_cache,  # noqa: F401 - fixtures
)
from pictures import NAMES, TEST, TRAIN, pictures, write_backbone, write_folders

from benchmark.data.datasets import open_dataset
from benchmark.engine.request import ask
from benchmark.errors import DataError, UsageError
from benchmark.protocol.catalogue import load_datasets
from benchmark.protocol.models import DatasetSpec


def test_fewer_images_make_a_reduced_group_and_other_data_another_run(tmp_path, monkeypatch):
    description, weights = write_backbone(tmp_path)
    root = write_folders(tmp_path / "cifar10")
    options = {"protocol": "cifar10-t2", "backbone": str(description), "weights": weights, "views": 2}
    reduced = ask("fea", data_dir=root, **options)
    assert reduced.changed["reduced"] == "8+4 images per class"
    (root / "train" / "cat" / "0000.png").unlink()
    other = ask("fea", data_dir=root, **options)
    assert other.changed["reduced"] == "7-8+4 images per class"
    assert other.question.key != reduced.question.key
    whole = {"cifar10": CIFAR10.model_copy(update={"train": TRAIN, "test": TEST})}
    known = load_datasets() | whole
    monkeypatch.setattr("benchmark.protocol.protocols.load_datasets", lambda: known)
    complete = ask("fea", data_dir=write_folders(tmp_path / "whole" / "cifar10"), **options)
    assert "reduced" not in complete.changed
    assert complete.question.key == reduced.question.key  # the same images from another place


def judge_of(classes: int, train: int) -> DatasetSpec:
    """A hold-out of the small CIFAR-10 of these tests, as cifar100-holdout is one of CIFAR-100."""
    changes = {"name": "held", "held_out_of": "cifar10", "classes": classes, "train": train, "test": TRAIN - train}
    return CIFAR10.model_copy(update=changes | {"pixels": None})


def test_a_hold_out_has_training_images_of_the_first_classes_only(tmp_path):
    root = write_folders(tmp_path / "cifar10")
    held, whole = open_dataset(judge_of(4, TRAIN - 1), root), open_dataset(CIFAR10, root)
    assert held.classes == whole.classes[:4]
    assert np.bincount(held.train.labels).tolist() == [TRAIN - 1] * 4
    assert np.bincount(held.test.labels).tolist() == [1] * 4
    for label in range(4):
        found = [image.tobytes() for split in (held.train, held.test) for image in split.images[split.labels == label]]
        assert sorted(found) == sorted(picture.tobytes() for picture in pictures(label, "train"))
    assert held.in_both == 0
    for split in (held.train, held.test):  # the order says nothing about labels here either
        digests = [hashlib.sha256(image.tobytes()).digest() for image in split.images]
        assert digests == sorted(digests)


def test_a_hold_out_without_images_to_hold_out_is_refused(tmp_path):
    root = write_folders(tmp_path / "cifar10")
    next((root / "train" / NAMES[2]).iterdir()).unlink()
    with pytest.raises(DataError, match=f"class '{NAMES[2]}' of cifar10 has {TRAIN - 1} training images here"):
        open_dataset(judge_of(4, TRAIN - 1), root)


def test_the_registered_hold_out_lies_where_cifar100_lies():
    held, whole = load_datasets()["cifar100-holdout"], load_datasets()["cifar100"]
    assert (held.folders, held.archive, held.members) == (whole.folders, whole.archive, whole.members)
    assert (held.classes, held.train, held.test) == (50, 400, 100)
    assert held.pixels not in (None, whole.pixels)


def first_digests(label: int, count: int) -> list[str]:
    return sorted(hashlib.sha256(picture.tobytes()).hexdigest() for picture in pictures(label, "train"))[:count]


def test_the_first_images_of_every_class_by_digest_whatever_they_were_read_from(tmp_path):
    """`shared.images`: the same part of the same images, from folders in any order, with all test images."""
    root = write_folders(tmp_path / "cifar10")
    part, whole = open_dataset(CIFAR10.reduced(3), root), open_dataset(CIFAR10, root)
    for label in range(10):
        mine = part.train.images[part.train.labels == label]
        assert [hashlib.sha256(image.tobytes()).hexdigest() for image in mine] == first_digests(label, 3)
    assert np.array_equal(part.test.images, whole.test.images)
    assert part.digest != whole.digest
    assert open_dataset(CIFAR10.reduced(TRAIN), root).digest == whole.digest


def asked(folder: Path, root: Path, **settings):
    """A question about the small CIFAR-10 of these tests, with a backbone of their own."""
    description, weights = write_backbone(folder)
    backbone = {"backbone": str(description), "weights": weights, "views": 2}
    return ask("kmeans", "cifar10-t2", data_dir=root, settings=settings, **backbone)


def test_a_part_of_the_images_is_another_question_that_anybody_can_ask_again(tmp_path, monkeypatch):
    root = write_folders(tmp_path / "cifar10")
    complete = CIFAR10.model_copy(update={"train": TRAIN, "test": TEST})
    digest = open_dataset(complete.reduced(3), root).digest
    known = load_datasets() | {"cifar10": complete.model_copy(update={"subsets": {3: digest}})}
    monkeypatch.setattr("benchmark.protocol.protocols.load_datasets", lambda: known)
    whole, part = asked(tmp_path, root), asked(tmp_path, root, **{"shared.images": 3})
    assert part.question.key != whole.question.key
    assert "images" not in whole.question.shared  # questions from before keep their key
    assert part.question.data.digest == digest
    assert (part.question.data.train, part.question.data.test) == ((3, 3), (TEST, TEST))
    assert part.changed.keys() - whole.changed.keys() == {"shared.images"}
    assert not {"reduced", "data"} & part.changed.keys()


@pytest.mark.parametrize("images", [TRAIN + 1, TRAIN, 0, True, "many"])
def test_a_part_that_cannot_be_taken_is_refused(tmp_path, monkeypatch, images):
    root = write_folders(tmp_path / "cifar10")
    known = load_datasets() | {"cifar10": CIFAR10.model_copy(update={"train": TRAIN, "test": TEST})}
    monkeypatch.setattr("benchmark.protocol.protocols.load_datasets", lambda: known)
    with pytest.raises(UsageError, match=r"images"):
        asked(tmp_path, root, **{"shared.images": images})
    with pytest.raises(UsageError, match="is small enough"):
        ask("kmeans", "digits-t2", settings={"shared.images": 3})


def test_a_class_with_too_few_images_here_is_named(tmp_path):
    root = write_folders(tmp_path / "cifar10")
    next((root / "train" / NAMES[2]).iterdir()).unlink()
    with pytest.raises(DataError, match=f"class '{NAMES[2]}' of cifar10 has {TRAIN - 1} training images here"):
        open_dataset(CIFAR10.reduced(TRAIN), root)
