"""FRoST, AutoNovel and SimGCD* against slow forms of their terms."""

import math

import numpy as np
import pytest
import torch
from conftest import opened, start, started_phases
from oracle import (
    TAU,
    array,
    compared,
    cosines,
    cross_entropy,
    log_softmax,
    pairs_term,
    reached,
    slow_contrast,
    squared,
    views,
)


@pytest.mark.parametrize(("epoch", "settings"), [(20, {}), (150, {"c_inc": 1.0, "w_bce": 2.0}), (199, {"ramp": 0.75})])
def test_autonovel_as_specified(epoch, settings):
    method, feed = start("autonovel", **settings)
    p, batch = method.params, feed.batch(epoch, 0)
    h_a, h_b = views(method, batch)
    novel = [log_softmax(cosines(h, array(method.novel.weight)) / TAU) for h in (h_a, h_b)]
    joint = [log_softmax(cosines(h, array(method.head.weight)) / TAU) for h in (h_a, h_b)]
    ramp = math.exp(-5 * (1 - min(epoch, p.ramp * 200) / (p.ramp * 200)) ** 2)
    steady = squared(*map(np.exp, joint)) + squared(*map(np.exp, novel))
    expected = {
        "pairs": p.w_bce * pairs_term(h_a, *map(np.exp, novel), p.topk),
        "consistency": p.w_consistency * ramp * steady,
        "label": p.c_inc * ramp * cross_entropy(joint[0], 6 + novel[0].argmax(1)),
    }
    compared(method.losses(batch), expected)


def test_autonovel_concat_leaves_the_unified_head_alone_and_appends_the_novel_one():
    built, world = opened("autonovel", variant="concat")
    (feed,) = started_phases(built, world)
    terms = built.losses(feed.batch(150, 0))
    assert set(terms) == {"pairs", "consistency"}
    assert all(reached(term, built) == {"block", "novel"} for term in terms.values())
    before = built.head.weight.detach().clone()
    with torch.no_grad():
        built.end(world.session(1))
        h = built.block(feed.batch(0, 0).a)
        whole = torch.cat([built.head(h)[:, :6], built.novel(h)], dim=1)
    assert torch.equal(built.head.weight[:6], before[:6])
    assert torch.equal(built.predict(feed.batch(0, 0).a), whole.argmax(dim=1))


@pytest.mark.parametrize(("epoch", "settings"), [(20, {}), (199, {"ramp": 0.75, "sigma_shared": False, "c_inc": 0.5})])
def test_frost_as_specified(epoch, settings):
    method, feed = start("frost", **settings)
    p, batch = method.params, feed.batch(epoch, 0)
    h_a, h_b = views(method, batch)
    with torch.no_grad():
        old = array(method.teacher(batch.a))
    novel = [log_softmax(cosines(h, array(method.novel.weight)) / TAU) for h in (h_a, h_b)]
    joint = cosines(h_a, array(method.head.weight)) / TAU
    ramp = math.exp(-5 * (1 - min(epoch, p.ramp * 200) / (p.ramp * 200)) ** 2)
    torch.manual_seed(7)
    noise = array(torch.randn(p.n_p, 6, method.width))
    mean, deviation = array(method.prototypes.mean), array(method.prototypes.deviation)
    if p.sigma_shared:
        deviation = np.repeat(deviation.mean(0, keepdims=True), 6, axis=0)
    pseudo = [(mean[c] + deviation[c] * noise[i, c], c) for i in range(p.n_p) for c in range(6)]
    replayed = cosines([x for x, _ in pseudo], array(method.head.weight)) / TAU
    moved = h_a / np.sqrt((h_a**2).sum()) - old / np.sqrt((old**2).sum())
    expected = {
        "pairs": pairs_term(h_a, *map(np.exp, novel), p.topk),
        "consistency": p.w_consistency * ramp * squared(*map(np.exp, novel)),
        "label": p.c_inc * ramp * cross_entropy(joint, 6 + novel[0].argmax(1)),
        "replay": cross_entropy(replayed, [c for _, c in pseudo]),
        "distil": 10 * math.sqrt((moved**2).sum()),
    }
    torch.manual_seed(7)
    compared(method.losses(batch), expected)


