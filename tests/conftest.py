"""Shared by all tests: short runs on the embedded digits, with a cache and an output folder of their own."""

import copy
import dataclasses
import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import benchmark
import methods
from benchmark.progress import Display, Stop
from benchmark.record import RunRecord
from benchmark.request import Request, ask
from benchmark.setting import Setting, open_setting

SHORT = {"budget.base_epochs": 1, "budget.novel_epochs": 4, "budget.lr": 0.02}
METHODS = sorted(methods.entries())


@pytest.fixture(scope="session", autouse=True)
def _one_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Base sessions are trained once for all tests, away from the user's cache."""
    os.environ["CNCD_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    torch.set_num_threads(2)


@pytest.fixture
def short_run(tmp_path: Path) -> Callable[..., RunRecord]:
    """`bench run` in this process, cut short."""

    def run(out: Path = tmp_path / "results", **options: Any) -> RunRecord:
        settings = SHORT | options.pop("settings", {})
        return benchmark.run(out=out, views=options.pop("views", 2), settings=settings, **options)

    return run


@functools.cache
def opened_once() -> Setting:
    """Tokens are computed once for all tests that only look at them."""
    return open_setting(ask("fea", views=2, settings=SHORT), torch.device("cpu"), Display(quiet=True), Stop())


def fresh_setting(request: Request) -> Setting:
    """Everything a run works with, with a block of its own."""
    return dataclasses.replace(opened_once(), request=request, block=copy.deepcopy(opened_once().block))


@pytest.fixture
def setting() -> Setting:
    return fresh_setting(ask("fea", views=2, settings=SHORT))


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The real command in a process of its own."""

    def call(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "benchmark.cli", *words],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | environment,
            timeout=300,
            check=False,
        )

    return call
