"""Looking after banks, their memory, and reading ahead."""

import json
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pytest
import torch
import yaml
from banks import BRIEF, FILES_OF_A_VIEW, SHARD, TEST_FILES, _small_files, cache, opened, request, world  # noqa: F401 - fixtures
from pictures import TEST, TRAIN

from benchmark import digests
from benchmark.engine.feed import NovelFeed, Prefetcher
from benchmark.engine.request import ask
from benchmark.tokens import bank as bank_module
from benchmark.tokens.bank import Bank, Piece
from benchmark.tokens.builder import CHUNK, PartFile
from benchmark.tokens.memory import MemoryPool
from benchmark.tokens.sources import BankSource
from benchmark.tokens.upkeep import prune
from methods.contract import Phase, Tokens


def test_a_file_is_read_whole_once_on_a_machine(world, cache, monkeypatch):
    opened(request(world))
    with monkeypatch.context() as patch:
        patch.setattr(bank_module, "payload_digest", lambda *_: pytest.fail("read again"))
        opened(request(world))
    monkeypatch.setattr(digests, "machine", lambda: "another")
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
    plan = json.loads(done.stdout)
    assert plan["images"] == plan["missing_images"] == 50_000 * 9 + 10_000
    assert plan["bytes_an_image"] == 768 * 4 + 196 * 768 * 2
    assert plan["files"] == 9 * -(-50_000 // SHARD) + -(-10_000 // SHARD)


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
