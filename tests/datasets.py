"""What the tests of datasets share."""

from pathlib import Path

import pytest

from benchmark.protocol.catalogue import load_datasets

CIFAR10 = load_datasets()["cifar10"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CNCD_DATA", raising=False)
