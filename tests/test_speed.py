"""`bench speed`: its arithmetic against counts made by hand, and the command on a small network."""

import json
from contextlib import nullcontext

import pytest
import torch

from benchmark.prediction import predict, text
from benchmark.protocol.catalogue import load_backbone
from benchmark.protocol.protocols import load_protocol
from benchmark.speed import Speed, step_cost, trunk_flops
from benchmark.tokens.backbone import build_vit, split_vit
from benchmark.tricks import TRICKS
from methods.contract import Tokens


def base_sized():
    spec = load_backbone("vit-b16-dino")
    with torch.device("meta"):
        return split_vit(build_vit(spec), spec)


def test_operations_of_the_trunk_counted_by_hand():
    """ViT-B/16: 196 patches of 768 numbers; 11 blocks of 12 d² weights on 197 tokens, and attention among them."""
    trunk, _ = base_sized()
    patches = 2 * 196 * 768 * 768
    blocks = 11 * (2 * 197 * 12 * 768**2 + 2 * 2 * 197 * 197 * 768)
    assert trunk_flops(trunk) == patches + blocks


def test_cost_of_a_step_counted_by_hand():
    """64 images: 12 d² weights with one token, three times; 12 heads meet 197 tokens four times."""
    trunk, block = base_sized()
    stored = 768 * 4 + 196 * 768 * 2
    moved, flops = step_cost(block, trunk, 64, stored)
    weights = 12 * 768**2
    assert flops == 6 * 64 * weights + 8 * 64 * 12 * 197 * 768
    assert moved == 64 * stored + 8 * 4 * weights


def test_prediction_counts_images_and_steps():
    """cifar100-t5, paper: 25,000 x 10 + 2 x 25,000 x 200 pictures; 460,000 for a bank of 8 views."""
    made_up = dict.fromkeys(Speed.__dataclass_fields__, 0.0)
    speed = Speed(**made_up | {"batch": 64, "usual_step": 64.0, "our_step": 0.64, "trunk_images_per_second": 10.0})
    said = predict(speed, load_protocol("cifar100-t5"), "paper")
    assert said.usual == 25_000 * 10 + 2 * 25_000 * 200
    assert said.bank == (50_000 * 9 + 10_000) / 10
    assert said.training == pytest.approx(said.usual / 100)
    assert said.later_ratio == pytest.approx(100)
    assert said.ratio == pytest.approx(said.usual / (said.bank + said.training))


def test_the_command_measures_and_tells(bench):
    done = bench("speed", "--backbone", "digits-vit", "--batch", "8", "--threads", "1", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["schema"] == 1
    assert said["step_ratio"] == pytest.approx(said["usual_step"] / said["our_step"])
    assert said["step_over_roofline"] == pytest.approx(said["our_step"] / said["roofline_step"])
    rate = said["trunk_images_per_second"] * said["trunk_flops_per_image"]
    assert said["trunk_fraction_of_peak"] == pytest.approx(rate / said["peak_flops"])
    assert 0 < said["trunk_fraction_of_peak"] < 1
    assert [p["protocol"] for p in said["predicted_seconds"]] == ["cifar10-t2", "cifar100-t5", "tiny-t10"]
    speed = Speed(**{name: said[name] for name in Speed.__dataclass_fields__})
    assert "class token alone" in text(speed, [predict(speed, load_protocol("tiny-t10"), "paper")])


def test_tricks_are_priced_one_at_a_time(bench):
    done = bench("speed", "--tricks", "--backbone", "digits-vit", "--batch", "8", "--threads", "1", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [one["name"] for one in said["tricks"]] == [trick.name for trick in TRICKS]
    assert all(0 < one["low"] <= one["ratio"] <= one["high"] for one in said["tricks"])


@pytest.mark.parametrize("trick", [trick for trick in TRICKS if trick.reads_ahead], ids=lambda trick: trick.name)
def test_a_step_without_a_trick_gives_the_same(trick):
    """Up to rounding, for a wide block."""
    torch.manual_seed(0)
    _, last = split_vit(build_vit(load_backbone("vit-s14-dinov2-112")), load_backbone("vit-s14-dinov2-112"))
    tokens = Tokens(torch.randn(20, last.width), torch.randn(20, 64, last.width).half())
    above = torch.randn(20, last.width)
    found = []
    for way in (nullcontext(), trick.without()):
        last.zero_grad()
        with way:
            h = last(tokens)
            (h * above).sum().backward()
        found.append((h.detach(), torch.cat([p.grad.flatten() for p in last.block.parameters()])))
    for with_trick, without in zip(*found, strict=True):
        assert torch.linalg.vector_norm(with_trick - without) < 1e-5 * torch.linalg.vector_norm(without)
