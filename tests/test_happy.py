"""Happy against slow forms of its terms, and known answers."""

import math

import numpy as np
import pytest
import torch
from conftest import opened, start, started_phases
from hypothesis import given
from hypothesis import strategies as st
from oracle import TAU, array, compared, cosines, cross_entropy, log_softmax, reached, slow_contrast, unit, views
from torch.nn import functional as F

from benchmark.engine.request import ask
from methods import losses as L


def logits_of(*means: float) -> torch.Tensor:
    """Two images whose mean prediction is this."""
    p = torch.tensor(means)
    shift = torch.tensor([0.05, *[0.0] * (len(means) - 2), -0.05])
    return torch.stack([p + shift, p - shift]).log()


def test_groups_by_hand():
    """The mean prediction 0.1, 0.3 | 0.2, 0.4."""
    logits = logits_of(0.1, 0.3, 0.2, 0.4)
    even, old, new = L.group_entropy(logits, slice(2, 4), even=True)
    assert [even.item(), old.item(), new.item()] == pytest.approx([0.02014, 0.13081, 0.05663], abs=1e-5)
    novel = L.group_entropy(logits, slice(2, 4), even=False)[0]
    assert novel.item() == pytest.approx(0.51083, abs=1e-5)
    # D_g is the same with the divergence within the new rows the other way round
    assert L.guide_to_novel(logits, slice(2, 4)).item() == pytest.approx(0.51083 + 0.05889, abs=1e-5)


def test_groups_of_a_uniform_prediction():
    even, old, new = L.group_entropy(torch.zeros(3, 6), slice(4, 6), even=True)
    assert even.item() == pytest.approx(0.05663, abs=1e-5)
    assert L.group_entropy(torch.zeros(3, 6), slice(4, 6), even=False)[0].item() == pytest.approx(math.log(3))
    assert [old.item(), new.item()] == pytest.approx([0, 0], abs=1e-6)
    assert L.group_entropy(torch.randn(3, 5), slice(4, 5), even=True)[2].item() == pytest.approx(0, abs=1e-6)


def test_groups_have_a_gradient_where_nothing_is_left_of_one():
    logits = torch.tensor([[200.0, 0.0, 0.0, 0.0]], requires_grad=True)
    torch.stack(L.group_entropy(logits, slice(2, 4), even=True)).sum().backward()
    assert logits.grad.isfinite().all()


def slow_groups(p, first):
    """Sums written out: between the groups as printed, and within each."""
    old, new = p[:first], p[first:]
    m_o, m_n = old.sum(), new.sum()
    within = [math.log(len(part)) + sum(x / part.sum() * math.log(x / part.sum()) for x in part) for part in (old, new)]
    return math.log(2) + m_o * math.log(m_o) + m_n * math.log(m_n), -math.log(m_n), *within


@given(seed=st.integers(0, 10**6), old=st.integers(1, 5), new=st.integers(1, 5))
def test_groups_written_out(seed, old, new):
    logits = torch.randn(7, old + new, generator=torch.Generator().manual_seed(seed)).double()
    mean = np.mean([np.exp(row) / np.exp(row).sum() for row in logits.numpy()], axis=0)
    even, novel, within_old, within_new = slow_groups(mean, old)
    got = L.group_entropy(logits, slice(old, old + new), even=True)
    assert [term.item() for term in got] == pytest.approx([even, within_old, within_new], abs=1e-9)
    assert L.group_entropy(logits, slice(old, old + new), even=False)[0].item() == pytest.approx(novel, abs=1e-9)


@pytest.mark.parametrize("settings", [{}, {"prior": "even", "w_old": 0.5, "ce_rows": "new", "hardness": 1.0}])
def test_all_terms_as_specified(settings):
    method, feed = start("happy", **settings)
    p, batch = method.params, feed.batch(20, 0)
    new, weight = views(method, batch), array(method.head.weight)
    with torch.no_grad():
        z = [array(method.q(torch.tensor(h).float())) for h in new]
        old = [array(method.teacher(tokens)) for tokens in (batch.a, batch.b)]
    cosine = [cosines(h, weight) for h in new]
    mean = np.exp(log_softmax(np.concatenate(cosine) / TAU)).mean(0)
    even, novel, within_old, within_new = slow_groups(mean, 6)
    among = [c if p.ce_rows == "all" else c[:, 6:] for c in cosine]
    targets = [np.exp(log_softmax(c / 0.05)) for c in among]
    crossed = sum((targets[v] * log_softmax(among[1 - v] / TAU)).sum(1).mean() for v in (0, 1))
    torch.manual_seed(7)
    stored = array(method.mean)
    alike = [np.mean([stored[c] @ stored[other] for other in range(6) if other != c]) for c in range(6)]
    chance = np.exp(np.array(alike) / p.hardness)
    assert array(method.chances()) == pytest.approx(chance / chance.sum(), rel=1e-4)
    rows = torch.multinomial(method.chances(), 2 * len(batch.ids), replacement=True)
    noise = array(torch.randn(len(rows), method.width))
    pseudo = [stored[c] + float(method.radius) * noise[i] for i, c in enumerate(rows.tolist())]
    expected = {
        "label": -crossed / 2,
        "between": even if p.prior == "even" else novel,
        "even_new": within_new,
        "contrast": (slow_contrast(*z, include_self=False) + slow_contrast(*z[::-1], include_self=False)) / 2,
        "replay": cross_entropy(cosines(pseudo, weight) / TAU, rows.tolist()),
        "distil": np.mean([((unit(new[v]) - unit(old[v])) ** 2).sum(1).mean() for v in (0, 1)]),
    }
    if p.w_old > 0:
        expected["even_old"] = p.w_old * within_old
    torch.manual_seed(7)
    compared(method.losses(batch), expected)


