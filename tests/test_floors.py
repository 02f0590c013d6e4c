"""The floors and what they are made of: known answers."""

import numpy as np
import pytest
import torch
from conftest import opened
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from sklearn.covariance import LedoitWolf

from methods.clustering import class_means, distances, k_means, whitening_of
from methods.contract import LabelledSession


def agreement(one: np.ndarray, two: np.ndarray) -> float:
    """Share of images on which two clusterings agree, clusters named as it suits them best."""
    table = np.zeros((one.max() + 1, two.max() + 1))
    np.add.at(table, (one, two), 1)
    return table[linear_sum_assignment(-table)].sum() / len(one)


def test_k_means_finds_what_is_apart_and_draws_from_torch_alone():
    torch.manual_seed(0)
    truth = torch.arange(90) % 3
    points = 10.0 * torch.eye(3)[truth] + 0.1 * torch.randn(90, 3)
    torch.manual_seed(1)
    found = k_means(points, 3)
    assert agreement(truth.numpy(), found.numpy()) == 1
    np.random.seed(5)  # noqa: NPY002 - the global generator must not matter
    torch.manual_seed(1)
    assert torch.equal(k_means(points, 3), found)


def test_fewer_points_than_clusters():
    assert k_means(torch.zeros(2, 3), 4).tolist() == [0, 1]
    means = class_means(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0, 0]), 2)
    assert means[0].tolist() == [2, 3]
    assert distances(torch.zeros(1, 2), means).argmin().item() == 0  # a class without points is never the nearest


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), width=st.integers(2, 12), images=st.integers(20, 80))
def test_whitening_is_the_inverse_root_of_ledoit_and_wolfs_covariance(seed, width, images):
    random = np.random.default_rng(seed)
    points = random.normal(size=(images, width)) @ random.normal(size=(width, width))
    found = whitening_of(torch.from_numpy(points))
    expected = LedoitWolf(assume_centered=True).fit(points).covariance_
    assert torch.allclose(found @ torch.from_numpy(expected) @ found, torch.eye(width, dtype=torch.float64), atol=1e-6)


def test_whitening_by_the_formula():
    """Ledoit and Wolf (2004), lemma 3.4, written out: shrink towards the mean variance by b²/d²."""
    random = np.random.default_rng(3)
    points = random.normal(size=(40, 5)) * [1, 2, 3, 4, 5]
    n, p = points.shape
    sample = points.T @ points / n
    mean = np.trace(sample) / p
    d2 = ((sample - mean * np.eye(p)) ** 2).sum() / p
    b2 = sum((((np.outer(x, x) - sample) ** 2).sum() / p) for x in points) / n**2
    shrunk = b2 / d2 * mean * np.eye(p) + (1 - b2 / d2) * sample
    assert 0 < b2 < d2
    found = whitening_of(torch.from_numpy(points)).numpy()
    assert np.allclose(np.linalg.inv(found @ found), shrunk)


def test_gaussian_predicts_as_a_linear_discriminant_for_equal_classes():
    """On the base classes, against the discriminant written out: x·Σ⁻¹μ − μ·Σ⁻¹μ / 2."""
    built, world = opened("gaussian")
    session = world.session(0)
    assert isinstance(session, LabelledSession)
    tokens = [part.tokens for part in session.clean()]
    with torch.no_grad():
        h = built.clean_features(session).double().numpy()
        rows = torch.cat([built.predict(part) for part in tokens]).numpy()
    labels = session.labels.numpy()
    centred = h - np.stack([h[labels == k].mean(0) for k in range(6)])[labels]
    covariance = LedoitWolf(assume_centered=True).fit(centred).covariance_
    means = np.stack([h[labels == k].mean(0) for k in range(6)])
    weight = np.linalg.solve(covariance, means.T)
    expected = (h @ weight - (means * weight.T).sum(1) / 2).argmax(1)
    assert (rows == expected).mean() > 0.999
    assert (rows == labels).mean() > 0.95


@pytest.mark.parametrize("method", ["kmeans", "gaussian"])
def test_a_floor_trains_nothing_after_the_base_session(short_run, method):
    record = short_run(method=method)
    assert [len(session.phases) for session in record.sessions] == [1, 0, 0]
    assert record.stored.parameters == 0
    assert record.metrics().average_accuracy > 80


def test_a_stronger_floor(short_run, tmp_path):
    """Whitening helps on digits: what varies within every class says nothing about which class it is."""
    plain, strong = (short_run(method=method, out=tmp_path / method) for method in ("kmeans", "gaussian"))
    assert strong.metrics().average_accuracy > plain.metrics().average_accuracy + 1


def test_shrinkage_can_be_given():
    """0 is the plain covariance, 1 gives every direction the average variance."""
    torch.manual_seed(0)
    points = (torch.randn(500, 3) * torch.tensor([1.0, 2.0, 4.0])).double()
    covariance = points.T @ points / len(points)
    plain, even = whitening_of(points, 0.0), whitening_of(points, 1.0)
    torch.testing.assert_close(plain @ covariance @ plain, torch.eye(3).double())
    torch.testing.assert_close(even, torch.eye(3).double() / covariance.trace().div(3).sqrt())


def test_a_direction_without_variance_gives_no_infinity():
    points = torch.cat([torch.randn(50, 2), torch.zeros(50, 1)], dim=1)
    assert whitening_of(points, 0.0).isfinite().all()


def test_the_gaussian_floor_takes_a_shrinkage(short_run):
    estimated, given = short_run(method="gaussian"), short_run(method="gaussian", settings={"shrinkage": 0.5})
    assert "shrinkage" not in estimated.question.params  # its key is that of runs from before the knob
    assert given.changed["shrinkage"] == 0.5
    assert given.sessions[0].counts != estimated.sessions[0].counts
