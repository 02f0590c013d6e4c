"""Shared by all tests: short runs on the embedded digits, with a cache and an output folder of their own."""

import copy
import dataclasses
import functools
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from records import UNKNOWN

import benchmark
import methods
from benchmark import cli
from benchmark.display import Display, Stop
from benchmark.engine.feed import NovelFeed
from benchmark.engine.lifecycle import begin
from benchmark.engine.request import Request, ask
from benchmark.engine.world import World, open_world
from benchmark.records import reference
from benchmark.records.record import RunRecord
from benchmark.tokens import opening
from benchmark.tokens.sources import InMemory, Live
from methods.contract import Method
from methods.heads import CosineHead

SHORT = {"budget.base_epochs": 1, "budget.novel_epochs": 4, "budget.lr": 0.02}
METHODS = sorted(methods.entries())
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)

settings.register_profile("untimed", deadline=None)  # a busy machine is no fault of what is tested
settings.load_profile("untimed")


@pytest.fixture(scope="session", autouse=True)
def _one_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Base sessions are trained once for all tests, away from the user's cache."""
    os.environ["CNCD_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["CNCD_OFFLINE"] = "1"  # a test that forgets something must not go and fetch it
    os.environ["OMP_NUM_THREADS"] = "1"  # of commands that tests start: two processes of tests share the machine
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _reference_weights_are_known() -> Iterator[None]:
    """Synthetic records name weights that no registry has: in this process they count as the reference backbone's."""
    known = reference.is_registered

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "is_registered", lambda name, weights: weights == UNKNOWN or known(name, weights))
        yield


@pytest.fixture(scope="session", autouse=True)
def _tokens_once() -> Iterator[None]:
    """Runs of this process share the tokens of the same images, which are most of a short run's time."""
    kept: dict[tuple[str, str, str], InMemory] = {}

    def shared(live: Live) -> InMemory:
        numbers = b"".join(p.detach().float().numpy().tobytes() for p in live.trunk.parameters())
        weights = hashlib.sha256(numbers + live.trunk.precision.encode()).hexdigest()
        images = hashlib.sha256(live.images.tobytes()).hexdigest()
        return kept.setdefault((weights, images, live.render.__name__), InMemory(live))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "InMemory", shared)
        yield


@pytest.fixture
def short_run(tmp_path: Path) -> Callable[..., RunRecord]:
    """`bench run` in this process, cut short."""

    def run(out: Path = tmp_path / "results", **options: Any) -> RunRecord:
        settings = SHORT | options.pop("settings", {})
        return benchmark.run(out=out, views=options.pop("views", 2), settings=settings, **options)

    return run


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunRecord]:
    """Records of short runs that nobody disturbed, by method; each is made when it is first asked for."""

    @functools.cache
    def record(method: str) -> RunRecord:
        return benchmark.run(method, settings=SHORT, views=2, out=tmp_path_factory.mktemp("whole"))

    return record


@functools.cache
def opened_once() -> World:
    """Tokens are computed once for all tests that only look at them."""
    return open_world(ask("fea", views=2, settings=SHORT), torch.device("cpu"), Display(quiet=True), Stop())


def fresh_world(request: Request) -> World:
    """Everything a run works with, with a block of its own."""
    return dataclasses.replace(opened_once(), request=request, block=copy.deepcopy(opened_once().block))


class PowerCut(BaseException):
    """Stops a run where it stands, as if the process had died."""


def opened(method: str, **settings: Any) -> tuple[Method, World]:
    """A method at the end of session 0 of digits-t2, with the base head of an untrained base session."""
    request = ask(method, settings=settings, views=2)
    world = fresh_world(request)
    torch.manual_seed(0)
    head = CosineHead(world.block.width, world.stream.new(0), request.shared.tau_c)
    built = request.method.cls(world.block, head, request.params, request.backbone.projector)
    with torch.no_grad():
        built.end(world.session(0))
    return built, world


def started_phases(built: Method, world: World) -> Iterator[NovelFeed]:
    """The feed of every phase of session 1, once the phase has begun."""
    session = world.session(1, built.memory()[0])
    for number, phase in enumerate(built.phases()):
        begin(built, world, 1, number)
        with torch.no_grad():
            built.prepare(session, phase)
        yield NovelFeed(world, 1, number, phase, 200, built.memory())


def start(name: str, phase: int = 0, **settings: Any) -> tuple[Any, NovelFeed]:
    """A method in a phase of session 1, a little away from its teacher, where distillation has no gradient."""
    built, world = opened(name, **settings)
    feed = next(islice(started_phases(built, world), phase, None))
    with torch.no_grad():
        for parameter in built.block.block.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    return built, feed


@pytest.fixture
def world() -> World:
    return fresh_world(ask("fea", views=2, settings=SHORT))


@pytest.fixture
def bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The real command, in this process: one of its own would spend most of its time importing torch."""

    def call(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        before = {number: signal.getsignal(number) for number in HANDLED}
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            patch.setattr(sys, "argv", ["bench", *words])
            for name, value in environment.items():
                patch.setenv(name, value)
            try:
                code = cli.guarded()
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)
        return subprocess.CompletedProcess(words, code, *capsys.readouterr())

    return call


@pytest.fixture
def bench_process(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The real command in a process of its own, where that is what is tested."""

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
