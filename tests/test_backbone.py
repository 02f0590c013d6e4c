"""The class-token path is exact, and only what should be trained is."""

import copy
from importlib.resources import files

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from benchmark.errors import DataError, UsageError
from benchmark.protocol.catalogue import load_backbone, weight_file
from benchmark.protocol.models import Backbone
from benchmark.tokens.backbone import (
    CPU_UNITS,
    LastBlock,
    build_vit,
    has_bfloat16_units,
    open_backbone,
    parameter_count,
    require_units,
    split_vit,
)
from benchmark.tokens.kernels import Attend
from benchmark.tokens.memory import MemoryPool
from methods.contract import Tokens
from methods.products import FEW_ROWS

WIDTH, HEADS = 48, 4


def small_vit(**options) -> VisionTransformer:
    torch.manual_seed(0)
    vit = VisionTransformer(
        img_size=32, patch_size=8, embed_dim=WIDTH, depth=2, num_heads=HEADS, num_classes=0, **options
    )
    for parameter in vit.parameters():  # biases and gains away from their starting points of 0 and 1
        nn.init.normal_(parameter, 0.0 if parameter.ndim > 1 else 0.5, 0.2)
    return vit


def spec(size: int = 32) -> Backbone:
    return Backbone(
        name="small",
        architecture="vit",
        weights=None,
        sha256=None,
        image_size=size,
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        projector=(8, 8),
        trained_on="nothing",
        saw_novel_classes=False,
    )


SHAPES = [{}, {"init_values": 0.1}, {"qkv_bias": False}, {"reg_tokens": 2}]


@pytest.mark.parametrize("count", [FEW_ROWS - 1, FEW_ROWS + 4])
@pytest.mark.parametrize("options", SHAPES, ids=str)
def test_class_token_path_equals_the_whole_network(options, count):
    """Values within 1e-5; each parameter's gradient within 1e-4 of its own norm, the packed qkv bias taken whole."""
    whole = small_vit(**options)
    trunk, last = split_vit(copy.deepcopy(whole), spec())
    assert last.fast
    pixels, weight = torch.rand(count, 3, 32, 32), torch.randn(count, WIDTH)
    expected = whole.forward_features((pixels - 0.5) / 0.5)[:, 0]
    got = last(trunk(pixels))
    assert torch.allclose(got, expected, atol=1e-5, rtol=1e-5)
    (expected * weight).sum().backward()
    (got * weight).sum().backward()
    for name, parameter in last.block.named_parameters():
        reference = whole.blocks[-1].get_parameter(name).grad
        assert reference.norm() > 0, name
        assert (parameter.grad - reference).norm() <= 1e-4 * reference.norm(), name