def test_which_term_reaches_which_part():
    method, feed = start("happy", w_old=1.0)
    terms = method.losses(feed.batch(20, 0))
    both = {"block", "head"}
    assert {name: reached(term, method) for name, term in terms.items()} == {
        "label": both,
        "between": both,
        "even_old": both,
        "even_new": both,
        "contrast": {"block", "q"},
        "replay": {"head"},
        "distil": {"block"},
    }


@pytest.mark.parametrize(
    ("settings", "gone"),
    [
        ({"w_between": 0}, "between"),
        ({"w_new": 0}, "even_new"),
        ({"w_proto": 0}, "replay"),
        ({"w_fd": 0}, "distil"),
        ({"contrastive": False}, "contrast"),
    ],
)
def test_a_switched_off_term_is_absent_and_the_others_stay(settings, gone):
    whole = {"label", "between", "even_new", "replay", "distil", "contrast"}
    method, feed = start("happy", **settings)
    assert set(method.losses(feed.batch(20, 0))) == whole - {gone}


def test_hard_prototypes_by_hand():
    method, _ = opened("happy")
    method.mean = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    assert method.chances().tolist() == pytest.approx([0.01715, 0.93624, 0.04661], abs=1e-5)
    method.mean = method.mean[:1]
    assert method.chances().tolist() == [1.0]


def test_the_radius_is_that_of_the_base_classes_and_stays():
    """Unit features (1, 0) and (0, 1) of one class are 0.5 from their mean in each dimension."""
    method, world = opened("happy")
    with torch.no_grad():
        h = F.normalize(method.clean_features(world.session(0)), dim=1)
    labels = world.session(0).labels
    spread = [h[labels == c].var(dim=0, correction=0).mean().item() for c in range(6)]
    assert method.radius.item() == pytest.approx(math.sqrt(np.mean(spread)), rel=1e-5)
    before = method.radius.clone()
    list(started_phases(method, world))
    with torch.no_grad():
        method.end(world.session(1))
    assert torch.equal(method.radius, before)
    assert method.mean.norm(dim=1).tolist() == pytest.approx([1.0] * 8, abs=1e-5)


def test_new_rows_begin_at_the_centres_of_clusters():
    built, world = opened("happy")
    before = built.head.weight.detach().clone()
    (_,) = started_phases(built, world)
    assert torch.equal(built.head.weight[:6], before)
    lengths = built.head.weight[6:].norm(dim=1)
    assert torch.allclose(lengths, lengths.mean().expand(2))
    with torch.no_grad():
        h = F.normalize(built.clean_features(world.session(1)), dim=1)
        rows = built.head(h)[:, 6:].argmax(dim=1)
    centres = torch.stack([F.normalize(h[rows == k].mean(dim=0), dim=0) for k in (0, 1)])
    assert (F.normalize(built.head.weight[6:], dim=1) * centres).sum(dim=1).min() > 0.98


def test_random_rows_are_left_where_they_are():
    built, world = opened("happy", init="random")
    (_,) = started_phases(built, world)
    fresh = F.normalize(built.head.weight[6:].detach(), dim=1)
    with torch.no_grad():
        h = F.normalize(built.clean_features(world.session(1)), dim=1)
    assert (fresh @ h.mean(dim=0)).abs().max() < 0.5  # no centre of anything


def test_distillation_of_vectors_at_sixty_degrees_is_one():
    one, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, math.sqrt(0.75)]])
    assert (2 * L.feature_distillation(one, 7 * other, "cosine")).item() == pytest.approx(1.0, abs=1e-6)


def test_literal_set():
    literal = ask("happy", params="happy-literal").params
    assert (literal.prior, literal.w_old) == ("even", 1.0)
