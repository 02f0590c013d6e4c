"""Building tokens: kills, crowds, full disks, damage."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from banks import BRIEF, FILES_OF_A_VIEW, SHARD, TEST_FILES, _small_files, cache, request, world  # noqa: F401 - fixtures
from pictures import TEST, TRAIN
from sweeps import is_alive

import benchmark
from benchmark.display import Display, Stop
from benchmark.engine.request import Request
from benchmark.errors import InterruptedRunError, ResourceError
from benchmark.tokens import bank as bank_module
from benchmark.tokens import opening
from benchmark.tokens.bank import HEADER, Piece, wanted_pieces
from benchmark.tokens.builder import Builder
from benchmark.tokens.upkeep import faults


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
    monkeypatch.setattr("benchmark.tokens.builder.shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
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
