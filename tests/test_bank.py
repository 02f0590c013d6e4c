"""Tokens on disk say what the trunk says, whatever asks for them."""

import json
from pathlib import Path

import pytest
import torch
from banks import BRIEF, FILES_OF_A_VIEW, SHARD, TEST_FILES, _small_files, cache, opened, request, world  # noqa: F401 - fixtures
from pictures import TEST, TRAIN, write_folders
from safetensors.torch import save_file

import benchmark
from benchmark.digests import machine
from benchmark.engine.request import ask
from benchmark.engine.world import World
from benchmark.tokens import opening
from benchmark.tokens.bank import complete_file, wanted_pieces
from benchmark.tokens.sources import Live
from benchmark.tokens.weights import read_weights


def live(opened_world: World, split: str = "train") -> Live:
    """The trunk itself, asked anew for every picture."""
    trunk, _ = opening.open_backbone(opened_world.request.backbone, opened_world.request.tokens.weights)
    return Live(trunk, opened_world.dataset.splits[split].images, opening.PRESETS["simgcd"])


POSITION = torch.tensor([0, 79, 3, 3, 41])


@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_a_bank_says_what_the_trunk_says(world, cache, precision):
    """Exactly in float32; in float16 the class token exactly and the others rounded once."""
    opened_world = opened(request(world, **{"shared.bank": precision}))
    for view in (torch.tensor([0, 1, 2, 1, 0]), torch.zeros(5, dtype=torch.long)):
        got, expected = opened_world.source.get(POSITION, view), live(opened_world).get(POSITION, view)
        assert torch.equal(got.cls, expected.cls)
        assert torch.equal(got.rest, expected.rest.to(getattr(torch, precision)))
        assert got.rest.dtype == getattr(torch, precision)
    test = torch.tensor([0, 39, 17])
    got, expected = opened_world.test_source.get(test, test * 0), live(opened_world, "test").get(test, test * 0)
    assert torch.equal(got.cls, expected.cls)


def test_layout_says_nothing_about_classes(world, cache):
    """Files of equally many images, in the order of the pixels' digests; nothing else but what was found whole."""
    opened_world = opened(request(world))
    (folder,) = (cache / "bank").iterdir()
    names = sorted(str(path.relative_to(folder)) for path in folder.glob("**/*") if path.is_file())
    expected = [f"test-v0000/s{shard:04d}.tokens" for shard in range(TEST_FILES)]
    expected += [f"train-v{view:04d}/s{shard:04d}.tokens" for view in range(3) for shard in range(FILES_OF_A_VIEW)]
    bank = opened_world.source.bank
    complete = complete_file(folder, wanted_pieces(bank, 2)).name
    assert names == sorted([*expected, "bank.json", f"checked-{machine()}.json", complete, "locks/.lockable"])
    assert len({path.stat().st_size for path in folder.glob("train-*/*.tokens")}) == 1
    labels = opened_world.dataset.train.labels.reshape(FILES_OF_A_VIEW, SHARD)
    assert all(len({*own}) > 4 for own in labels.tolist())
    described = json.loads((folder / "bank.json").read_text())
    assert described["data_digest"] == opened_world.dataset.digest
    assert opened_world.source.trunk_images == 10 * (3 * TRAIN + TEST)


def test_a_second_run_of_another_method_and_seed_computes_nothing(world, cache, tmp_path):
    options = {"protocol": "cifar10-t2", "views": 2, "settings": BRIEF, "out": tmp_path / "results", **world}
    first = benchmark.run("fea", **options)
    second = benchmark.run("frost", **options)
    third = benchmark.run("fea", seed=1, **options)
    assert first.provenance.trunk_images == 10 * (3 * TRAIN + TEST)
    assert first.provenance.base_session == "trained"
    assert second.provenance.trunk_images == third.provenance.trunk_images == 0
    assert second.provenance.base_session == "cached"
    assert 'reduced="8+4 images per class"' in first.group
    assert first.provenance.bank_seconds > 0 == second.provenance.bank_seconds


