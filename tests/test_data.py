"""Datasets: the same images are the same data, whatever files they came in; damaged or hostile files are refused."""

import hashlib
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from datasets import (
    CIFAR10,
    _own_cache,  # noqa: F401 - fixtures
)
from pictures import NAMES, TEST, TRAIN, pictures, tarred, write_folders, write_pickles, write_tiny
from PIL import Image

from benchmark.data import pixels
from benchmark.data.datasets import open_dataset
from benchmark.data.layouts import find_layout
from benchmark.data.pickled import Pickled, unpickle
from benchmark.data.pixels import open_pixels
from benchmark.errors import DataError
from benchmark.protocol.catalogue import load_datasets


def test_folders_of_any_format_and_archives_are_the_same_data(tmp_path):
    """Digest, order, labels and names, whether the files are PNG or WebP, renamed, pickled or still in the archive."""
    folder, spec = write_pickles(tmp_path / "pickles")
    archive = tarred(folder, tmp_path / "cifar-10-python.tar.gz")
    places = {
        "png": (CIFAR10, write_folders(tmp_path / "png")),
        "webp": (CIFAR10, write_folders(tmp_path / "webp", "webp", prefix="other")),
        "pickles": (spec, folder),
        "archive": (spec, archive),
        "folder of the archive": (spec, tmp_path),
    }
    opened = {
        name: open_pixels(spec, find_layout(spec, place), tmp_path / name) for name, (spec, place) in places.items()
    }
    reference = opened["png"]
    assert reference.names == NAMES
    assert {split: np.bincount(reference.labels[split]).tolist() for split in ("train", "test")} == {
        "train": [TRAIN] * 10,
        "test": [TEST] * 10,
    }
    for name, found in opened.items():
        assert found.digest == reference.digest, name
        assert found.names == NAMES
        for split in ("train", "test"):
            assert np.array_equal(found.images[split], reference.images[split])
            assert np.array_equal(found.labels[split], reference.labels[split])
            digests = [hashlib.sha256(image.tobytes()).digest() for image in found.images[split]]
            assert digests == sorted(digests)  # the order says nothing about labels
    for label in (0, 7):
        ours = {image.tobytes() for image in reference.images["train"][reference.labels["train"] == label]}
        assert ours == {picture.tobytes() for picture in pictures(label, "train")}


def test_digest_notices_a_pixel_and_a_label(tmp_path):
    root = write_folders(tmp_path / "cifar10")
    first = open_dataset(load_datasets()["cifar10"], root).digest
    image = root / "train" / "cat" / "0000.png"
    changed = np.asarray(Image.open(image)).copy()
    changed[0, 0, 0] ^= 1
    Image.fromarray(changed).save(image)
    second = open_dataset(load_datasets()["cifar10"], root).digest
    shutil.move(image, root / "train" / "dog" / "moved.png")
    third = open_dataset(load_datasets()["cifar10"], root).digest
    assert len({first, second, third}) == 3


def test_images_are_decoded_once_and_again_after_a_change(tmp_path, monkeypatch):
    root = write_folders(tmp_path / "cifar10")
    first = open_dataset(load_datasets()["cifar10"], root)
    with monkeypatch.context() as patch:
        patch.setattr(pixels, "decode_all", lambda *_: pytest.fail("decoded again"))
        again = open_dataset(load_datasets()["cifar10"], root)
    assert again.digest == first.digest
    assert isinstance(again.train.images, np.memmap)
    (root / "train" / "bird" / "0000.png").unlink()
    assert len(open_dataset(load_datasets()["cifar10"], root).train) == len(first.train) - 1


def test_a_damaged_store_is_made_anew(tmp_path, caplog):
    root = write_folders(tmp_path / "cifar10")
    first = open_dataset(load_datasets()["cifar10"], root)
    (store,) = (tmp_path / "cache" / "pixels").glob("cifar10-*")
    image, label = store / "train-images.npy", store / "test-labels.npy"
    contents = {path: path.read_bytes() for path in (image, label)}
    image.write_bytes(contents[image][: len(contents[image]) // 2])
    assert open_dataset(load_datasets()["cifar10"], root).digest == first.digest
    label.write_bytes(contents[label][:-8] + bytes(8))  # as long as before, with another label
    again = open_dataset(load_datasets()["cifar10"], root)
    assert (again.digest, again.test.labels.tolist()) == (first.digest, first.test.labels.tolist())
    assert {path: path.read_bytes() for path in (image, label)} == contents
    folders = sorted(path.name for path in store.parent.iterdir() if path.is_dir())
    assert folders == [store.name, f"{store.name}.damaged", f"{store.name}.damaged2"]
    assert caplog.text.count("is damaged: moved aside") == 2


def test_data_dir_is_the_folder_or_its_parent_or_comes_from_the_environment(tmp_path, monkeypatch):
    root = write_folders(tmp_path / "data" / "cifar10-small")
    digest = open_dataset(load_datasets()["cifar10"], root).digest
    assert open_dataset(load_datasets()["cifar10"], root.parent).digest == digest
    monkeypatch.setenv("CNCD_DATA", str(root.parent))
    assert open_dataset(load_datasets()["cifar10"]).digest == digest


def test_missing_data_says_how_to_get_it(tmp_path):
    for name in ("cifar10", "cifar100", "tiny-imagenet"):
        with pytest.raises(DataError, match=f"bench fetch {name}.*--data-dir"):
            open_dataset(load_datasets()[name], tmp_path)


def spoil_other_class(root: Path) -> None:
    shutil.rmtree(root / "test" / "cat")


def spoil_missing_class(root: Path) -> None:
    for split in ("train", "test"):
        shutil.rmtree(root / split / "cat")


def spoil_empty_class(root: Path) -> None:
    for image in (root / "train" / "cat").iterdir():
        image.unlink()


def spoil_size(root: Path) -> None:
    Image.fromarray(np.zeros((40, 32, 3), np.uint8)).save(root / "train" / "cat" / "0001.png")


def spoil_text(root: Path) -> None:
    (root / "train" / "cat" / "notes.txt").write_text("not an image")


def spoil_truncated(root: Path) -> None:
    image = root / "train" / "cat" / "0001.png"
    image.write_bytes(image.read_bytes()[:200])


def spoil_overlap(root: Path) -> None:
    shutil.copy(root / "train" / "cat" / "0001.png", root / "test" / "cat" / "same.png")


def spoil_nothing(root: Path) -> None:
    """The control: this one opens."""


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (spoil_other_class, "class 'cat' is in only one of train/ and test/"),
        (spoil_missing_class, "has 9 classes, CIFAR-10 has 10"),
        (spoil_empty_class, "class 'cat' has no train image"),
        (spoil_size, "is 32x40 pixels, the dataset's images are 32x32"),
        (spoil_text, "cannot be read as an image"),
        (spoil_truncated, "cannot be read as an image"),
        (spoil_overlap, "1 of 41 test images are training images too"),
        (spoil_nothing, None),
    ],
)
def test_broken_folders_are_told(tmp_path, spoil, said):
    root = write_folders(tmp_path / "cifar10")
    spoil(root)
    if said is None:
        assert len(open_dataset(load_datasets()["cifar10"], root).train) == 10 * TRAIN
        return
    with pytest.raises(DataError) as raised:
        open_dataset(load_datasets()["cifar10"], root)
    assert said in str(raised.value)
    assert not [path for path in (tmp_path / "cache").glob("pixels/*") if path.is_dir()]  # nothing half-made stays


