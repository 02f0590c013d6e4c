"""VB-CGCD: closed forms against the formulas written out, scipy and scikit-learn."""

import math

import numpy as np
import pytest
import torch
from conftest import opened
from hypothesis import given
from hypothesis import strategies as st
from oracle import array
from scipy.stats import multivariate_normal
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis

from benchmark.engine.request import ask
from methods.memory import Gaussians, log_volume, mahalanobis, penalised_fit
from methods.vbcgcd import VBCGCD, mean_volume


def method_of(width: int, **params) -> VBCGCD:
    """The method without a backbone: `end` and `predict` are not for it."""
    built, _ = opened("vbcgcd", **params)
    built.kept = width
    built.gaussians = Gaussians(width)
    return built


def test_a_fit_by_hand():
    """Two images at (1, 0) and (-1, 0), and two more that the prior I stands for."""
    mean, factor = penalised_fit(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).double(), torch.eye(2).double(), 2.0)
    assert mean.tolist() == [0, 0]
    assert torch.allclose(factor @ factor.T, torch.diag(torch.tensor([1.0, 0.5])).double())
    assert log_volume(factor).item() == pytest.approx(-0.6931, abs=1e-4)


def test_borders_between_a_narrow_and_a_wide_class():
    """N(0, 1) and N(3, 4): the densities are equal at 1.41834 and -3.41834, the distances at 1 and -3."""
    mean, factor = torch.tensor([[0.0], [3.0]]).double(), torch.tensor([[[1.0]], [[2.0]]]).double()
    points = torch.tensor([[1.41834], [-3.41834], [1.0], [-3.0]]).double()
    away, wide = mahalanobis(points, mean, factor), log_volume(factor)
    assert (away + wide)[:2].diff(dim=1).flatten().tolist() == pytest.approx([0, 0], abs=1e-4)
    assert away[2:].diff(dim=1).flatten().tolist() == pytest.approx([0, 0], abs=1e-9)


@given(seed=st.integers(0, 10**6), width=st.integers(1, 6), classes=st.integers(1, 4))
def test_scores_are_log_densities(seed, width, classes):
    random = np.random.default_rng(seed)
    roots = random.normal(size=(classes, width, width)) + 2 * np.eye(width)
    covariances = roots @ roots.transpose(0, 2, 1)
    means, points = random.normal(size=(classes, width)), random.normal(size=(5, width))
    factor = torch.linalg.cholesky(torch.tensor(covariances))
    got = -(mahalanobis(torch.tensor(points), torch.tensor(means), factor) + log_volume(factor)) / 2
    for k in range(classes):
        expected = multivariate_normal(means[k], covariances[k]).logpdf(points) + width / 2 * math.log(2 * math.pi)
        assert got[:, k].numpy() == pytest.approx(np.atleast_1d(expected), rel=1e-6, abs=1e-6)


def test_what_is_stored_comes_back():
    """Of a covariance the triangle alone is kept."""
    stored, factor = Gaussians(3), torch.linalg.cholesky(torch.eye(3) * 2 + 1)[None]
    stored.add(torch.ones(1, 3), factor)
    assert stored.packed.shape == (1, 6)
    assert torch.equal(stored.factors(), factor)


def test_alignment_by_hand():
    method = method_of(2)
    method.gaussians.add(torch.zeros(1, 2), torch.eye(2)[None])
    mean, wide = torch.zeros(1, 2).double(), 2 * torch.eye(2).double()[None]
    _, once = method.aligned(mean, wide)
    assert torch.allclose(once, torch.eye(2).double())  # 4 I becomes I
    assert torch.allclose(method.aligned(mean, once)[1], once)
    ratio = method_of(2, ratio=math.log(2))
    ratio.gaussians.add(torch.zeros(1, 2), torch.eye(2)[None])
    assert log_volume(ratio.aligned(mean, wide)[1]).exp().item() == pytest.approx(2.0)
    volumes = torch.stack([torch.diag(torch.tensor([1.0, math.sqrt(det)])) for det in (1.0, 3.0)])
    assert mean_volume(volumes).item() == pytest.approx(math.log(2))
    assert torch.equal(method_of(2, align=False).aligned(mean, wide)[1], wide)


def test_base_classes_as_scikit_learn_has_them():
    """With next to no prior and many images: the quadratic discriminant in the same axes."""
    random = np.random.default_rng(0)
    labels = np.arange(900) % 3
    roots = random.normal(size=(3, 4, 4)) + 2 * np.eye(4)
    points = np.stack([roots[k] @ random.normal(size=4) + 2 * k for k in labels])
    method = method_of(4, prior=1e-9)
    mean, factor = method.fitted(torch.tensor(points), torch.tensor(labels), 3)
    got = method.scores(torch.tensor(points), mean, factor).argmax(dim=1).numpy()
    expected = QuadraticDiscriminantAnalysis(priors=[1 / 3] * 3).fit(points, labels).predict(points)
    assert (got == expected).mean() > 0.995