@pytest.mark.parametrize("stored", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("together", [1, 3, 64])
def test_attention_by_the_cacheful_gives_the_bits_of_the_plain_formula(monkeypatch, together, stored):
    """However many images are taken at a time, and however the tokens are stored; value and gradient."""
    torch.manual_seed(0)
    rest = torch.randn(7, 30, WIDTH).to(stored)
    probe, x0_hat, above = torch.randn(7, HEADS, WIDTH), torch.randn(7, WIDTH), torch.randn(7, HEADS, WIDTH)
    first, second = (probe.clone().requires_grad_() for _ in range(2))
    others = rest.float()
    own = (first * x0_hat[:, None]).sum(2, keepdim=True)
    weight = torch.cat([own, torch.bmm(first, others.transpose(1, 2))], dim=2).softmax(dim=2)
    expected = torch.bmm(weight[:, :, 1:], others) + weight[:, :, :1] * x0_hat[:, None]
    monkeypatch.setattr("benchmark.tokens.kernels.CACHED_BYTES", together * 4 * rest[0].numel())
    got = Attend.apply(second, x0_hat, rest, MemoryPool())
    (expected * above).sum().backward()
    (got * above).sum().backward()
    assert torch.equal(got, expected)
    assert torch.equal(second.grad, first.grad)


def test_tokens_are_constants():
    trunk, last = split_vit(small_vit(), spec())
    tokens = trunk(torch.rand(2, 3, 32, 32))
    with pytest.raises(UsageError, match="constants"):
        last(Tokens(tokens.cls.requires_grad_(), tokens.rest))


@pytest.mark.parametrize("options", [{"qk_norm": True}, {"proj_drop_rate": 0.5}, {"drop_path_rate": 0.5}], ids=str)
def test_other_blocks_fall_back_to_the_plain_block(options):
    whole = small_vit(**options).eval()
    trunk, last = split_vit(copy.deepcopy(whole), spec())
    assert not last.fast
    pixels = torch.rand(3, 3, 32, 32)
    expected = whole.forward_features((pixels - 0.5) / 0.5)[:, 0]
    assert torch.allclose(last(trunk(pixels)), expected, atol=1e-5)


def test_vit_b16_trains_exactly_its_last_block():
    with torch.device("meta"):
        vit = build_vit(load_backbone("vit-b16-dino"))
        last = LastBlock(vit.blocks[-1], vit.norm)
    assert parameter_count(last) == 7_087_872
    assert last.fast


def test_one_step_moves_the_last_block_and_nothing_else():
    trunk, last = split_vit(small_vit(), spec())
    before = {name: tensor.clone() for name, tensor in [*trunk.state_dict().items(), *last.norm.state_dict().items()]}
    block = {name: tensor.clone() for name, tensor in last.block.state_dict().items()}
    optimiser = torch.optim.SGD([p for m in (trunk, last) for p in m.parameters() if p.requires_grad], lr=0.1)
    last(trunk(torch.rand(4, 3, 32, 32))).square().sum().backward()
    optimiser.step()
    after = {**trunk.state_dict(), **last.norm.state_dict()}
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(not torch.equal(block[name], tensor) for name, tensor in last.block.state_dict().items())


def test_tokens_can_be_indexed_and_joined():
    tokens = Tokens(torch.arange(4.0)[:, None], torch.arange(8.0).view(4, 2, 1))
    again = Tokens.cat([tokens[:2], tokens[torch.tensor([2, 3])]])
    assert torch.equal(again.cls, tokens.cls)
    assert torch.equal(again.rest, tokens.rest)


def test_shipped_weights_are_small_and_registered():
    entry = load_backbone("digits-vit")
    path = weight_file(entry, None)
    assert path.stat().st_size <= 2_000_000
    open_backbone(entry, path)


def test_weights_that_do_not_fit_are_refused(tmp_path):
    entry = load_backbone("digits-vit")
    wrong = tmp_path / "w.safetensors"
    wrong.write_bytes((files("protocols") / "backbones.yaml").read_bytes())
    with pytest.raises(DataError, match="not a readable"):
        open_backbone(entry, wrong)
    other = entry.model_copy(update={"vit": entry.vit | {"depth": 5}})
    with pytest.raises(DataError, match=r"lacks 'blocks\.4"):
        open_backbone(other, weight_file(entry, None))


def test_a_bfloat16_trunk_rounds_and_nothing_else_does():
    """Near float32 but not equal; tokens come out in float32, and the trained block is as it was."""
    torch.manual_seed(1)
    pixels = torch.rand(6, 3, 32, 32)
    exact, block = split_vit(small_vit(), spec())
    rounded, same = split_vit(small_vit(), spec(), "bfloat16")
    one, two = exact(pixels), rounded(pixels)
    assert (two.cls.dtype, two.rest.dtype) == (torch.float32, torch.float32)
    for a, b in ((one.cls, two.cls), (one.rest, two.rest)):
        off = float((a - b).norm() / a.norm())
        assert 1e-5 < off < 0.03
    for name, value in same.state_dict().items():
        assert torch.equal(value, block.state_dict()[name]), name
    assert torch.equal(two.cls.bfloat16().float(), two.cls) is False  # what runs through the blocks is not rounded


def test_a_machine_without_units_refuses_bfloat16(monkeypatch, short_run, tmp_path):
    require_units("float32", torch.device("cpu"))
    monkeypatch.setattr("benchmark.tokens.backbone.has_bfloat16_units", lambda _: False)
    with pytest.raises(UsageError, match="this processor has no units for it"):
        short_run(settings={"shared.trunk": "bfloat16"})
    assert not [*(tmp_path / "results").rglob("*.json")]


def test_units_are_asked_of_the_device(monkeypatch):
    for name in CPU_UNITS:
        assert hasattr(torch.cpu, name)  # if torch renames them, nobody gets bfloat16: say it here
        monkeypatch.setattr(torch.cpu, name, lambda: True)
    assert has_bfloat16_units(torch.device("cpu"))
    assert not has_bfloat16_units(torch.device("meta"))
    for name in CPU_UNITS:
        monkeypatch.delattr(torch.cpu, name)
    assert not has_bfloat16_units(torch.device("cpu"))


def test_the_trunk_s_format_is_part_of_the_question_only_where_it_was_chosen(short_run, monkeypatch):
    monkeypatch.setattr("benchmark.tokens.backbone.has_bfloat16_units", lambda _: True)
    plain, rounded = short_run(), short_run(settings={"shared.trunk": "bfloat16"})
    assert "trunk" not in plain.question.shared
    assert rounded.changed == plain.changed | {"shared.trunk": "bfloat16"}
    assert rounded.settings["shared.trunk"] == "bfloat16"
    assert rounded.sessions != plain.sessions
