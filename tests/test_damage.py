"""No file is believed unchecked: bytes flipped anywhere in what a run keeps change no result.

The final record equals that of an undisturbed run, or the command ends with exit code 3 and a sentence.
"""

import os
import random
import shutil
import sys
from pathlib import Path

import pytest
from conftest import PowerCut
from pictures import write_backbone, write_folders
from test_resume import cut_after

import benchmark
from benchmark import cli
from benchmark.data.datasets import open_dataset
from benchmark.engine import checkpoint
from benchmark.protocol.catalogue import load_datasets
from benchmark.records.reading import read_record

PLACES = 20
BRIEF = {"budget.base_epochs": 1, "budget.novel_epochs": 2, "budget.batch": 8}


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> dict:
    """Files, a run cut in session 1 with all that it keeps, and the record of one that nobody disturbed."""
    root = tmp_path_factory.mktemp("damage")
    description, weights = write_backbone(root)
    options = {"data_dir": write_folders(root / "cifar10"), "backbone": str(description), "weights": weights}
    options |= {"method": "fea", "protocol": "cifar10-t2", "views": 2, "settings": BRIEF, "threads": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CNCD_CACHE", str(root / "cache"))
        whole = benchmark.run(out=root / "whole", **options)
        patch.setattr(checkpoint, "SECONDS_BETWEEN_SAVES", 0.0)
        cut_after(3, patch)
        with pytest.raises(PowerCut):
            benchmark.run(out=root / "cut", **options)
    return {"root": root, "whole": whole, "options": options}


WHERE: dict[str, str] = {
    "checkpoint": "cut/work/*/state.safetensors",
    "base session": "cache/base/*/state.safetensors",
    "bank": "cache/bank/*/train-v0001/*.tokens",
    "pixels": "cache/pixels/*/train-images.npy",
    "labels": "cache/pixels/*/train-labels.npy",
    "description of the pixels": "cache/pixels/*/pixels.json",
    "partial record": "cut/runs/*/*/*.json",
    "finished record": "whole/runs/*/*/*.json",
}


def flip(path: Path, seed: int) -> None:
    """One bit somewhere; the file's size and the time of its last change, as far as a user can set it, stay."""
    content, about = bytearray(path.read_bytes()), path.stat()
    chance = random.Random(seed)
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(bytes(content))
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


def words(options: dict, out: Path) -> list[str]:
    words = ["bench", "run", "--out", str(out), "--threads", "1", "--views", "2"]
    for name in ("method", "protocol", "backbone", "weights", "data_dir"):
        words += [f"--{name.replace('_', '-')}", str(options[name])]
    return words + [word for key, value in BRIEF.items() for word in ("--set", f"{key}={value}")]


@pytest.mark.parametrize("what", WHERE)
def test_flipped_bits_change_no_result(what, world, tmp_path, monkeypatch, capsys, caplog):
    """Twenty places in each kind of file, the command run after each; no silent difference."""
    noticed = 0
    for seed in range(PLACES):
        place = tmp_path / str(seed)
        out = place / ("whole" if what == "finished record" else "cut")
        for part in ("cache", out.name):
            shutil.copytree(world["root"] / part, place / part)
        monkeypatch.setenv("CNCD_CACHE", str(place / "cache"))
        assert open_dataset(
            load_datasets()["cifar10"], world["options"]["data_dir"]
        )  # its files are now known to be whole here
        (target,) = place.glob(WHERE[what])
        flip(target, seed)
        caplog.clear()
        monkeypatch.setattr(sys, "argv", words(world["options"], out))
        code = cli.guarded()
        printed = capsys.readouterr().err + caplog.text
        noticed += "damaged" in printed
        if code != 0:
            assert (code, printed.splitlines()[-1].startswith("bench: ")) == (3, True), printed
            continue
        (path,) = out.glob("runs/*/*/*.json")
        assert read_record(path).comparable() == world["whole"].comparable(), f"seed {seed}: {printed}"
        shutil.rmtree(place)
    assert noticed == PLACES


def test_the_same_without_damage_goes_on_from_the_state(world, tmp_path, monkeypatch, capsys):
    """The test above would pass if every command began anew; it does not."""
    for part in ("cache", "cut"):
        shutil.copytree(world["root"] / part, tmp_path / part)
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", words(world["options"], tmp_path / "cut"))
    assert cli.guarded() == 0
    assert "resuming in session 1" in capsys.readouterr().err