def test_a_heavy_prior_is_the_nearest_mean():
    built, world = opened("vbcgcd", prior=1e9, align=False)
    tokens = next(world.session(0).clean()).tokens
    with torch.no_grad():
        z = built.project(built.block(tokens))
        nearest = torch.cdist(z, built.gaussians.mean).argmin(dim=1)
        assert torch.equal(built.predict(tokens), nearest)


def test_turning_and_stretching_all_features_changes_nothing():
    random = torch.Generator().manual_seed(0)
    h = torch.randn(200, 12, generator=random).double() @ torch.diag(torch.arange(1.0, 13.0)).double()
    labels = torch.arange(200) % 4
    h[labels == 1] += 9
    turn = torch.linalg.qr(torch.randn(12, 12, generator=random).double())[0]
    found = []
    for features in (h, 3 * h @ turn + 5):
        method = method_of(6)
        method.find_axes(features, labels, 4)
        z = method.project(features)
        found.append(method.scores(z, *method.fitted(z, labels, 4)).argmax(dim=1))
    assert torch.equal(*found)


def test_known_classes_never_change():
    built, world = opened("vbcgcd")
    mean, packed = built.gaussians.mean.clone(), built.gaussians.packed.clone()
    tokens = next(world.session(0).clean()).tokens
    with torch.no_grad():
        before = built.predict(tokens)
        built.end(world.session(1))
        after = built.predict(tokens)
    assert torch.equal(built.gaussians.mean[:6], mean)
    assert torch.equal(built.gaussians.packed[:6], packed)
    changed = after != before
    assert (after[changed] >= 6).all()  # an image can only move to a newer row


@pytest.mark.parametrize("relabel", ["new", "filter", "none"])
def test_planted_clusters_are_found_whatever_the_relabelling(relabel):
    """Far from all known classes nothing is left out, and no new image gets an old row."""
    method = method_of(3, relabel=relabel)
    random = torch.Generator().manual_seed(1)
    known = torch.randn(100, 3, generator=random)
    method.gaussians.add(*method.fitted(known, torch.zeros(100, dtype=torch.long), 1))
    truth = torch.arange(80) % 2
    z = torch.randn(80, 3, generator=random) + 30 * torch.stack([torch.ones(3), -torch.ones(3)])[truth]
    mean, factor = method.aligned(*method.fitted(z, truth, 2))
    if relabel != "none":
        assert torch.equal(method.given_anew(z, truth, mean, factor), truth)


def test_what_looks_known_is_left_out_by_the_letter_alone():
    method = method_of(1, relabel="filter", align=False)
    method.gaussians.add(torch.zeros(1, 1), torch.ones(1, 1, 1))
    z, rows = torch.tensor([[0.0], [5.0], [6.0]]), torch.tensor([0, 0, 0])
    mean, factor = torch.tensor([[5.0]]).double(), torch.ones(1, 1, 1).double()
    assert method.given_anew(z, rows, mean, factor).tolist() == [-1, 0, 0]
    near = torch.tensor([[0.0], [0.1]])
    assert method.given_anew(near, rows[:2], mean, factor).tolist() == [0, 0]  # a cluster that loses all keeps them
    new = method_of(1, relabel="new")
    new.gaussians.add(torch.zeros(1, 1), torch.ones(1, 1, 1))
    assert new.given_anew(z, rows, mean, factor).tolist() == [0, 0, 0]


def test_a_class_without_images_is_at_the_mean():
    method = method_of(2)
    mean, factor = method.fitted(torch.tensor([[2.0, 0.0], [4.0, 0.0]]), torch.tensor([0, 0]), 2)
    assert mean[1].tolist() == [3, 0]
    assert torch.equal(factor[1], torch.eye(2).double())


def test_the_pooled_prior_is_the_covariance_within_classes():
    built, world = opened("vbcgcd", pooled=True)
    session = world.session(0)
    with torch.no_grad():
        z = array(built.project(built.clean_features(session)))
    labels = session.labels.numpy()
    inside = z - np.stack([z[labels == k].mean(0) for k in range(6)])[labels]
    assert array(built.pooled) == pytest.approx(inside.T @ inside / len(z), abs=1e-3)
    assert np.trace(array(built.pooled)) / built.kept == pytest.approx(1, abs=1e-3)


def test_filter_set():
    assert ask("vbcgcd", params="vbcgcd-filter").params.relabel == "filter"
