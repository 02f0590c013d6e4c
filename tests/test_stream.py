"""Data, views and batches: counts, disjointness, determinism."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmark.data.datasets import digits, digits_holdout, open_dataset
from benchmark.data.pixels import image_digests
from benchmark.data.views import CLEAN, render_digits
from benchmark.engine.feed import NovelFeed, different_views, shuffled_places
from benchmark.engine.lifecycle import phase_epochs
from benchmark.errors import DataError
from benchmark.protocol.catalogue import load_datasets
from benchmark.seeds import derive, generator
from methods.contract import Phase


def test_digits_split_is_fixed_and_disjoint():
    data = digits()
    assert np.bincount(data.test.labels).tolist() == [60] * 10
    assert len(data.train) + len(data.test) == 1797
    assert data.digest == digits().digest
    assert data.digest.startswith(DIGEST)
    pictures = [{image.tobytes() for image in split.images} for split in (data.train, data.test)]
    assert not pictures[0] & pictures[1]


DIGEST = "62850eb95944ee57"


def test_holdout_has_no_test_image_and_no_novel_digit():
    whole, held = digits(), digits_holdout()
    train = {image.tobytes() for image in whole.train.images}
    for split in (held.train, held.test):
        assert split.labels.max() == 5
        assert {image.tobytes() for image in split.images} <= train
    assert not {i.tobytes() for i in held.train.images} & {i.tobytes() for i in held.test.images}


def test_data_that_cannot_be_read_is_named():
    with pytest.raises(DataError, match="cifar10"):
        open_dataset(load_datasets()["cifar10"])


def test_sessions_cover_all_training_images_once(world):
    stream = world.stream
    ids = [stream.ids(number) for number in range(3)]
    assert sorted(torch.cat(ids).tolist()) == list(range(len(world.dataset.train)))
    for own, classes in zip(ids, stream.sessions, strict=True):
        assert set(world.dataset.train.labels[own.numpy()].tolist()) == set(classes)
        assert own.tolist() == sorted(own.tolist())  # the order of the pixels' digests, over the whole split
    assert len(stream.test_ids(6)) == 360
    assert set(world.dataset.test.labels[stream.test_ids(8).numpy()].tolist()) == set(range(8))


def test_images_are_in_the_order_of_their_digests():
    for data in (digits(), digits_holdout()):
        for split in (data.train, data.test):
            digests = image_digests(split.images)
            assert digests == sorted(digests)


def test_a_view_depends_on_image_and_view_alone():
    images = digits().train.images[:6]
    ids, view = torch.arange(6), torch.tensor([1, 2, 1, 2, 3, 3])
    together = render_digits(images, ids, view, 16)
    backwards = render_digits(images[::-1].copy(), ids.flip(0), view.flip(0), 16).flip(0)
    assert torch.equal(together, backwards)
    alone = render_digits(images[2:3], ids[2:3], view[2:3], 16)
    assert torch.equal(together[2:3], alone)


def test_views_differ_and_the_clean_one_is_the_image():
    images = digits().train.images[:1]
    zero = torch.zeros(1, dtype=torch.long)
    clean = render_digits(images, zero, zero + CLEAN, 8)
    assert torch.allclose(clean[0, 0], torch.from_numpy(images[0, :, :, 0]).float() / 255, atol=1e-6)
    assert not torch.equal(render_digits(images, zero, zero + 1, 16), render_digits(images, zero, zero + 2, 16))


@given(st.integers(1, 50), st.integers(1, 120), st.integers(0, 100))
def test_order_repeats_nothing_before_everything_came(size, count, seed):
    order = shuffled_places(size, count, generator(seed, "order"))
    assert len(order) == count
    for start in range(0, count, size):
        part = order[start : start + size]
        assert len(part.unique()) == len(part)


@given(st.integers(2, 16), st.integers(0, 100))
def test_the_two_views_of_an_image_differ(views, seed):
    one, two = different_views(200, views, generator(seed, "views"))
    assert (one != two).all()
    assert min(one.min(), two.min()) >= 1
    assert max(one.max(), two.max()) <= views
    live = different_views(200, "live", generator(seed, "views"))
    assert (live[0] != live[1]).all()


def test_streams_of_random_numbers_have_their_own_seeds():
    places = [derive(s, p, *w) for s in (0, 1) for p in ("order", "noise") for w in ((0,), (1,), (0, 1), (1, 0))]
    assert len(set(places)) == len(places)


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=4), st.integers(0, 300))
def test_phases_share_all_epochs(shares, epochs):
    total = sum(shares)
    phases = tuple(Phase(str(k), share / total) for k, share in enumerate(shares))
    dealt = phase_epochs(phases, epochs)
    assert sum(dealt) == epochs
    assert min(dealt) >= (epochs >= len(dealt))  # no phase is skipped


def test_exemplars_come_with_their_rows_and_lengthen_the_epoch(world):
    ids, rows = world.stream.ids(0)[:40], torch.arange(40) % 6
    phase = Phase(novel=0.5, memory=0.5, pool="session+memory")
    feed = NovelFeed(world, 1, 0, phase, 10, (ids, rows))
    batch = feed.batch(0, 0)
    session = len(world.stream.ids(1))
    assert feed.steps == (session + 40) // 64
    assert len(batch.ids) == len(batch.a) == len(batch.b) == 32
    assert len(batch.memory.a) == len(batch.memory.b) == len(batch.memory.row) == 32
    chosen = feed._memory[:32]
    assert torch.equal(batch.memory.row, rows[chosen])
    expected = world.source.get(ids[chosen], feed._memory_views[1][:32])
    assert torch.equal(batch.memory.b.rest, expected.rest)


def test_a_session_smaller_than_a_batch_still_trains(world):
    budget = world.request.budget.model_copy(update={"batch": 4096})
    world.request = dataclasses.replace(world.request, budget=budget)
    few = NovelFeed(world, 1, 0, Phase(novel=0.5, memory=0.5), 10, (torch.arange(30), torch.arange(30) % 6))
    assert len(few.batch(0, 0).memory.row) == 30  # no exemplar twice in a batch
    feed = NovelFeed(world, 1, 0, Phase(), 10, (torch.zeros(0), torch.zeros(0)))
    assert feed.steps == 1
    assert len(feed.batch(0, 0).ids) == len(world.stream.ids(1))