def test_frost_stores_what_its_novel_head_believes():
    built, world = opened("frost")
    (_,) = started_phases(built, world)
    session = world.session(1)
    with torch.no_grad():
        built.end(session)
        h = built.clean_features(session)
        believed = 6 + built.novel(h).argmax(dim=1)
    for row in believed.unique():
        place = built.prototypes.row.tolist().index(row)
        own = h[believed == row]
        assert torch.allclose(built.prototypes.mean[place], own.mean(dim=0), atol=1e-6)
        assert torch.allclose(built.prototypes.deviation[place], (own.var(dim=0) + 1e-5).sqrt(), atol=1e-6)


@pytest.mark.parametrize(
    ("epoch", "settings"),
    [
        (10, {}),
        (199, {}),
        (10, {"ce_warmup": 0.0}),
        (60, {"ce_rows": "all", "epsilon": 0.1}),
        (60, {"ce_rows": "new", "epsilon": 1.0}),
    ],
)
def test_simgcd_as_specified(epoch, settings):
    method, feed = start("simgcd", **settings)
    p, batch = method.params, feed.batch(epoch, 0)
    new, old = views(method, batch), views(method, batch.memory)
    everything = [np.concatenate([new[v], old[v]]) for v in (0, 1)]
    with torch.no_grad():
        z = [array(method.q(torch.tensor(h).float())) for h in everything]
        z_old = [array(method.q(torch.tensor(h).float())) for h in old]
    weight, rows = array(method.head.weight), batch.memory.row.tolist()
    cosine = [cosines(h, weight) for h in (everything if p.ce_rows == "all" else new)]
    if p.ce_rows == "new":
        cosine = [c[:, 6:] for c in cosine]
    mean = np.exp(log_softmax(cosines(np.concatenate(new), weight) / TAU)).mean(0)
    grouped = np.concatenate(z_old)
    grouped = grouped / np.linalg.norm(grouped, axis=1, keepdims=True)
    label, total = rows * 2, 0.0
    for i in range(len(label)):
        others = [j for j in range(len(label)) if j != i]
        bottom = sum(math.exp(grouped[i] @ grouped[j] / 0.07) for j in others)
        same = [j for j in others if label[j] == label[i]]
        total -= np.mean([math.log(math.exp(grouped[i] @ grouped[j] / 0.07) / bottom) for j in same])
    both_ways = (slow_contrast(*z, include_self=False) + slow_contrast(*z[::-1], include_self=False)) / 2
    expected = {
        "classify": 0.35 * cross_entropy(cosines(np.concatenate(old), weight) / TAU, label),
        "group": 0.35 * total / len(label),
        "contrast": 0.65 * both_ways,
        "guide": 0.65 * p.epsilon * sum(0.5 * math.log(0.5 / mean[k]) for k in (6, 7)),
    }
    if epoch >= p.ce_warmup * 200:
        sharp = [*np.linspace(0.07, 0.04, 30), *[0.04] * 170][epoch]
        targets = [np.exp(log_softmax(c / sharp)) for c in cosine]
        student = [log_softmax(c / TAU) for c in cosine]
        crossed = sum((targets[v] * student[1 - v]).sum(1).mean() for v in (0, 1))
        expected["label"] = -0.65 * crossed / 2
    compared(method.losses(batch), expected)


def test_simgcd_without_exemplars_has_no_terms_of_theirs():
    method, feed = start("simgcd", exemplars=0)
    assert feed.batch(100, 0).memory is None
    assert len(feed.batch(100, 0).ids) == 64  # a whole batch: the ablation changes the exemplars alone
    assert set(method.losses(feed.batch(100, 0))) == {"contrast", "guide", "label"}
    assert "guide" not in start("simgcd", epsilon=0.0)[0].losses(feed.batch(100, 0))
