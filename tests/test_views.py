"""View v of image i is always the same picture, and the clean one is what PIL makes of the published transform."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import picture_of
from PIL import Image

from benchmark.data.views import CLEAN, KEPT_SHARE, PRESETS, render_jitter, render_simgcd

IMAGES = np.stack([picture_of(32, label, 0) for label in range(10)])


def render(preset: str, index: list[int], view: list[int], size: int = 28) -> torch.Tensor:
    return PRESETS[preset](IMAGES[np.array(index) % 10], torch.tensor(index), torch.tensor(view), size)


@pytest.mark.parametrize("preset", ["simgcd", "jitter"])
@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 2**62)), min_size=1, max_size=6), st.randoms())
def test_a_picture_depends_on_image_and_view_alone(preset, pairs, random):
    alone = [render(preset, [i], [v])[0] for i, v in pairs]
    order = list(range(len(pairs)))
    random.shuffle(order)
    together = render(preset, [pairs[k][0] for k in order], [pairs[k][1] for k in order])
    for k, picture in zip(order, together, strict=True):
        assert torch.equal(picture, alone[k])


@pytest.mark.parametrize("preset", ["simgcd", "jitter"])
@pytest.mark.parametrize(("side", "size"), [(32, 112), (32, 224), (64, 224)])
def test_clean_view_is_resize_and_centre_crop(preset, side, size):
    """Bicubic to size / 0.875, then the middle: as PIL does it, to the byte."""
    image = picture_of(side, 3, 0)
    whole = round(size / KEPT_SHARE)
    edge = (whole - size) // 2
    expected = Image.fromarray(image).resize((whole, whole), Image.Resampling.BICUBIC)
    expected = np.asarray(expected.crop((edge, edge, edge + size, edge + size))).astype(int)
    got = PRESETS[preset](image[None], torch.tensor([0]), torch.tensor([CLEAN]), size)[0].permute(1, 2, 0).numpy()
    assert np.abs(got.astype(int) - expected).max() <= 1  # processors round the last bit of a byte differently


def test_augmented_views_are_crops_and_flips_of_the_resized_image():
    """With a picture whose every pixel tells its place: any crop within the room, flipped about half of the time."""
    place = np.zeros((1, 32, 32, 3), np.uint8)
    place[0, ..., 0], place[0, ..., 1] = np.arange(32)[:, None] * 7, np.arange(32)[None] * 7
    views = torch.arange(1, 401)
    pictures = render_simgcd(np.repeat(place, 400, 0), torch.zeros(400, dtype=torch.long), views, 28).float()
    tops, rising = pictures[:, 0, 0, 14], pictures[:, 1, 14, -1] > pictures[:, 1, 14, 0]
    assert 0.4 < rising.float().mean() < 0.6
    assert {round(top) for top in (tops / 7).tolist()} == {0, 1, 2, 3, 4}
    assert ((pictures[:, 0, -1, 14] - tops) > 0).all()  # never upside down


def test_simgcd_keeps_colours_and_jitter_does_not():
    grey = np.full((1, 32, 32, 3), (200, 100, 50), np.uint8)
    index, view = torch.zeros(20, dtype=torch.long), torch.arange(1, 21)
    plain, coloured = (r(np.repeat(grey, 20, 0), index, view, 28) for r in (render_simgcd, render_jitter))
    assert (plain == torch.tensor([200, 100, 50], dtype=torch.uint8).view(1, 3, 1, 1)).all()
    assert len({tuple(picture[:, 0, 0].tolist()) for picture in coloured}) > 15
    clean = render_jitter(grey, index[:1], torch.tensor([CLEAN]), 28)
    assert (clean == plain[:1]).all()
