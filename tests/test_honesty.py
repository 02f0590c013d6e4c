"""Tests of honesty come first: what must not reach training does not, and every term of a loss really pulls."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import METHODS, SHORT, PowerCut, opened, started_phases
from pictures import write_backbone, write_folders
from safetensors.torch import load_file
from torch import Tensor

import benchmark
from benchmark.data.datasets import Dataset, Split, digits
from benchmark.data.stream import Stream
from benchmark.display import Display, Stop
from benchmark.engine import run as engine
from benchmark.engine.feed import NovelFeed
from benchmark.engine.lifecycle import begin
from benchmark.engine.request import Request, ask
from benchmark.engine.run import kept_folder, run
from benchmark.engine.training import learning_rate
from benchmark.engine.world import World, open_world
from benchmark.records.record import record_path
from benchmark.tokens.backbone import Trunk
from benchmark.tokens.bank import Bank
from benchmark.tokens.sources import BankSource, CleanFromBank, InMemory, Live
from methods.contract import Batch, LabelledSession, MemoryBatch, Phase, Session
from methods.errors import ContractError

trained = pytest.mark.parametrize("method", METHODS)


def run_on(dataset, out: Path, method: str):
    """A short run on a changed dataset: its record and its final weights."""
    request = ask(method, settings=SHORT, views=2)
    changed = dataclasses.replace(request, tokens=dataclasses.replace(request.tokens, dataset=dataset))
    record = run(changed, out=out, keep=True)
    weights = load_file(kept_folder(record_path(out, record.question), out) / "weights.safetensors")
    return record, weights


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@trained
def test_hidden_labels_do_not_reach_training(method, tmp_path):
    """Labels of discovery images are dealt anew within each session: weights and predictions stay, bit for bit."""
    clean = digits()
    labels = clean.train.labels.copy()
    for pair in ((6, 7), (8, 9)):
        members = np.flatnonzero(np.isin(labels, pair))
        labels[members] = np.where(np.arange(len(members)) % 2, *pair)
    poisoned = dataclasses.replace(clean, train=Split(clean.train.images, labels))
    honest, weights = run_on(clean, tmp_path / "a", method)
    other, poisoned_weights = run_on(poisoned, tmp_path / "b", method)
    assert other.question.data.digest == honest.question.data.digest  # the run is told nothing of the poison
    assert same(weights, poisoned_weights)
    assert [s.counts for s in honest.sessions] == [s.counts for s in other.sessions]
    assert [s.phases for s in honest.sessions] == [s.phases for s in other.sessions]
    assert honest.sessions[1].train_counts != other.sessions[1].train_counts  # the evaluator does see them


@trained
def test_test_images_do_not_reach_training(method, tmp_path):
    clean = digits()
    noise = np.random.default_rng(0).integers(0, 256, clean.test.images.shape, dtype=np.uint8)
    noisy = dataclasses.replace(clean, test=Split(noise, clean.test.labels))
    seen, weights = run_on(clean, tmp_path / "a", method)
    blind, blind_weights = run_on(noisy, tmp_path / "b", method)
    assert same(weights, blind_weights)
    assert [s.phases for s in seen.sessions] == [s.phases for s in blind.sessions]
    assert seen.metrics().average_accuracy > blind.metrics().average_accuracy + 10


def test_base_labels_do_reach_training(tmp_path):
    """The tests above can fail: poison the labels that are meant to be used, and everything changes."""
    clean = digits()
    labels = clean.train.labels.copy()
    labels[labels < 6] = (labels[labels < 6] + np.arange((labels < 6).sum())) % 6
    _, weights = run_on(clean, tmp_path / "a", "kmeans")
    _, other = run_on(dataclasses.replace(clean, train=Split(clean.train.images, labels)), tmp_path / "b", "kmeans")
    assert not same(weights, other)


def test_discovery_types_have_no_place_for_a_label():
    for kind in (Session, Batch, MemoryBatch):
        assert not [f.name for f in dataclasses.fields(kind) if "label" in f.name or "target" in f.name]
    assert "labels" in {f.name for f in dataclasses.fields(LabelledSession)}


def reachable(thing, seen: set[int]):
    """Everything an object leads to through attributes, containers, owners and closures; frames are not asked."""
    if id(thing) in seen or isinstance(thing, str | bytes | int | float | type):
        return
    seen.add(id(thing))
    yield thing
    children = [*getattr(thing, "__dict__", {}).values()]
    if isinstance(thing, dict):
        children += thing.values()
    elif isinstance(thing, list | tuple | set):
        children += thing
    children += [cell.cell_contents for cell in getattr(thing, "__closure__", None) or ()]
    children += [getattr(thing, name) for name in ("__self__", "args", "keywords", "base") if hasattr(thing, name)]
    for child in children:
        yield from reachable(child, seen)


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory):
    """A small CIFAR-10 in folders and a small backbone."""
    root = tmp_path_factory.mktemp("on-disk")
    description, weights = write_backbone(root)
    return {"data_dir": write_folders(root / "cifar10"), "backbone": str(description), "weights": weights}


@pytest.mark.parametrize("path", ["memory", "live", "bank", "live with a bank"])
def test_nothing_a_method_is_handed_leads_to_a_source_or_a_label(path, on_disk, tmp_path, monkeypatch):
    """Session, batch, block and head; whatever serves the tokens."""
    monkeypatch.setenv("CNCD_CACHE", str(tmp_path))
    options = {"protocol": "cifar10-t2", **on_disk} if "bank" in path else {}
    asked = ask("gm", views="live" if "live" in path else 2, settings=SHORT, **options)
    world = open_world(asked, torch.device("cpu"), Display(quiet=True), Stop())
    kinds = {"memory": InMemory, "live": Live, "bank": BankSource, "live with a bank": CleanFromBank}
    assert type(world.source) is kinds[path]
    session = world.session(1)
    feed = NovelFeed(world, 1, 0, Phase(), 4, (torch.zeros(0, dtype=torch.long), torch.zeros(0)))
    ids = world.stream.ids(1).numpy()
    handed = [session, session.clean, session.recall, feed.batch(0, 0), next(session.clean()), world.block]
    found = [*reachable(handed, set())]
    forbidden = (
        World,
        Stream,
        Dataset,
        Split,
        Bank,
        Live,
        InMemory,
        BankSource,
        CleanFromBank,
        Trunk,
        Request,
        np.memmap,
    )
    assert [thing for thing in found if isinstance(thing, forbidden)] == []
    arrays = [
        np.asarray(x.detach() if isinstance(x, Tensor) else x) for x in found if isinstance(x, Tensor | np.ndarray)
    ]
    assert len(arrays) > 10
    hidden = world.stream.hidden
    for array in arrays:
        for labels in (hidden, world.dataset.train.labels, hidden[ids], hidden[ids] - hidden[ids].min()):
            assert not (array.shape == labels.shape and np.array_equal(array, labels))
    # the walk can find: through the generator's frame, which no attribute leads to, it does
    assert [thing for thing in reachable([session.reading.gi_frame.f_locals], set()) if isinstance(thing, forbidden)]


def test_order_within_a_session_says_nothing_about_classes(world):
    """Datasets are often stored class by class; neighbours in a session must not share a class more than by chance."""
    hidden = world.stream.hidden[world.stream.ids(1).numpy()]
    assert 0.35 < np.mean(hidden[1:] == hidden[:-1]) < 0.65


def test_same_seed_same_record_other_seed_other_result(tmp_path, monkeypatch):
    """Separate caches, so that the base session is trained twice too."""

    def fresh(name, seed=0):
        monkeypatch.setenv("CNCD_CACHE", str(tmp_path / f"cache-{name}"))
        return benchmark.run(seed=seed, settings=SHORT, views=2, out=tmp_path / name)

    one, again, other = fresh("a"), fresh("b"), fresh("c", seed=1)
    assert one.provenance.base_session == again.provenance.base_session == "trained"
    assert one.comparable() == again.comparable()
    assert one.sessions[0].counts != other.sessions[0].counts
    assert one.sessions[1].phases != other.sessions[1].phases


def test_cached_base_session_gives_the_same_record(short_run, tmp_path):
    one = short_run(out=tmp_path / "a", seed=3)
    again = short_run(out=tmp_path / "b", seed=3)
    assert again.provenance.base_session == "cached"
    assert one.comparable() == again.comparable()


def test_callers_random_numbers_and_threads_are_left_alone(short_run):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    short_run(method="kmeans", threads=1)
    assert torch.equal(torch.rand(3), expected)
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == before


@trained
def test_every_loss_term_pulls_once_all_ramps_are_open(method):
    """Gradient of each weighted term over all trained parameters: more than 1e-4 of the largest.

    A term can look alive in the log and be dead in fact, for example a teacher that is the student itself. Measured
    in the first step at which every ramp has reached its end, after a few steps of training.
    """
    built, world = opened(method)
    for feed in started_phases(built, world):
        parameters = [p for p in built.parameters() if p.requires_grad]
        optimiser = torch.optim.SGD(parameters, lr=learning_rate(0.02, 1e-3, 0, 200), momentum=0.9)
        for step in range(4):
            optimiser.zero_grad()
            sum(built.losses(feed.batch(0, step % feed.steps)).values()).backward()
            optimiser.step()
        terms = built.losses(feed.batch(150, 0))  # the longest ramp ends with epoch 150 of 200
        assert set(terms) == set(built.losses(feed.batch(199, 0)))
        pulls = {}
        for name, term in terms.items():
            gradients = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
            pulls[name] = float(torch.cat([g.flatten() for g in gradients if g is not None]).norm())
        assert min(pulls.values()) > 1e-4 * max(pulls.values()), pulls


@trained
def test_growth_keeps_old_rows_bit_for_bit(method):
    built, world = opened(method)
    before = built.head.weight.detach().clone()
    for number in range(len(built.phases())):
        begin(built, world, 1, number)
    assert torch.equal(built.head.weight[: len(before)], before)
    assert len(built.head.weight) == len(before) + (world.stream.new(1) if built.phases() else 0)


@trained
def test_what_no_term_may_move_stays_bit_for_bit(method):
    """Teachers, static branches and final norms: whatever the engine trains, they stay as they are."""
    built, world = opened(method)
    for feed in started_phases(built, world):
        copies = [n for n, m in built.named_children() if n != "block" and isinstance(m, type(built.block))]
        still = {
            name: p.detach().clone()
            for name, p in built.named_parameters()
            if name.split(".")[0] in copies or name.startswith("block.norm.")
        }
        trained = [p for p in built.parameters() if p.requires_grad]  # as the engine chooses them
        optimiser = torch.optim.SGD(trained, lr=0.05, momentum=0.9)
        for step in range(3):
            optimiser.zero_grad()
            sum(built.losses(feed.batch(150, step % feed.steps)).values()).backward()
            optimiser.step()
        now = dict(built.named_parameters())
        assert len(still) >= 2 + 10 * len(copies)
        assert [name for name, tensor in still.items() if not torch.equal(now[name], tensor)] == []


@trained
def test_a_session_that_is_over_cannot_be_read_again(method, tmp_path, monkeypatch):
    """Whatever a method keeps of a session but its memory is of no use to it: labels without images, closed readers."""
    handed = []
    original = World.session

    def session(self, *args):
        handed.append(original(self, *args))
        return handed[-1]

    monkeypatch.setattr(World, "session", session)
    benchmark.run(method, settings=SHORT, views=2, out=tmp_path)
    assert {own.number for own in handed} == {0, 1, 2}
    for own in handed:  # also those that were made for the copy that is judged
        with pytest.raises(ContractError, match="a session that is over"):
            next(own.clean())


@trained
def test_discovery_meets_base_labels_through_the_model_alone(method, tmp_path, monkeypatch):
    """A run that dies after session 0 goes on to the same weights, bit for bit, even if base labels are dealt anew.

    The whole run is compared too: what a method holds outside its parameters and buffers does not survive a death.
    """
    clean = digits()
    labels = clean.train.labels.copy()
    labels[labels < 6] = (labels[labels < 6] + np.arange((labels < 6).sum())) % 6
    poisoned = dataclasses.replace(clean, train=Split(clean.train.images, labels))

    def stop(*_):
        raise PowerCut

    with monkeypatch.context() as patch:
        patch.setattr(engine, "announce", stop)
        with pytest.raises(PowerCut):
            run_on(clean, tmp_path / "cut", method)
    _, resumed = run_on(poisoned, tmp_path / "cut", method)
    _, whole = run_on(clean, tmp_path / "whole", method)
    assert same(resumed, whole)