def test_more_images_than_the_dataset_has_are_refused(tmp_path, monkeypatch):
    root = write_folders(tmp_path / "cifar10")
    smaller = CIFAR10.model_copy(update={"train": TRAIN - 1})
    with pytest.raises(DataError, match="has 8 train images, CIFAR-10 has 7"):
        open_pixels(smaller, find_layout(smaller, root), tmp_path / "cache")


def test_tiny_imagenet_in_its_official_layout(tmp_path):
    place = write_tiny(tmp_path)
    found = open_dataset(load_datasets()["tiny-imagenet"], tmp_path)
    assert found.classes == tuple(sorted(found.classes))
    assert len(found.classes) == 200
    assert found.counts == {"train": (2, 2), "test": (1, 1)}
    grey = found.train.images[found.train.labels == 7]
    assert (grey[..., 0] == grey[..., 1]).all()
    # val by val_annotations.txt: the picture of class 3 is the one drawn for it
    wnid = found.classes[3]
    line = next(r for r in (place / "val" / "val_annotations.txt").read_text().splitlines() if wnid in r)
    image = np.asarray(Image.open(place / "val" / "images" / line.split("\t")[0]).convert("RGB"))
    assert np.array_equal(found.test.images[found.test.labels == 3][0], image)
    # re-arranged into class folders, as many people have it
    for row in (place / "val" / "val_annotations.txt").read_text().splitlines():
        name, own = row.split("\t")[:2]
        (place / "val" / own).mkdir()
        (place / "val" / "images" / name).rename(place / "val" / own / name)
    (place / "val" / "images").rmdir()
    assert open_dataset(load_datasets()["tiny-imagenet"], place).digest == found.digest
    (place / "val" / "val_annotations.txt").unlink()
    assert open_dataset(load_datasets()["tiny-imagenet"], place).digest == found.digest


def test_an_annotation_that_names_no_class_is_told(tmp_path):
    place = write_tiny(tmp_path)
    notes = place / "val" / "val_annotations.txt"
    notes.write_text(notes.read_text() + "../../etc/passwd\tn10000000\t0\t0\t1\t1\n")
    with pytest.raises(DataError, match="line 201"):
        open_dataset(load_datasets()["tiny-imagenet"], place)


class Evil:
    """Leaves a mark if it is ever unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def test_an_evil_pickle_is_refused_before_it_acts(tmp_path):
    mark = tmp_path / "mark"
    raw = pickle.dumps({"data": Evil(mark)})
    with pytest.raises(DataError, match="not a plain pickle"):
        unpickle(raw, "data_batch_1")
    assert not mark.exists()
    pickle.loads(raw)
    assert mark.exists()  # so the pickle was evil


def test_a_changed_member_is_refused_before_it_is_unpickled(tmp_path, monkeypatch):
    folder, spec = write_pickles(tmp_path)
    mark = tmp_path / "mark"
    (folder / "data_batch_2").write_bytes(pickle.dumps({"data": Evil(mark)}))
    monkeypatch.setattr("benchmark.data.pickled.unpickle", lambda content, _: pickle.loads(content, encoding="latin1"))
    with pytest.raises(DataError, match=r"data_batch_2 of .* is damaged: its md5"):
        open_pixels(spec, Pickled(folder, spec), tmp_path / "cache")
    assert not mark.exists()


def test_a_truncated_or_incomplete_archive_is_told(tmp_path):
    folder, spec = write_pickles(tmp_path)
    archive = tarred(folder, tmp_path / "cifar-10-python.tar.gz")
    content = archive.read_bytes()
    archive.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="damaged or cut short"):
        open_pixels(spec, Pickled(archive, spec), tmp_path / "cache")
    (folder / "test_batch").unlink()
    tarred(folder, archive)
    with pytest.raises(DataError, match="lacks 'test_batch'"):
        open_pixels(spec, Pickled(archive, spec), tmp_path / "cache")
