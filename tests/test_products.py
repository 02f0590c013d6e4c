"""Whichever library multiplies: the same values, the same gradients, and the narrow networks keep their bits."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from methods import products
from methods.heads import Projector
from methods.products import FEW_ROWS, ONEDNN, FrozenLinear, Wide, is_wide, linear

INPUTS, OUTPUTS = 384, 512
needs_onednn = pytest.mark.skipif(ONEDNN is None, reason="this torch has no oneDNN")


def close(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """To float32's rounding: each product is a sum of some hundred terms."""
    return bool((got - expected).norm() <= 1e-5 * expected.norm())


@needs_onednn
@pytest.mark.parametrize("layout", ["rows", "columns", "expanded"])
def test_wide_layers_equal_plain_ones_in_value_and_gradient(layout):
    """Against float64, however inputs and gradients lie in memory."""
    torch.manual_seed(0)
    x, weight, bias = torch.randn(40, INPUTS), torch.randn(OUTPUTS, INPUTS), torch.randn(OUTPUTS)
    above = torch.randn(40, OUTPUTS)
    if layout == "columns":
        x, above = x.T.contiguous().T, above.T.contiguous().T
    if layout == "expanded":
        above = above[:1].expand(40, -1)
    given = [t.requires_grad_() for t in (x, weight, bias)]
    exact = [t.detach().double().requires_grad_() for t in given]
    got, expected = Wide.apply(*given), F.linear(*exact)
    assert close(got, expected)
    got.backward(above)
    expected.backward(above.double())
    for mine, theirs in zip(given, exact, strict=True):
        assert close(mine.grad, theirs.grad)


@needs_onednn
@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)], ids=str)
def test_wide_layers_give_gradients_only_where_they_are_wanted(wanted):
    given = [torch.randn(s).requires_grad_(w) for s, w in zip(((20, 384), (384, 384), (384,)), wanted, strict=True)]
    Wide.apply(*given).sum().backward()
    assert tuple(t.grad is not None for t in given) == wanted


@needs_onednn
def test_wide_layers_take_inputs_of_any_shape_as_plain_ones_do():
    """A method of one's own may send anything through a projector; torch says what does not fit."""
    torch.manual_seed(0)
    projector = Projector(INPUTS, (512, 512, 64))
    plain = nn.Sequential(*copy.deepcopy([*projector]))
    x = torch.randn(20, 3, INPUTS)
    assert torch.equal(projector(x), plain(x))
    projector(x).sum().backward()
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        projector(torch.randn(20, INPUTS - 1))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        FrozenLinear(INPUTS, OUTPUTS).requires_grad_(False)(torch.randn(20, 3, INPUTS - 1))


@needs_onednn
def test_gradients_of_gradients_are_those_of_a_plain_layer():
    torch.manual_seed(0)
    layer, found = nn.Linear(INPUTS, OUTPUTS), []
    for way in (linear, lambda one, x: one(x)):
        x = torch.ones(20, INPUTS, requires_grad=True)
        (slope,) = torch.autograd.grad(way(layer, x).square().sum(), x, create_graph=True)
        layer.zero_grad()
        slope.square().sum().backward()
        found.append(layer.weight.grad.clone())
    assert found[1].norm() > 0
    assert close(found[0], found[1].double())


@needs_onednn
def test_layers_of_the_trunk_give_gradients_to_whoever_asks():
    layer = FrozenLinear(INPUTS, OUTPUTS).requires_grad_(False)
    x = torch.randn(20, INPUTS, requires_grad=True)
    layer(x).sum().backward()
    assert close(x.grad, layer.weight.double().sum(0).expand(20, -1))


@needs_onednn
def test_who_multiplies():
    """Wide layers of many rows go to oneDNN, unless torch is told not to use it; nothing else does."""
    wide, narrow = nn.Linear(INPUTS, OUTPUTS), nn.Linear(96, 384)
    x = torch.randn(FEW_ROWS, INPUTS)
    assert is_wide(wide, x)
    assert not is_wide(narrow, torch.randn(FEW_ROWS, 96))
    assert not is_wide(wide.double(), x.double())
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False
    try:
        assert not is_wide(wide.float(), x)
    finally:
        torch.backends.mkldnn.enabled = before


def test_without_onednn_layers_are_multiplied_as_before(monkeypatch):
    monkeypatch.setattr(products, "ONEDNN", None)
    layer, x = nn.Linear(INPUTS, OUTPUTS), torch.randn(40, INPUTS)
    assert torch.equal(linear(layer, x), layer(x))


def test_projectors_of_the_embedded_network_keep_their_bits():
    """Published records of digits-t2 can be made again: its layers are narrow, and multiplied as they always were."""
    torch.manual_seed(0)
    projector, h = Projector(96, (256, 256, 64)), torch.randn(256, 96)
    plain = nn.Sequential(*copy.deepcopy([*projector]))
    assert torch.equal(projector(h), plain(h))
    projector(h).sum().backward()
    plain(h).sum().backward()
    for mine, theirs in zip(projector.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


@needs_onednn
def test_frozen_layers_equal_plain_ones_whoever_stands_beside():
    """Tokens of a picture must not depend on the pictures that pass the trunk with it."""
    torch.manual_seed(0)
    layer = FrozenLinear(INPUTS, OUTPUTS).requires_grad_(False)
    x = torch.randn(16, 65, INPUTS)
    whole = layer(x)
    assert close(whole, F.linear(x.double(), layer.weight.double(), layer.bias.double()))
    assert torch.equal(torch.cat([layer(one) for one in x.split(1)]), whole)


@needs_onednn
def test_the_same_product_twice_has_the_same_bits():
    torch.manual_seed(0)
    layer, x = nn.Linear(INPUTS, OUTPUTS), torch.randn(256, INPUTS)
    assert torch.equal(linear(layer, x), linear(layer, x))
