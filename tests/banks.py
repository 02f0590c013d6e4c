"""A small dataset and backbone for the tests of the bank."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pictures import TEST, TRAIN, write_backbone, write_folders

from benchmark.display import Display, Stop
from benchmark.engine.request import Request, ask
from benchmark.engine.world import World, open_world
from benchmark.tokens import bank as bank_module

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
