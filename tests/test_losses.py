"""Losses against hand values, slow NumPy versions and their symmetries."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import slow_contrast
from torch.nn import functional as F

from methods import losses as L

seeds = st.integers(0, 2**31 - 1)


@given(seeds, st.booleans(), st.sampled_from([1.0, 0.2]))
def test_contrast_equals_its_slow_version(seed, include_self, tau):
    torch.manual_seed(seed)
    a, b, others = torch.randn(5, 7).double(), torch.randn(5, 7).double(), torch.randn(3, 7).double()
    got = L.contrast(a, b, temperature=tau, include_self=include_self, others=others)
    assert got.item() == pytest.approx(slow_contrast(a.numpy(), b.numpy(), tau, include_self, others.numpy()))


def test_contrast_of_equal_vectors():
    same = torch.ones(128, 16)
    assert L.contrast(same, same).item() == pytest.approx(math.log(256), abs=1e-4)
    assert L.contrast(same, same, include_self=False).item() == pytest.approx(math.log(255), abs=1e-4)


def test_symmetric_contrast_does_not_know_which_view_is_first():
    a, b = torch.randn(6, 4), torch.randn(6, 4)
    assert L.contrast(a, b) != L.contrast(b, a)
    assert torch.allclose(L.contrast(a, b, symmetric=True), L.contrast(b, a, symmetric=True))


@given(seeds)
def test_guide_equals_the_divergence_written_out(seed):
    torch.manual_seed(seed)
    logits = 3 * torch.randn(10, 6).double()
    mean = logits.softmax(1).mean(0).numpy()
    prior = np.array([0, 0, 0, 0, 0.5, 0.5])
    slow = sum(p * math.log(p / q) for p, q in zip(prior, mean, strict=True) if p > 0)
    assert L.guide_to_novel(logits, slice(4, 6)).item() == pytest.approx(slow)
    assert slow >= 0


def test_guide_known_answers():
    assert L.guide_to_novel(torch.zeros(8, 60), slice(50, 60)).item() == pytest.approx(1.7918, abs=1e-4)
    on_new = torch.full((8, 4), -1e4)
    on_new[:, 2:] = 0
    assert L.guide_to_novel(on_new, slice(2, 4)).item() == pytest.approx(0, abs=1e-6)


@given(seeds)
def test_self_labelling_equals_its_slow_version(seed):
    torch.manual_seed(seed)
    a, b = torch.randn(4, 5).double(), torch.randn(4, 5).double()
    sharp_a, sharp_b = (2.5 * a).softmax(1).numpy(), (2.5 * b).softmax(1).numpy()
    log_a, log_b = a.log_softmax(1).numpy(), b.log_softmax(1).numpy()
    slow = -0.5 * np.mean((sharp_a * log_b).sum(1) + (sharp_b * log_a).sum(1))
    assert L.self_labelling(a, b, 2.5).item() == pytest.approx(slow)
    assert torch.allclose(L.self_labelling(a, b, 2.5), L.self_labelling(b, a, 2.5))


def test_self_labelling_targets_carry_no_gradient():
    a, b = torch.randn(4, 5, requires_grad=True), torch.randn(4, 5)
    L.self_labelling(a, b, 2.0).backward()
    expected = 0.5 * (a.detach().softmax(1) - (2 * b).softmax(1)) / 4
    assert torch.allclose(a.grad, expected, atol=1e-6)


def test_centroid_similarity_known_answers():
    same = torch.ones(12, 5)
    assert L.centroid_similarity(same, same).item() == pytest.approx(math.log(10), abs=1e-5)
    # ten class profiles at the corners of a simplex: the floor of the loss
    simplex = torch.eye(10) - 0.1
    assert L.centroid_similarity(simplex, simplex).item() == pytest.approx(
        math.log(2 + 18 * math.exp(-10 / 9)), abs=1e-5
    )
    assert L.centroid_similarity(simplex, simplex).item() == pytest.approx(2.07, abs=0.01)


def test_prototype_boundary_known_answer_and_absent_clusters():
    same = torch.ones(6, 3)
    cluster = torch.tensor([0, 0, 2, 2, 2, 0])  # cluster 1 is absent
    got = L.prototype_boundary(same, same, cluster, torch.ones(4, 3))
    assert got.item() == pytest.approx(math.log(4 + 2 * 2), abs=1e-5)


def test_prototype_boundary_equals_its_slow_version():
    torch.manual_seed(3)
    a, b, known = torch.randn(9, 4).double(), torch.randn(9, 4).double(), torch.randn(5, 4).double()
    cluster = torch.tensor([0, 1, 1, 3, 3, 3, 0, 1, 0])
    means = [np.stack([x[cluster == k].mean(0).numpy() for k in (0, 1, 3)]) for x in (a, b)]
    slow = slow_contrast(*means, others=known.numpy())
    assert L.prototype_boundary(a, b, cluster, known).item() == pytest.approx(slow)


@pytest.mark.parametrize("form", ["sq_l2", "mean_sq", "l2", "cosine", "frost"])
def test_distillation_is_zero_and_has_a_gradient_where_nothing_moved(form):
    h = torch.randn(5, 8, requires_grad=True)
    loss = L.feature_distillation(h, h.detach().clone(), form)
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-5)
    assert torch.isfinite(h.grad).all()


def test_distillation_forms_by_hand():
    h, old = torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([[0.0, 0.0], [0.0, 1.0]])
    assert L.feature_distillation(h, old, "sq_l2").item() == pytest.approx((25 + 1) / 2)
    assert L.feature_distillation(h, old, "mean_sq").item() == pytest.approx((25 + 1) / 4)
    assert L.feature_distillation(h, old, "l2").item() == pytest.approx((5 + 1) / 2)
    one, two = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    assert L.feature_distillation(one, two, "cosine").item() == pytest.approx(0.5)
    flat = np.array([1, 0, 0, 2]) / math.sqrt(5) - np.array([0, 1, 0, 1]) / math.sqrt(2)
    assert L.feature_distillation(one, two, "frost").item() == pytest.approx(np.linalg.norm(flat))


@given(seeds, st.integers(1, 4))
def test_ranking_equals_sets_compared_one_by_one(seed, top):
    torch.manual_seed(seed)
    h = torch.randn(9, 5)
    sets = [set(np.argsort(-row)[:top].tolist()) for row in h.numpy()]
    slow = [[one == two for two in sets] for one in sets]
    assert L.same_ranking(h, top).tolist() == slow
    share = sum(slow[i][j] for i in range(9) for j in range(9) if i != j) / 72
    assert L.positive_share(L.same_ranking(h, top)).item() == pytest.approx(share)


def test_ranking_by_hand():
    """Signed values, in any order; standardised, the dimension that is always large no longer decides."""
    h = torch.tensor([[9.0, 2.0, 1.0], [9.0, 3.0, 8.0], [2.0, 9.0, 1.0], [9.0, 1.0, -9.0]])
    assert L.same_ranking(h, 2)[0].tolist() == [True, False, True, True]
    assert torch.equal(L.same_ranking(h, 2), L.same_ranking(h, 2).T)
    common = torch.tensor([[50.0, 1.0, 0.0], [51.0, 0.0, 1.0], [50.0, 1.1, 0.1], [51.0, 0.1, 1.1]])
    assert L.positive_share(L.same_ranking(common, 1)) == 1
    assert L.positive_share(L.same_ranking(common, 1, standardize=True)) < 1


@given(seeds)
def test_pairs_equal_their_slow_version_and_do_not_know_which_view_is_first(seed):
    torch.manual_seed(seed)
    a, b = (torch.randn(5, 3).double().softmax(1) for _ in range(2))
    same = torch.rand(5, 5) < 0.5
    same = same | same.T | torch.eye(5, dtype=torch.bool)
    slow = 0.0
    for i in range(5):
        for j in range(5):
            chance = float(a[i] @ b[j])
            slow -= math.log(chance + 1e-7) if same[i, j] else math.log(1 - chance + 1e-7)
    assert L.pairwise_agreement(a, b, same).item() == pytest.approx(slow / 25)
    assert torch.allclose(L.pairwise_agreement(a, b, same), L.pairwise_agreement(b, a, same))


def test_pairs_by_hand_and_at_the_edge():
    even = torch.full((4, 2), 0.5)
    assert L.pairwise_agreement(even, even, torch.eye(4, dtype=torch.bool)).item() == pytest.approx(
        math.log(2), abs=1e-5
    )
    sure = torch.tensor([[1.0, 0.0], [1.0 + 1e-6, 0.0]], requires_grad=True)  # as rounding may leave it
    loss = L.pairwise_agreement(sure, sure, torch.zeros(2, 2, dtype=torch.bool))
    loss.backward()
    assert loss.item() == pytest.approx(-math.log(1e-7), rel=1e-3)
    assert torch.isfinite(sure.grad).all()


@given(seeds)
def test_consistency_equals_its_slow_version(seed):
    torch.manual_seed(seed)
    a, b = torch.randn(4, 3).double(), torch.randn(4, 3).double()
    slow = sum((a[i, k] - b[i, k]) ** 2 for i in range(4) for k in range(3)) / 12
    assert L.consistency(a, b).item() == pytest.approx(slow.item())
    assert L.consistency(a, b) == L.consistency(b, a)


def test_consistency_by_hand():
    assert L.consistency(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])).item() == 1
    assert L.consistency(torch.tensor([[0.5, 0.5]]), torch.tensor([[0.5, 0.5]])).item() == 0


@given(seeds)
def test_supervised_contrast_equals_its_slow_version(seed):
    torch.manual_seed(seed)
    a, b = torch.randn(4, 6).double(), torch.randn(4, 6).double()
    rows = torch.tensor([0, 1, 0, 2])
    z = np.concatenate([a.numpy(), b.numpy()])
    z = z / np.linalg.norm(z, axis=1, keepdims=True)
    label = [0, 1, 0, 2] * 2
    slow = 0.0
    for i in range(8):
        bottom = sum(math.exp(z[i] @ z[j] / 0.07) for j in range(8) if j != i)
        positive = [j for j in range(8) if j != i and label[j] == label[i]]
        slow -= sum(math.log(math.exp(z[i] @ z[j] / 0.07) / bottom) for j in positive) / len(positive)
    assert L.supervised_contrast(a, b, rows, 0.07).item() == pytest.approx(slow / 8)
    assert torch.allclose(L.supervised_contrast(a, b, rows, 0.07), L.supervised_contrast(b, a, rows, 0.07))


def test_supervised_contrast_by_hand():
    same = torch.ones(3, 4)
    assert L.supervised_contrast(same, same, torch.zeros(3), 0.07).item() == pytest.approx(math.log(5), abs=1e-5)
    apart = torch.eye(2)
    # each view has one positive at cosine 1 and two others at cosine 0
    expected = math.log((math.e + 2) / math.e)
    assert L.supervised_contrast(apart, apart, torch.tensor([0, 1]), 1.0).item() == pytest.approx(expected, abs=1e-6)


@given(seeds)
def test_centroid_similarity_equals_its_slow_version(seed):
    torch.manual_seed(seed)
    a, b = torch.randn(7, 4).double(), torch.randn(7, 4).double()
    assert L.centroid_similarity(a, b).item() == pytest.approx(slow_contrast(a.T.numpy(), b.T.numpy()))
    order = torch.randperm(7)
    assert torch.allclose(L.centroid_similarity(a, b), L.centroid_similarity(a[order], b[order]))


def test_order_of_images_and_names_of_clusters_change_nothing():
    torch.manual_seed(0)
    a, b, known = torch.randn(9, 4).double(), torch.randn(9, 4).double(), torch.randn(5, 4).double()
    cluster, order = torch.tensor([0, 1, 1, 3, 3, 3, 0, 1, 0]), torch.randperm(9)
    expected = L.prototype_boundary(a, b, cluster, known)
    assert torch.allclose(L.prototype_boundary(a[order], b[order], cluster[order], known), expected)
    assert torch.allclose(L.prototype_boundary(a, b, torch.tensor([7, 2, 0, 5])[cluster], known), expected)
    assert torch.allclose(L.guide_to_novel(a[order], slice(2, 4)), L.guide_to_novel(a, slice(2, 4)))
    assert torch.allclose(L.cross_entropy(a[order].softmax(1), b[order]), L.cross_entropy(a.softmax(1), b))


@given(seeds)
def test_distillation_forms_equal_their_slow_versions(seed):
    torch.manual_seed(seed)
    h, old = torch.randn(4, 3).double(), torch.randn(4, 3).double()
    x, y = h.numpy(), old.numpy()
    slow = {
        "sq_l2": np.mean([sum((p - q) ** 2) for p, q in zip(x, y, strict=True)]),
        "mean_sq": np.mean([np.mean((p - q) ** 2) for p, q in zip(x, y, strict=True)]),
        "l2": np.mean([math.sqrt(sum((p - q) ** 2)) for p, q in zip(x, y, strict=True)]),
        "cosine": 1 - np.mean([p @ q / math.sqrt(p @ p) / math.sqrt(q @ q) for p, q in zip(x, y, strict=True)]),
        "frost": math.sqrt(((x / math.sqrt((x**2).sum()) - y / math.sqrt((y**2).sum())) ** 2).sum()),
        "none": 0.0,
    }
    for form, value in slow.items():
        assert L.feature_distillation(h, old, form).item() == pytest.approx(value), form
    for form in ("sq_l2", "mean_sq", "l2", "cosine", "frost"):  # how far apart two things are has no direction
        assert torch.allclose(L.feature_distillation(h, old, form), L.feature_distillation(old, h, form)), form


@given(seeds)
def test_cross_entropy_and_relative_distance_equal_their_slow_versions(seed):
    torch.manual_seed(seed)
    target, logits = torch.randn(4, 3).double().softmax(1), torch.randn(4, 3).double()
    total = 0.0
    for i in range(4):
        bottom = sum(math.exp(logits[i, k]) for k in range(3))
        total -= sum(float(target[i, k]) * math.log(math.exp(logits[i, k]) / bottom) for k in range(3))
    assert L.cross_entropy(target, logits).item() == pytest.approx(total / 4)
    moved = [math.dist(x, y) / math.sqrt(sum(v * v for v in y)) for x, y in zip(logits, target, strict=True)]
    assert L.relative_distance(logits, target).item() == pytest.approx(float(np.mean(moved)))


def test_self_labelling_by_hand():
    """Cosines 0.1 and 0 at temperature 0.1; targets twice as sharp: softmax(2, 0) against log softmax(1, 0)."""
    logits = torch.tensor([[1.0, 0.0]])
    sharp, soft = 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(-1))
    expected = -(sharp * math.log(soft) + (1 - sharp) * math.log(1 - soft))
    assert L.self_labelling(logits, logits, 2.0).item() == pytest.approx(expected, abs=1e-6)


def test_cross_entropy_and_relative_distance_by_hand():
    logits = torch.tensor([[0.0, math.log(3)]])
    assert L.cross_entropy(torch.tensor([[0.5, 0.5]]), logits).item() == pytest.approx(-0.5 * math.log(0.25 * 0.75))
    h, old = torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([[0.0, 4.0], [2.0, 0.0]])
    assert L.relative_distance(h, old).item() == pytest.approx((3 / 4 + 1 / 2) / 2)


@pytest.mark.parametrize("epochs", [1, 2, 3, 4, 20, 200, 1000])
def test_schedules_reach_their_end_in_every_budget(epochs):
    last = epochs - 1
    assert [L.ramp_up(last, epochs, share) for share in (0, 0.25, 0.75, 1)] == [1, 1, 1, 1]
    assert L.target_temperature(last, epochs, 0.07, 0.04, 0.15) == pytest.approx(0.04)
    if epochs > 1:
        assert L.warm_up(last, epochs, 0.15) == 1


def test_schedules_of_the_paper():
    assert [2 * L.warm_up(e, 200, 0.15) for e in (0, 15, 30, 199)] == pytest.approx([0, 1, 2, 2])
    slow = np.linspace(0.07, 0.04, 30)
    assert [L.target_temperature(e, 200, 0.07, 0.04, 0.15) for e in range(30)] == pytest.approx(list(slow))
    assert L.target_temperature(30, 200, 0.07, 0.04, 0.15) == 0.04
    assert L.ramp_up(0, 200, 0.25) == pytest.approx(math.exp(-5))
    assert L.ramp_up(25, 200, 0.25) == pytest.approx(math.exp(-5 / 4))
    assert [L.ramp_up(e, 200, 0.75) == 1 for e in (149, 150, 199)] == [False, True, True]


def test_framework_without_old_part_is_simgcd_with_the_guide():
    """Two code paths, one number: FEA's unlabelled part, symmetric and without self terms, is SimGCD's."""
    torch.manual_seed(0)
    z_a, z_b = F.normalize(torch.randn(8, 6), dim=1), F.normalize(torch.randn(8, 6), dim=1)
    z = torch.cat([z_a, z_b])
    similarity = (z @ z.T).masked_fill(torch.eye(16, dtype=torch.bool), -torch.inf)
    simgcd = F.cross_entropy(similarity, torch.arange(16).roll(8))
    assert torch.allclose(L.contrast(z_a, z_b, include_self=False, symmetric=True), simgcd, atol=1e-5)
