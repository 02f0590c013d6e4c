"""MSc-iNCD against slow forms of its terms, and known answers."""

import math

import numpy as np
import pytest
import torch
from conftest import opened, start, started_phases
from hypothesis import given
from hypothesis import strategies as st
from oracle import TAU, array, compared, cosines, cross_entropy, log_softmax, reached, views

from benchmark.engine.request import ask
from benchmark.engine.training import TrainingPlan, descend, sgd
from methods import losses as L


def test_one_round_by_hand():
    scores = torch.tensor([[math.log(4), 0.0], [math.log(2), 0.0]])
    assert L.sinkhorn(scores, 1).flatten().tolist() == pytest.approx([4 / 7, 3 / 7, 2 / 5, 3 / 5])
    settled = L.sinkhorn(scores, 200)
    assert settled.diagonal().tolist() == pytest.approx([math.sqrt(2) / (1 + math.sqrt(2))] * 2)


def test_one_image_and_one_class():
    assert L.sinkhorn(torch.tensor([[1.0, 2.0, 5.0]]), 3).tolist() == [pytest.approx([1 / 3] * 3)]
    assert L.sinkhorn(torch.randn(5, 1), 3).flatten().tolist() == [1.0] * 5


def slow_sinkhorn(scores, rounds):
    """Totals of classes and images set to equal shares, number by number."""
    q = np.exp(scores)
    for _ in range(rounds):
        for k in range(q.shape[1]):
            q[:, k] = q[:, k] / q[:, k].sum() / q.shape[1]
        for i in range(q.shape[0]):
            q[i] = q[i] / q[i].sum() / q.shape[0]
    return q * q.shape[0]


@given(seed=st.integers(0, 10**6), images=st.integers(1, 9), classes=st.integers(1, 5), rounds=st.integers(1, 4))
def test_assignments_written_out(seed, images, classes, rounds):
    scores = np.random.default_rng(seed).normal(size=(images, classes)) * 5
    got = L.sinkhorn(torch.tensor(scores), rounds).numpy()
    assert got == pytest.approx(slow_sinkhorn(scores, rounds), abs=1e-12)
    assert got.sum(axis=1) == pytest.approx(np.ones(images))
    shifted = L.sinkhorn(torch.tensor(scores + np.arange(classes)), rounds).numpy()
    assert shifted == pytest.approx(got, abs=1e-9)  # a head start of a class is taken away


def test_discovery_as_specified():
    method, feed = start("mscincd")
    batch = feed.batch(20, 0)
    cosine = [cosines(h, array(method.head.weight))[:, 6:] for h in views(method, batch)]
    targets = [slow_sinkhorn(c / 0.05, 3) for c in cosine]
    crossed = sum((targets[v] * log_softmax(cosine[1 - v] / TAU)).sum(1).mean() for v in (0, 1))
    compared(method.losses(batch), {"label": -crossed / 2})


def test_transfer_as_specified_is_one_mean_over_both_parts():
    method, feed = start("mscincd", phase=1)
    batch = feed.batch(20, 0)
    h, weight = np.concatenate(views(method, batch)), array(method.head.weight)
    labels = 6 + cosines(h, array(method.session_rows)).argmax(1)
    each = method.replayed(len(h))
    torch.manual_seed(7)
    noise = array(torch.randn(each, 6, method.width))
    mean, deviation = array(method.prototypes.mean), array(method.prototypes.deviation).mean(0)
    pseudo = [mean[c] + deviation * noise[i, c] for i in range(each) for c in range(6)]
    rows = [c for _ in range(each) for c in range(6)]
    share = len(h) / (len(h) + len(pseudo))
    novel = cross_entropy(cosines(h, weight) / TAU, labels)
    replay = cross_entropy(cosines(pseudo, weight) / TAU, rows)
    torch.manual_seed(7)
    terms = method.losses(batch)
    compared(terms, {"novel": share * novel, "replay": (1 - share) * replay})
    whole = cross_entropy(cosines(np.concatenate([h, pseudo]), weight) / TAU, [*labels, *rows])
    assert sum(term.item() for term in terms.values()) == pytest.approx(whole, rel=1e-4)


@pytest.mark.parametrize(
    ("pictures", "new", "each"), [(512, 20, 20), (512, 50, 8), (512, 2, 200), (256, 10, 20), (128, 2, 50)]
)
def test_replayed_features_follow_from_the_number_of_classes(pictures, new, each):
    method, _ = start("mscincd")
    method.new_rows = slice(6, 6 + new)
    assert method.replayed(pictures) == each


def test_only_the_head_is_trained_and_old_rows_keep_their_direction():
    method, feed = start("mscincd")
    assert [name for name, p in method.named_parameters() if p.requires_grad] == ["head.weight"]
    terms = method.losses(feed.batch(0, 0))
    assert reached(terms["label"], method) == {"head"}
    before = method.head.weight.detach().clone()
    plan = TrainingPlan("", 1, 0, 1, 0.1, None, ask("mscincd").shared)
    descend(sgd([method.head.weight], plan.lr, plan.shared), [method.head.weight], terms)
    turned = torch.nn.functional.cosine_similarity(before, method.head.weight)
    assert turned[:6].tolist() == pytest.approx([1.0] * 6, abs=1e-6)
    assert turned[6:].max() < 1 - 1e-6


def test_labels_of_the_transfer_do_not_move_with_the_head():
    method, feed = start("mscincd", phase=1)
    batch = feed.batch(20, 0)
    with torch.no_grad():
        before = method.session_scores(method.block(batch.both)).argmax(dim=1)
        method.head.weight.add_(torch.randn_like(method.head.weight))
        assert torch.equal(method.session_scores(method.block(batch.both)).argmax(dim=1), before)


def test_the_baseline_stores_nothing():
    built, world = opened("mscincd", replay=False)
    (feed,) = started_phases(built, world)
    assert set(built.losses(feed.batch(0, 0))) == {"label"}
    with torch.no_grad():
        built.end(world.session(1))
    assert not hasattr(built, "prototypes")
    assert built.session_rows.numel() == 0
    assert ask("mscincd", params="mscincd-baseline").params.replay is False
