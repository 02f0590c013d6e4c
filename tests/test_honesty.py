"""Tests of honesty come first: what must not reach training does not, and every term of a loss really pulls."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import METHODS, SHORT, PowerCut, opened, started_phases
from safetensors.torch import load_file
from torch import Tensor

import benchmark
import methods
from benchmark import engine
from benchmark import setting as setting_module
from benchmark.data import Split, digits
from benchmark.descent import learning_rate
from benchmark.engine import begin, kept_folder
from benchmark.errors import UsageError
from benchmark.feed import NovelFeed
from benchmark.record import record_path
from benchmark.request import ask
from benchmark.stream import Batch, Labelled, MemoryBatch, Unlabelled

trained = pytest.mark.parametrize("method", METHODS)


def run_on(dataset, out: Path, monkeypatch, method: str):
    """A short run on a changed dataset: its record and its final weights."""
    monkeypatch.setattr(setting_module, "open_dataset", lambda name, data_dir: dataset)
    record = benchmark.run(method, settings=SHORT, views=2, out=out, keep=True)
    weights = load_file(kept_folder(record_path(out, record.question), out) / "weights.safetensors")
    return record, weights


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@trained
def test_hidden_labels_do_not_reach_training(method, tmp_path, monkeypatch):
    """Labels of discovery images are dealt anew within each session: weights and predictions stay, bit for bit."""
    clean = digits()
    labels = clean.train.labels.copy()
    for pair in ((6, 7), (8, 9)):
        members = np.flatnonzero(np.isin(labels, pair))
        labels[members] = np.where(np.arange(len(members)) % 2, *pair)
    poisoned = dataclasses.replace(clean, train=Split(clean.train.images, labels))
    honest, weights = run_on(clean, tmp_path / "a", monkeypatch, method)
    other, poisoned_weights = run_on(poisoned, tmp_path / "b", monkeypatch, method)
    assert other.question.data.digest == honest.question.data.digest  # the run is told nothing of the poison
    assert same(weights, poisoned_weights)
    assert [s.counts for s in honest.sessions] == [s.counts for s in other.sessions]
    assert [s.phases for s in honest.sessions] == [s.phases for s in other.sessions]
    assert honest.sessions[1].train_counts != other.sessions[1].train_counts  # the evaluator does see them


@trained
def test_test_images_do_not_reach_training(method, tmp_path, monkeypatch):
    clean = digits()
    noise = np.random.default_rng(0).integers(0, 256, clean.test.images.shape, dtype=np.uint8)
    noisy = dataclasses.replace(clean, test=Split(noise, clean.test.labels))
    seen, weights = run_on(clean, tmp_path / "a", monkeypatch, method)
    blind, blind_weights = run_on(noisy, tmp_path / "b", monkeypatch, method)
    assert same(weights, blind_weights)
    assert [s.phases for s in seen.sessions] == [s.phases for s in blind.sessions]
    assert seen.metrics().average_accuracy > blind.metrics().average_accuracy + 10


def test_base_labels_do_reach_training(tmp_path, monkeypatch):
    """The tests above can fail: poison the labels that are meant to be used, and everything changes."""
    clean = digits()
    labels = clean.train.labels.copy()
    labels[labels < 6] = (labels[labels < 6] + np.arange((labels < 6).sum())) % 6
    _, weights = run_on(clean, tmp_path / "a", monkeypatch, "kmeans")
    _, other = run_on(
        dataclasses.replace(clean, train=Split(clean.train.images, labels)), tmp_path / "b", monkeypatch, "kmeans"
    )
    assert not same(weights, other)


def test_discovery_types_have_no_place_for_a_label():
    for kind in (Unlabelled, Batch, MemoryBatch):
        assert not [f.name for f in dataclasses.fields(kind) if "label" in f.name or "target" in f.name]
    assert "labels" in {f.name for f in dataclasses.fields(Labelled)}


def reachable(thing, seen: set[int]):
    """Everything an object leads to through attributes, containers and closures."""
    if id(thing) in seen or isinstance(thing, str | bytes | int | float | type):
        return
    seen.add(id(thing))
    yield thing
    children = [*getattr(thing, "__dict__", {}).values()] if not isinstance(thing, torch.nn.Module) else []
    if isinstance(thing, dict):
        children += thing.values()
    elif isinstance(thing, list | tuple):
        children += thing
    children += [cell.cell_contents for cell in getattr(thing, "__closure__", None) or ()]
    for child in children:
        yield from reachable(child, seen)


def test_nothing_a_method_is_handed_leads_to_a_hidden_label(setting):
    session = setting.session(1)
    feed = NovelFeed(setting, 1, 0, ask("fea").method.cls.phases(None)[0], 4, (torch.zeros(0), torch.zeros(0)))
    hidden = setting.stream.hidden[setting.stream.ids(1).numpy()]
    handed = [session, feed.batch(0, 0), next(session.clean())]
    arrays = [np.asarray(x) for x in reachable(handed, set()) if isinstance(x, Tensor | np.ndarray)]
    assert len(arrays) > 3
    everything = (setting.stream.hidden, setting.dataset.train.labels)
    for array in arrays:
        assert not (array.shape == hidden.shape and np.array_equal(array, hidden))
        assert not any(array.shape == labels.shape and np.array_equal(array, labels) for labels in everything)


def test_order_within_a_session_says_nothing_about_classes(setting):
    """Datasets are often stored class by class; neighbours in a session must not share a class more than by chance."""
    hidden = setting.stream.hidden[setting.stream.ids(1).numpy()]
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
        begin(built, world, world.session(1), number)
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
    """Whatever a method keeps of session 0 but its memory is of no use to it: labels without images, closed readers."""
    kept = []
    cls = methods.load(method).cls

    def end(self, session, original=cls.end):
        kept.append(session)
        return original(self, session)

    monkeypatch.setattr(cls, "end", end)
    benchmark.run(method, settings=SHORT, views=2, out=tmp_path)
    assert len(kept) == 3
    for session in kept:
        with pytest.raises(UsageError, match="a session that is over"):
            next(session.clean())


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
            run_on(clean, tmp_path / "cut", patch, method)
    _, resumed = run_on(poisoned, tmp_path / "cut", monkeypatch, method)
    _, whole = run_on(clean, tmp_path / "whole", monkeypatch, method)
    assert same(resumed, whole)