def test_more_views_add_to_the_bank(world, cache):
    opened(request(world, views=2))
    more = opened(request(world, views=3))
    assert more.source.trunk_images == 10 * TRAIN  # the third view


@pytest.mark.parametrize(
    "change",
    [
        {"protocol": "cifar10-jitter.yaml"},
        {"precision": "float32"},
        {"weights": True},
        {"data": True},
        {"size": 48},
        {"trunk": "bfloat16"},
    ],
    ids=str,
)
def test_whatever_decides_the_content_decides_the_folder(world, cache, tmp_path, monkeypatch, change):
    """Augmentation, number formats, weights, pixels and picture size: each change makes another bank."""
    opened(request(world))
    ours = dict(world)
    settings = {f"shared.{key}": value for key, value in change.items() if key == "trunk"}
    monkeypatch.setattr(opening, "require_units", lambda *_: None)  # slowly, but any machine can
    if "weights" in change:
        changed = {name: tensor * (1 + 1e-6) for name, tensor in read_weights(world["weights"]).items()}
        ours["weights"] = tmp_path / "other.safetensors"
        save_file(changed, ours["weights"])
    if "data" in change:
        ours["data_dir"] = write_folders(tmp_path / "cifar10")
        next((ours["data_dir"] / "train" / "cat").iterdir()).unlink()
    if "size" in change:
        text = Path(world["backbone"]).read_text().replace("image_size: 32", "image_size: 48")
        ours["backbone"] = str(tmp_path / "small.yaml")
        Path(ours["backbone"]).write_text(text.replace("img_size: 32", "img_size: 48"))
    if "precision" in change:
        settings = {"shared.bank": "float32"}
    protocol = "cifar10-t2"
    if "protocol" in change:
        own = (Path(__file__).parent.parent / "protocols" / "cifar10-t2.yaml").read_text()
        own = own.replace("simgcd", "jitter").replace("cifar10-t2", "cifar10-jitter")
        protocol = str(tmp_path / change["protocol"])
        Path(protocol).write_text(own)
    opened(ask("fea", protocol, views=2, settings=BRIEF | settings, **ours))
    assert len(list((cache / "bank").iterdir())) == 2


def test_live_and_exact_bank_give_equal_records(world, cache, tmp_path, monkeypatch):
    """With the same view ids: the engine is made to draw every picture anew, and nothing changes."""
    options = {"protocol": "cifar10-t2", "views": 3, "settings": BRIEF | {"shared.bank": "float32"}, "keep": True}
    options |= world

    def weights(out: str) -> bytes:
        (path,) = (tmp_path / out / "kept").glob(f"*/{method}/*/weights.safetensors")
        return path.read_bytes()

    for method in ("fea", "gm"):
        banked = benchmark.run(method, out=tmp_path / "banked", **options)
        with monkeypatch.context() as patch:
            before = opened(request(world, method, 3, **{"shared.bank": "float32"}))
            patch.setattr(opening, "BankSource", lambda bank, split, device: live(before, split))  # noqa: B023
            patch.setenv("CNCD_CACHE", str(tmp_path / f"cache-{method}"))
            drawn = benchmark.run(method, out=tmp_path / "live", **options)
        assert drawn.comparable() == banked.comparable()
        assert drawn.provenance.trunk_images > banked.provenance.trunk_images
        assert weights("live") == weights("banked")
        # rounding to float16 does show in the weights, so the comparison can fail
        benchmark.run(method, out=tmp_path / "rounded", **options | {"settings": BRIEF})
        assert weights("rounded") != weights("banked")


def test_live_views_take_clean_ones_from_the_bank(world, cache, tmp_path):
    record = benchmark.run("fea", "cifar10-t2", views="live", settings=BRIEF, out=tmp_path / "results", **world)
    clean = 10 * (TRAIN + TEST)
    base, sessions = 6 * TRAIN, 2 * 2 * 2 * 2 * TRAIN  # one view an epoch; two views, two classes, two epochs, twice
    assert record.provenance.trunk_images == clean + base + sessions
    (folder,) = (cache / "bank").iterdir()
    assert sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name != "locks") == [
        "test-v0000",
        "train-v0000",
    ]
