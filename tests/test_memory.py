"""What is remembered of a class: which images are chosen, and what is kept of the others."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import slow_herd

from methods import memory
from methods.memory import Exemplars, Prototypes, densest, herd


def test_herding_on_a_toy_in_the_plane():
    """The image in the middle first, then the two sides by turns, so that the mean stays."""
    angles = np.deg2rad([90.0, 60.0, 120.0, 45.0, 135.0])
    points = torch.tensor(np.column_stack([np.cos(angles), np.sin(angles)]))
    assert herd(points, 3).tolist() == [0, 1, 2]
    assert herd(3 * points, 5).tolist() == herd(points, 5).tolist()  # lengths do not matter
    lopsided = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [1.0, -0.1]])
    assert herd(lopsided, 2).tolist() == slow_herd(lopsided.numpy(), 2)


@given(st.integers(0, 2**31 - 1), st.integers(1, 12), st.integers(1, 9))
def test_herding_equals_its_slow_version(seed, count, images):
    torch.manual_seed(seed)
    features = torch.randn(images, 4)
    chosen = herd(features, count).tolist()
    assert chosen == slow_herd(features.numpy(), count)
    assert len(set(chosen)) == min(count, images)  # all, if there are fewer


def test_equally_good_images_are_taken_in_order():
    assert herd(torch.ones(6, 3), 4).tolist() == [0, 1, 2, 3]


def test_exemplars_are_chosen_by_class_in_the_order_of_ids():
    """The order in which images are read does not decide between equals: their ids do."""
    kept = Exemplars()
    ids, rows = torch.tensor([9, 4, 7, 5, 8]), torch.tensor([3, 3, 2, 2, 3])
    kept.add(ids, torch.ones(5, 2), rows, 2)
    assert (kept.ids.tolist(), kept.row.tolist()) == ([5, 7, 4, 8], [2, 2, 3, 3])
    kept.add(torch.tensor([20]), torch.ones(1, 2), torch.tensor([6]), 2)
    assert (kept.ids.tolist()[-1], kept.row.tolist()[-1], len(kept)) == (20, 6, 5)


def test_exemplars_keep_to_dense_images_where_a_class_has_any():
    kept = Exemplars()
    rows = torch.tensor([0, 0, 0, 1, 1])
    dense = torch.tensor([False, True, True, False, False])
    kept.add(torch.arange(5), torch.eye(5), rows, 3, dense)
    assert kept.ids.tolist() == [1, 2, 3, 4]


def test_taking_over_leaves_nothing_behind():
    one, two = Exemplars(), Exemplars()
    for kept, number in ((one, 1), (two, 2)):
        kept.add(torch.tensor([number]), torch.ones(1, 2), torch.tensor([number]), 1)
    one.take(two)
    assert (one.ids.tolist(), one.row.tolist(), len(two)) == ([1, 2], [1, 2], 0)


@pytest.mark.parametrize("chunk", [1024, 7])
def test_densest_equals_its_slow_version(chunk, monkeypatch):
    monkeypatch.setattr(memory, "NEIGHBOUR_CHUNK", chunk)
    torch.manual_seed(0)
    points = torch.randn(30, 4).double()
    unit = (points / points.norm(dim=1, keepdim=True)).numpy()
    distance = [sorted(1 - row @ other for other in unit)[5] for row in unit]  # the first is the point itself
    marked = densest(points, 5, 0.4)
    assert set(torch.nonzero(marked).squeeze(1).tolist()) == set(np.argsort(distance)[:12].tolist())


def test_densest_with_few_points():
    assert densest(torch.randn(3, 2), 15, 0.5).sum() == 2
    assert densest(torch.randn(1, 2), 15, 0.5).tolist() == [True]


def test_statistics_by_hand():
    h, rows = torch.tensor([[0.0, 2.0], [2.0, 2.0], [5.0, 5.0]]), torch.tensor([1, 1, 4])
    fea, frost = Prototypes(2), Prototypes(2)
    fea.add(h, rows)
    assert fea.row.tolist() == [1, 4]
    assert fea.mean.tolist() == [[1, 2], [5, 5]]
    assert fea.deviation.tolist() == [[1, 0], [1, 0]]  # a lone image takes the others' deviation
    frost.add(h, rows, unbiased=True, floor=1e-5)
    expected = [[math.sqrt(2 + 1e-5), math.sqrt(1e-5)], [math.sqrt(1e-5)] * 2]  # or the floor, in FRoST
    assert torch.allclose(frost.deviation, torch.tensor(expected))
    assert fea.mean.numel() + fea.deviation.numel() == 8


def test_drawn_features_have_the_stored_statistics():
    torch.manual_seed(0)
    stored = Prototypes(3)
    h = torch.randn(400, 3) * torch.tensor([1.0, 2.0, 0.5]) + 4
    stored.add(torch.cat([h, 3 * h]), torch.arange(2).repeat_interleave(400))
    for shared in (False, True):
        drawn, rows = stored.draw(20_000, shared=shared)
        wanted = stored.deviation.mean(dim=0).expand(2, 3) if shared else stored.deviation
        for row in (0, 1):
            assert torch.allclose(drawn[rows == row].mean(dim=0), stored.mean[row], atol=0.15)
            assert torch.allclose(drawn[rows == row].std(dim=0), wanted[row], rtol=0.03)


def test_the_nearest_mean_is_measured_by_the_base_covariance():
    """Along the first axis classes vary much, along the second little: by plain distance both points go elsewhere."""
    torch.manual_seed(0)
    spread = torch.tensor([10.0, 0.1])
    base, rows = torch.randn(400, 2) * spread, torch.arange(400) % 2
    base[rows == 1] += torch.tensor([0.0, 4.0])
    kept = Prototypes(2, covariance=True)
    kept.add(base, rows)
    whitening = kept.whitening.clone()
    kept.add(torch.tensor([[30.0, 0.0], [30.0, 0.2]]), torch.tensor([5, 5]))
    assert torch.equal(kept.whitening, whitening)  # later classes do not change it
    points = torch.tensor([[6.0, 3.9], [26.0, 3.9], [28.0, 0.0]])
    assert kept.nearest(points).tolist() == [1, 1, 5]
    assert kept.row[torch.cdist(points, kept.mean).argmin(dim=1)].tolist() == [1, 5, 5]


def test_without_covariance_nothing_more_is_stored():
    assert {*Prototypes(3).state_dict()} == {"row", "mean", "deviation"}
