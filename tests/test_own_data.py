"""Images of the user's own: found, split, resized, run and reported."""

import json
import os
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml
from pictures import write_backbone
from PIL import Image

from benchmark.data.datasets import open_dataset
from benchmark.data.own_images import held_out
from benchmark.engine.request import ask
from benchmark.errors import BenchError
from benchmark.protocol.protocols import load_protocol
from benchmark.records.reading import read_record
from benchmark.scaffold import new_protocol

SHORT = ("--budget", "quick", "--views", "2", "--threads", "1")


def picture_of(label: int, number: int, height: int = 40, width: int = 56) -> Image.Image:
    random = np.random.default_rng([label, number])
    rows, columns = np.mgrid[:height, :width] / 40
    wave = np.sin(2 * np.pi * ((1 + label % 4) * rows + (label // 4) * 2 * columns) + random.random())
    colour = np.random.default_rng([label]).random(3)
    return Image.fromarray(
        (110 + 60 * wave[..., None] * colour + random.normal(0, 10, (height, width, 3))).clip(0, 255).astype(np.uint8)
    )


def write_pictures(root: Path, classes: int = 12, train: int = 20, test: int = 8) -> Path:
    """PNG files of 40 x 56 pixels."""
    for label in range(classes):
        for split, first, count in (("train", 0, train), ("test", 1000, test)):
            folder = root / split / f"kind {label:02d}"
            folder.mkdir(parents=True)
            for number in range(count):
                picture_of(label, first + number).save(folder / f"{number}.png")
    return root


def protocol_of(path: Path, folder: str, sessions: str = "[4, 2]", **dataset: object) -> Path:
    lines = [f"{key}: {json.dumps(value)}" for key, value in dataset.items()]
    text = f"""
name: {path.stem}
title: some
dataset: {{folder: {folder}, {", ".join(lines)}}}
sessions: {sessions}
backbone: vit-s14-dinov2-112
augmentation: simgcd
budgets:
  paper: {{base_epochs: 1, novel_epochs: 2, batch: 16, base_lr: 0.01, lr: 0.01}}
  quick: {{base_epochs: 1, novel_epochs: 1, batch: 16, base_lr: 0.01, lr: 0.01}}
"""
    path.write_text(text)
    return path


def opened(path: Path):
    return open_dataset(load_protocol(str(path)).data)


def test_a_folder_becomes_a_dataset(tmp_path, monkeypatch):
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    write_pictures(tmp_path / "a" / "pictures", classes=6, train=5, test=2)
    found = opened(protocol_of(tmp_path / "a" / "mine.yaml", "pictures"))
    assert found.train.images.shape == (30, 40, 56, 3)  # as they are: the view preset resizes
    assert found.counts == {"train": (5, 5), "test": (2, 2)}
    assert found.classes == tuple(f"kind {label:02d}" for label in range(6))
    order = [2, 0, 1, 5, 4, 3]
    listed = opened(protocol_of(tmp_path / "a" / "b.yaml", "pictures", classes=[f"kind {k:02d}" for k in order]))
    assert listed.classes[0] == "kind 02"
    assert listed.digest != found.digest
    some = opened(
        protocol_of(tmp_path / "a" / "c.yaml", "pictures", "[2, 1]", classes=["kind 03", "kind 01", "kind 00"])
    )
    assert len(some.train) == 15


def test_images_of_several_sizes_and_formats_become_squares(tmp_path, monkeypatch):
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    root = write_pictures(tmp_path / "pictures", classes=3, train=2, test=1)
    folder = root / "train" / "kind 00"
    picture_of(0, 5, 90, 30).convert("L").save(folder / "grey.webp")
    upright = Image.Exif()
    upright[0x0112] = 6  # the camera was held on its side
    picture_of(0, 6, 20, 60).save(folder / "turned.jpg", exif=upright)
    found = opened(protocol_of(tmp_path / "mine.yaml", "pictures", "[2, 1]", side=48))
    assert found.train.images.shape[1:] == (48, 48, 3)
    assert found.counts["train"] == (2, 4)


def test_transparency_is_white_and_sixteen_bits_become_eight(tmp_path, monkeypatch):
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    root = write_pictures(tmp_path / "pictures", classes=3, train=2, test=1)
    for label, image in enumerate(
        (
            Image.new("RGBA", (56, 40), (10, 20, 30, 0)),
            Image.fromarray(np.full((40, 56), 200 * 257, np.uint16)),
            Image.new("LA", (56, 40), (10, 0)),
        )
    ):
        image.save(root / "train" / f"kind {label:02d}" / "odd.png")
    (root / "train" / "kind 00" / "notes.txt").write_text("not an image, and no harm")
    images = opened(protocol_of(tmp_path / "mine.yaml", "pictures", "[2, 1]")).train.images
    plain = sorted(int(image[0, 0, 0]) for image in images if len({*image.reshape(-1).tolist()}) == 1)
    assert plain == [200, 255, 255]
    Image.fromarray(np.zeros((40, 56), np.float32)).save(root / "train" / "kind 01" / "float.tiff")
    with pytest.raises(BenchError, match=r"float\.tiff cannot be read as an image .it has 32 bits a pixel"):
        opened(tmp_path / "mine.yaml")


def test_files_that_change_places_are_noticed(tmp_path, monkeypatch):
    """Two images of equal size and time are swapped: their labels are others, and so are the data."""
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    root = write_pictures(tmp_path / "pictures", classes=3, train=2, test=1)
    one, two = root / "train" / "kind 00" / "0.png", root / "train" / "kind 01" / "0.png"
    for path, value in ((one, 10), (two, 20)):
        Image.new("RGB", (56, 40), (value,) * 3).save(path, compress_level=0)
        os.utime(path, (1, 1))
    assert one.stat().st_size == two.stat().st_size
    path = protocol_of(tmp_path / "mine.yaml", "pictures", "[2, 1]")
    before = opened(path).digest
    for source, target in ((one, root / "x"), (two, one), (root / "x", two)):
        source.rename(target)
    assert opened(path).digest != before


def test_one_folder_may_have_a_class_called_train(tmp_path):
    for name in ("boat", "train", "bus"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        picture_of(0, 0).save(tmp_path / "pictures" / name / "0.png")
    path = protocol_of(tmp_path / "mine.yaml", "pictures", "[2, 1]", test_share=0.5)
    assert load_protocol(str(path)).dataset.classes == ("boat", "bus", "train")


def test_a_share_is_held_out_by_pixels(tmp_path, monkeypatch):
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    for name in ("one", "two"):
        for label in range(3):
            folder = tmp_path / name / str(label)
            folder.mkdir(parents=True)
            for number in range(10):
                file = f"{number}.png" if name == "one" else f"x{9 - number}.png"
                picture_of(label, number).save(folder / file)
    one = opened(protocol_of(tmp_path / "a.yaml", "one", "[2, 1]", test_share=0.3))
    two = opened(protocol_of(tmp_path / "b.yaml", "two", "[2, 1]", test_share=0.3))
    other = opened(protocol_of(tmp_path / "c.yaml", "one", "[2, 1]", test_share=0.3, split_seed=1))
    assert one.counts == {"train": (7, 7), "test": (3, 3)}
    assert one.digest == two.digest != other.digest  # names of files say nothing, the seed does


def test_equal_images_stay_in_one_split():
    same, other = np.zeros((4, 4, 3), np.uint8), np.ones((4, 4, 3), np.uint8)
    splits = held_out([same, same, same, other], 0.5, 0)
    assert sorted(map(len, splits.values())) == [1, 3]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda root: (root / "train" / "kind 01" / "0.png").write_bytes(b"no image"), "cannot be read as an image"),
        (lambda root: [path.unlink() for path in (root / "test" / "kind 01").iterdir()], "'kind 01' has no test image"),
        (lambda root: (root / "test" / "kind 01").rename(root / "test" / "x"), "has no folder 'kind 01'"),
        (lambda root: (root / "test" / "kind 01" / "more").mkdir(), "more is a folder inside a class: move its images"),
        (lambda root: (root / "test").rename(root / "tests"), "has no train/ and test/: write test_share"),
        (lambda root: root.rename(root.with_name("gone")), "cannot read folder"),
    ],
)
def test_what_is_wrong_with_a_folder_is_one_sentence(tmp_path, monkeypatch, spoil, said):
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    root = write_pictures(tmp_path / "pictures", classes=3, train=2, test=1)
    path = protocol_of(tmp_path / "mine.yaml", "pictures", "[2, 1]")
    spoil(root)
    with pytest.raises(BenchError, match=re.escape(said)):
        opened(path)


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ("{title: x}", "dataset: key 'folder' is missing"),
        ("{folder: pictures, klasses: [a]}", "dataset: unknown key 'klasses' (value ['a']), did you mean 'classes'?"),
        ("{folder: pictures, name: cifar10}", "the suite has a dataset 'cifar10', rename yours"),
        ("{folder: pictures, classes: [a, a]}", "'a' is listed twice"),
        ("{folder: pictures, classes: [a, ../b]}", "'../b' is not the name of a folder"),
        ("{folder: pictures, classes: [kind 00, kind 01]}", "sessions: 3 classes asked for, mine has 2"),
        ("[pictures]", "dataset"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence(tmp_path, dataset, said):
    write_pictures(tmp_path / "pictures", classes=3, train=1, test=1)
    path = protocol_of(tmp_path / "mine.yaml", "pictures", "[2, 1]")
    path.write_text(re.sub(r"dataset: \{.*\}", f"dataset: {dataset}", path.read_text()))
    with pytest.raises(BenchError, match=re.escape(said)):
        load_protocol(str(path))


def test_all_missing_keys_of_a_backbone_are_told_at_once(tmp_path):
    (tmp_path / "b.yaml").write_text("architecture: vit_tiny_patch16_224\n")
    expected = "keys 'image_size', 'mean', 'std', 'projector', 'trained_on' are missing"
    with pytest.raises(BenchError, match=expected):
        ask("fea", backbone=str(tmp_path / "b.yaml"))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Pictures, a small backbone and its weights; what is run here is shared by the tests below."""
    root = tmp_path_factory.mktemp("own")
    write_pictures(root / "pictures", train=16, test=4)
    write_backbone(root)
    return root


@pytest.fixture
def call(world, bench, tmp_path, monkeypatch):
    def run(line: str, code: int = 0):
        done = bench(*shlex.split(line), CNCD_CACHE=str(world / "cache"))
        assert done.returncode == code, done.stderr
        return done

    monkeypatch.chdir(world)
    for name in ("pictures", "small.yaml", "small.safetensors"):
        (tmp_path / name).symlink_to(world / name)
    return run


def test_an_own_protocol_runs_is_reported_and_runs_again_from_its_own_command(call, tmp_path):
    """Own images, own backbone, own weights and own method: the printed command has them all."""
    assert "wrote pictures.yaml" in call("new protocol --data pictures --sessions 8+2+2").stdout
    call("new method mine")
    options = "--protocol pictures.yaml --backbone small.yaml --weights small.safetensors --method mine.py:Mine"
    done = call(f"run {options} {' '.join(SHORT)} --seed 3")
    assert "pictures: 12 classes, 16 training and 4 test images per class, 56 x 40 pixels, digest" in done.stderr
    (path,) = (tmp_path / "results" / "runs").rglob("*.json")
    record = read_record(path)
    assert str(tmp_path) not in path.read_text()
    assert "pictures" not in json.dumps(json.loads(path.read_text())["own"]["protocol"]["dataset"]["folder"])
    shown = call("show pictures/mine").stdout
    command = re.search(r"command +bench (.*)", shown)[1]
    assert "--method mine.py:Mine" in command
    assert "--weights small.safetensors" in command
    again = call(f"{command} --out elsewhere")
    assert again.stdout.splitlines()[0] == done.stdout.splitlines()[0]
    (second,) = (tmp_path / "elsewhere" / "runs").rglob("*.json")
    assert read_record(second).comparable() == record.comparable()
    assert call("reproduce pictures/mine").stdout == f"pictures/mine/seed3-{record.key[:8]}: the same bits\n"
    text = call("report").stdout
    assert re.search(r"^pictures +images in pictures +12 +2 +8 +2 +own +1$", text, flags=re.MULTILINE)
    assert f'data="{record.question.data.digest[:12]}"' in text


def test_two_files_of_one_name_stand_in_groups_of_their_own(tmp_path, monkeypatch):
    """The same images asked in another way: runs of the two must not be averaged or ranked together."""
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    write_pictures(tmp_path / "pictures", classes=4, train=2, test=1)
    write_backbone(tmp_path)
    small = {"backbone": str(tmp_path / "small.yaml"), "weights": tmp_path / "small.safetensors"}
    asked = []
    for sessions in ("[2, 2]", "[2, 1, 1]"):
        path = protocol_of(tmp_path / "mine.yaml", "pictures", sessions)
        asked.append(ask("fea", str(path), **small).changed["protocol"])
    assert len({*asked}) == 2
    path.write_text(path.read_text().replace("title: some", "title: another word"))
    assert ask("fea", str(path), **small).changed["protocol"] == asked[1]


@pytest.mark.parametrize("name", ["2024", "yes", "null", "1e3", "o'neill"])
def test_names_that_yaml_would_take_for_something_else(tmp_path, name):
    root = write_pictures(tmp_path / name, classes=3, train=2, test=1)
    stem = name.replace("'", "-")
    path, _ = new_protocol(root, "2+1", "vit-s14-dinov2-112", tmp_path / f"{stem}.yaml")
    assert load_protocol(str(path)).name == stem


def test_an_option_that_is_not_used_is_refused(call):
    done = call("run --data-dir pictures", code=2)
    assert "--data-dir: digits-t2 does not use it" in done.stderr


def test_new_files_are_read_and_never_overwritten(call, tmp_path):
    call("new protocol --data pictures --sessions 6+2 --out a/b/two.yaml")
    made = yaml.safe_load((tmp_path / "a" / "b" / "two.yaml").read_text())
    assert (made["dataset"]["folder"], made["sessions"]) == ("../../pictures", [6, 2])
    assert "is already there" in call("new protocol --data pictures --sessions 6+2 --out a/b/two.yaml", 2).stderr
    assert "test_share: 0.2" in (
        call("new protocol --data pictures/train --sessions 6+2 --out one.yaml") and (tmp_path / "one.yaml").read_text()
    )
    for line, code, said in (
        ("new protocol --data nowhere --sessions 6+2", 3, "there is no folder nowhere"),
        ("new protocol --data pictures --sessions 6", 2, "such as 6+2+2"),
        ("new protocol --data pictures --sessions 60+2", 2, "62 classes asked for, pictures has 12"),
        (
            "new protocol --data pictures --sessions 6+2 --out cifar10-t2.yaml",
            2,
            "the suite has a 'cifar10-t2' already",
        ),
        ("new protocol --data pictures --sessions 6+2 --out x.txt", 2, "must end in .yaml"),
        ("new protocol --data pictures --sessions 6+2 --backbone vit", 2, "unknown backbone 'vit'"),
        ("new method fea", 2, "the suite has a method 'fea'"),
        ("new method 3d", 2, "begin it with a letter"),
        ("new backbone --timm vit_tiny_patch16_225", 2, "did you mean 'vit_tiny_patch16_224'?"),
        ("new backbone --timm resnet18", 2, "cannot be built"),
    ):
        assert said in call(line, code).stderr


def test_a_new_backbone_has_what_timm_knows(call, tmp_path):
    call("new backbone --timm vit_tiny_patch16_224 --image-size 96")
    made = yaml.safe_load((tmp_path / "vit-tiny-patch16-224.yaml").read_text())
    assert (made["image_size"], made["mean"], made["projector"]) == (96, [0.5] * 3, [256, 256, 64])
    done = call("new backbone --timm vit_tiny_patch16_224 --weights small.safetensors --out b.yaml", 3)
    assert "does not fit backbone 'b'" in done.stderr
    assert not (tmp_path / "b.yaml").exists()
