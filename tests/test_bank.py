"""Tokens on disk: what the trunk says, to the bit or rounded once; safe from kills, crowds, damage and full disks."""

import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pytest
import torch
import yaml
from pictures import TEST, TRAIN, write_backbone, write_folders
from safetensors.torch import save_file
from test_sweep import is_alive

import benchmark
from benchmark import digests as intact
from benchmark.digests import machine
from benchmark.display import Display, Stop
from benchmark.engine.feed import NovelFeed, Prefetcher
from benchmark.engine.request import Request, ask
from benchmark.engine.world import World, open_world
from benchmark.errors import InterruptedRunError, ResourceError
from benchmark.tokens import bank as bank_module
from benchmark.tokens import opening
from benchmark.tokens.bank import HEADER, Bank, Piece, complete_file, wanted_pieces
from benchmark.tokens.builder import CHUNK, Builder, PartFile
from benchmark.tokens.memory import MemoryPool
from benchmark.tokens.sources import BankSource, Live
from benchmark.tokens.upkeep import faults, prune
from benchmark.tokens.weights import read_weights
from methods.contract import Phase, Tokens

BRIEF = {"budget.base_epochs": 1, "budget.novel_epochs": 2, "budget.batch": 8}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A small CIFAR-10 in folders and a small backbone."""
    root = tmp_path_factory.mktemp("world")
    description, weights = write_backbone(root)
    return {"data_dir": write_folders(root / "cifar10"), "backbone": str(description), "weights": weights}


SHARD = 16
"""Images of a file in these tests, so that 80 training images make five files of a view."""
FILES_OF_A_VIEW, TEST_FILES = 10 * TRAIN // SHARD, -(-10 * TEST // SHARD)


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bank_module, "SHARD", SHARD)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def request(world: dict[str, Any], method: str = "fea", views: int | str = 2, **settings: Any) -> Request:
    return ask(method, "cifar10-t2", views=views, settings=BRIEF | settings, **world)


def opened(request: Request) -> World:
    return open_world(request, torch.device("cpu"), Display(quiet=True), Stop())


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
    told = json.loads((folder / "bank.json").read_text())
    assert told["data_digest"] == opened_world.dataset.digest
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
    """With the same view ids: the engine is told to draw every picture anew, and nothing changes."""
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


# --- kills, crowds, damage ---


def builder(request: Request, stop: Stop | None = None, workers: int = 0) -> Builder:
    dataset = request.tokens.images()
    trunk, _ = opening.open_backbone(request.backbone, request.tokens.weights)
    bank = opening.open_bank(request.tokens, dataset, trunk)
    render = opening.PRESETS["simgcd"]
    return Builder(bank, trunk, dataset.splits, render, Display(quiet=True), stop or Stop(), workers)


def build_all(builder: Builder, views: int = 2) -> None:
    builder.build(wanted_pieces(builder.bank, views))


def contents(cache: Path) -> dict[str, bytes]:
    return {str(path.relative_to(cache)): path.read_bytes() for path in cache.glob("bank/*/*/*.tokens")}


def test_worker_processes_draw_the_same_pictures(world, tmp_path, monkeypatch):
    found = []
    for workers in (0, 2):
        monkeypatch.setenv("CNCD_CACHE", str(tmp_path / str(workers)))
        build_all(builder(request(world), workers=workers))
        found.append(contents(tmp_path / str(workers)))
    assert len(found[0]) == 3 * FILES_OF_A_VIEW + TEST_FILES
    assert found[0] == found[1]


def test_what_a_dead_builder_left_is_not_believed(world, cache, tmp_path, monkeypatch):
    """A part of any content is written over: the finished files are the same."""
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "undisturbed"))
    build_all(builder(request(world)))
    whole = contents(tmp_path / "undisturbed")
    monkeypatch.setenv("CNCD_CACHE", str(cache))
    left = builder(request(world))
    for piece, content in ((Piece("train", 1, 0), b"junk" * 5000), (Piece("test", 0, 1), b"")):
        path = left.bank.path(piece).with_suffix(".dead.part")
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    build_all(left)
    assert contents(cache) == whole
    assert not [*cache.glob("bank/*/*/*.part")]


def test_a_signal_stops_the_builder_and_the_next_one_goes_on(world, cache):
    stop = Stop()
    first = builder(request(world), stop)
    first.display.step = lambda done: setattr(stop, "signal", 15 if done > 5 * TRAIN else None)
    with pytest.raises(InterruptedRunError):
        build_all(first)
    second = builder(request(world))
    build_all(second)
    whole = 10 * (3 * TRAIN + TEST)
    assert 0 < first.images < whole
    assert whole <= first.images + second.images <= whole + SHARD  # at most the file it was at is made again


VIEWS = 12
FILES = VIEWS + 1 + 1
"""Of commands in processes of their own: all images of a view fit into one file."""


def command(world: dict[str, Any], *words: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "benchmark.cli",
        "bank",
        "--protocol",
        "cifar10-t2",
        "--views",
        str(VIEWS),
        "--backbone",
        world["backbone"],
        "--weights",
        str(world["weights"]),
        "--data-dir",
        str(world["data_dir"]),
        "--threads",
        "1",
        *words,
    ]


def test_killed_while_building_then_built_by_two_at_once(world, cache, tmp_path, monkeypatch):
    """kill -9 in the middle; two processes finish the rest together; every file is sound and none was made twice."""
    first = subprocess.Popen(command(world), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(cache.glob("bank/*/*/*.tokens")) and time.monotonic() < deadline:
        time.sleep(0.002)
    workers = [int(word) for word in Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()]
    assert workers
    first.send_signal(signal.SIGKILL)
    first.wait()
    while any(map(is_alive, workers)):  # they go with their builder
        assert time.monotonic() < deadline
        time.sleep(0.05)
    before = {"/".join(Path(name).parts[-2:]) for name in contents(cache)}
    assert 0 < len(before) < FILES
    both = [subprocess.Popen([*command(world), "--json"], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [json.loads(process.communicate(timeout=120)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    images = sum(answer["trunk_images"] for answer in answers)
    missing = {f"train-v{view:04d}/s0000.tokens" for view in range(VIEWS + 1)} - before
    assert images == 10 * (TRAIN * len(missing) + TEST * ("test-v0000/s0000.tokens" not in before))  # none made twice
    assert len(contents(cache)) == FILES
    (folder,) = (cache / "bank").iterdir()
    assert not list(faults(folder, contents=True))
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "alone"))
    monkeypatch.setattr(bank_module, "SHARD", 256)
    build_all(builder(request(world, views=VIEWS)), VIEWS)
    assert contents(tmp_path / "alone") == contents(cache)


def test_a_scheduler_that_signals_every_process_is_obeyed(world, cache):
    """SIGTERM to the builder and its workers alike, as Slurm does it: state kept, exit code 75, then the rest."""
    code = "import benchmark.tokens.builder as b, benchmark.cli as c; b.FEW = 1; c.main()"
    words = [sys.executable, "-c", code, *command(world)[3:]]
    first = subprocess.Popen(words, start_new_session=True, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(cache.glob("bank/*/*/*.tokens")) and time.monotonic() < deadline:
        time.sleep(0.002)
    os.killpg(first.pid, signal.SIGTERM)
    said = first.communicate(timeout=60)[1]
    assert first.returncode == 75, said
    assert "run the same command again to resume" in said
    assert 0 < len(contents(cache)) < FILES
    again = subprocess.run(command(world), capture_output=True, text=True, timeout=120, check=False)
    assert again.returncode == 0, again.stderr
    assert len(contents(cache)) == FILES


def test_a_full_disk_ends_with_code_6_and_the_same_command_resumes(world, cache):
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (HEADER + 3000, resource.RLIM_INFINITY))

    # images are decoded before the limit: here it is the bank that meets it
    request(world)
    done = subprocess.run(
        command(world), preexec_fn=small_files, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 6, done.stderr
    assert "no space left writing" in done.stderr
    assert "resumes" in done.stderr
    assert "Traceback" not in done.stderr
    assert not contents(cache)
    again = subprocess.run(command(world), capture_output=True, text=True, timeout=120, check=False)
    assert again.returncode == 0, again.stderr
    assert len(contents(cache)) == FILES


def test_a_bank_that_will_not_fit_is_not_begun(world, cache, monkeypatch):
    monkeypatch.setattr(bank_module.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(ResourceError, match="GB are free: use fewer --views"):
        build_all(builder(request(world)))
    assert not contents(cache)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def other_header(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"shard": 3', b'"shard": 4', 1))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[HEADER + 100] ^= 1
    path.write_bytes(bytes(content))


def flip_and_restore_times(path: Path) -> None:
    about = path.stat()
    flip(path)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


@pytest.mark.parametrize("damage", [cut, other_header, flip, flip_and_restore_times])
def test_damage_is_noticed_told_and_made_good(world, cache, tmp_path, bench, caplog, damage):
    """By a run, which moves the file aside and makes it again; and by the command that looks after banks."""
    options = {"protocol": "cifar10-t2", "views": 2, "settings": BRIEF, **world}
    first = benchmark.run("fea", out=tmp_path / "first", **options)
    before = contents(cache)
    (target,) = cache.glob("bank/*/train-v0001/s0003.tokens")
    damage(target)
    second = benchmark.run("fea", out=tmp_path / "second", **options)
    assert "s0003.tokens is damaged: moved aside" in caplog.text
    assert second.comparable() == first.comparable()
    assert second.provenance.trunk_images == SHARD
    assert contents(cache) == before
    damage(target)
    done = bench("bank", "--verify")
    assert done.returncode == 3
    assert "s0003.tokens" in done.stdout
    assert bench("bank", "--prune", "--verify").returncode == 0
    assert not [*target.parent.glob("s0003*")]
    benchmark.run("fea", out=tmp_path / "third", **options)
    assert contents(cache) == before


def test_a_file_is_read_whole_once_on_a_machine(world, cache, monkeypatch):
    opened(request(world))
    with monkeypatch.context() as patch:
        patch.setattr(bank_module, "payload_digest", lambda *_: pytest.fail("read again"))
        opened(request(world))
    monkeypatch.setattr(intact, "machine", lambda: "another")
    read = []
    whole = bank_module.payload_digest
    monkeypatch.setattr(bank_module, "payload_digest", lambda *args: read.append(1) or whole(*args))
    opened(request(world))
    assert len(read) == 3 * FILES_OF_A_VIEW + TEST_FILES


def test_a_protocol_of_some_classes_has_a_bank_of_their_images(world, cache, tmp_path):
    own = yaml.safe_load((Path(__file__).parent.parent / "protocols" / "cifar10-t2.yaml").read_text())
    (tmp_path / "few.yaml").write_text(yaml.safe_dump(own | {"name": "few", "sessions": [[0, 1], [7, 8]]}))
    whole = opened(request(world))
    part = opened(ask("fea", str(tmp_path / "few.yaml"), views=2, settings=BRIEF, **world))
    assert part.source.trunk_images == 4 * (3 * TRAIN + TEST)
    assert len(list((cache / "bank").iterdir())) == 2
    ids = part.stream.ids(1)
    one, two = (opened_world.source.get(ids, torch.ones_like(ids)) for opened_world in (whole, part))
    assert torch.equal(one.rest, two.rest)  # an image's views do not depend on what else is in the bank


def test_prune_removes_what_dead_builders_left_and_unused_banks(world, cache):
    opened(request(world))
    (folder,) = (cache / "bank").iterdir()
    left = folder / "train-v0001" / "s0004.dead.part"
    left.write_bytes(b"half")
    assert prune(cache, unused=None, contents=False) == [(left, 4)]
    assert prune(cache, unused=1, contents=False) == []
    os.utime(folder / "bank.json", (0, 0))
    ((gone, size),) = prune(cache, unused=1, contents=False)
    assert gone == folder
    assert size > 0
    assert not folder.exists()


def _hold(path: str, ready: Any) -> None:
    with filelock.FileLock(path):
        ready.set()
        time.sleep(30)


def test_prune_leaves_what_somebody_is_building(world, cache):
    opened(request(world))
    (folder,) = (cache / "bank").iterdir()
    part = folder / "train-v0001" / "s0004.dead.part"
    part.write_bytes(b"half")
    (folder / "locks").mkdir(exist_ok=True)
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    holder = context.Process(target=_hold, args=(str(folder / "locks" / "train-v0001-s0004.tokens.lock"), ready))
    holder.start()
    try:
        assert ready.wait(60)
        assert prune(cache, unused=None, contents=False) == []
        assert part.exists()
    finally:
        holder.kill()
        holder.join()


def test_plan_counts_without_data_or_weights(bench, cache):
    done = bench("bank", "--protocol", "cifar100-t5", "--plan", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["images"] == told["missing_images"] == 50_000 * 9 + 10_000
    assert told["bytes_an_image"] == 768 * 4 + 196 * 768 * 2
    assert told["files"] == 9 * -(-50_000 // 256) + -(-10_000 // 256)


# --- memory, and reading ahead ---


def test_memory_is_lent_again_only_when_nobody_holds_it():
    pool = MemoryPool()
    first = pool.take((4, 8), torch.float32)
    address, view = first.data_ptr(), first[1:2]
    assert address % 64 == 0
    del first
    second = pool.take((4, 8), torch.float32)
    assert second.data_ptr() != address  # a view of the first is still held
    del view
    third = pool.take((4, 8), torch.float32)
    assert third.data_ptr() == address
    weight = torch.ones(8, requires_grad=True)
    graph = (third * weight).sum()
    del third
    assert pool.take((4, 8), torch.float32).data_ptr() != address  # the graph holds it
    graph.backward()
    del graph
    assert pool.take((4, 8), torch.float32).data_ptr() == address


def test_reading_ahead_changes_no_batch(world, cache):
    opened_world = opened(request(world, method="gm"))
    phase = Phase("discover", 1.0, 1.0, 0.0, "session")
    nothing = torch.zeros(0, dtype=torch.long)

    def feed() -> NovelFeed:
        return NovelFeed(opened_world, 1, 0, phase, 3, (nothing, nothing))

    ahead, plain = Prefetcher(feed()), feed()
    order = [(epoch, step) for epoch in range(3) for step in range(plain.steps)]
    for epoch, step in [*order, (0, 1), (2, 0), (2, 1)]:  # also where a resumed run would jump
        got, expected = ahead.batch(epoch, step), plain.batch(epoch, step)
        assert torch.equal(got.ids, expected.ids)
        assert torch.equal(got.both.rest, expected.both.rest)
    ahead.pool.shutdown()
    assert len(order) > 3


def test_a_bank_is_mapped_not_loaded(cache, tmp_path, monkeypatch):
    """Reading all of a 64 MB file image by image leaves the process's own memory where it was."""
    shape = bank_module.Shape(64, 256, "float16")
    recipe = bank_module.Recipe("d", "", "b", "", {}, "a", "float16", normalised=True, selection="all")
    count = 64 * 2**20 // shape.image_bytes
    monkeypatch.setattr(bank_module, "SHARD", count)
    bank = Bank(tmp_path / "bank", recipe, shape, {"train": np.arange(count), "test": np.arange(0)})
    part = PartFile(bank, Piece("train", 0, 0))
    for start in range(0, count, CHUNK):
        some = min(CHUNK, count - start)
        part.append(Tokens(torch.zeros(some, 256), torch.zeros(some, 64, 256)))
    part.finish()
    source = BankSource(bank, "train", torch.device("cpu"))

    def anonymous() -> int:
        (line,) = [row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("RssAnon")]
        return int(line.split()[1])

    source.get(torch.arange(16), torch.zeros(16, dtype=torch.long))
    before = anonymous()
    for start in range(0, count - 16, 16):
        source.get(torch.arange(start, start + 16), torch.zeros(16, dtype=torch.long))
    assert anonymous() - before < 8_000
