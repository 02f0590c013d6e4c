"""What reaches what in FEA, and what its switches do."""

import pytest
import torch
from test_honesty import opened

from benchmark.engine import begin
from benchmark.feed import NovelFeed
from benchmark.request import ask, load_params
from methods.memory import Prototypes


def started(**settings):
    method, world = opened("fea", **settings)
    begin(method, world, world.session(1), 0)
    feed = NovelFeed(world, 1, 0, method.phases()[0], 200, method.memory())
    with torch.no_grad():  # away from the teacher, where distillation has no gradient
        for parameter in method.block.block.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    return method, feed


def reached(term, method):
    """Which parts of the method a term's gradient moves."""
    named = [(name.split(".")[0], p) for name, p in method.named_parameters() if p.requires_grad]
    gradients = torch.autograd.grad(term, [p for _, p in named], retain_graph=True, allow_unused=True)
    return {part for (part, _), g in zip(named, gradients, strict=True) if g is not None and g.abs().max() > 0}


def test_which_term_reaches_which_part():
    method, feed = started()
    terms = method.losses(feed.batch(100, 0))
    assert {name: reached(term, method) for name, term in terms.items()} == {
        "replay": {"head"},
        "distil": {"block"},
        "contrast": {"block", "q"},
        "label": {"block", "head"},
        "guide": {"block", "head"},
        "css": {"block", "head"},
        "bap": {"block", "g"},
    }


def test_teacher_and_final_norm_are_frozen_and_in_no_group():
    method, _ = started()
    frozen = {name for name, p in method.named_parameters() if not p.requires_grad}
    assert {name for name in frozen if name.startswith("teacher.")}
    assert {"block.norm.weight", "block.norm.bias"} <= frozen
    assert not [name for name in frozen if name.startswith(("head", "q.", "g.", "block.block"))]


@pytest.mark.parametrize(
    ("settings", "gone"),
    [
        ({"n_p": 0}, {"replay"}),
        ({"fd": "none"}, {"distil"}),
        ({"lambda_fd": 0}, {"distil"}),
        ({"contrastive": False}, {"contrast"}),
        ({"ce_mode": "none"}, {"label"}),
        ({"epsilon": 0}, {"guide"}),
        ({"css": False}, {"css"}),
        ({"bap": False}, {"bap"}),
        ({"omega": 0}, {"bap"}),
    ],
)
def test_a_switched_off_term_is_absent_and_the_others_stay(settings, gone):
    method, feed = started()
    every = set(method.losses(feed.batch(100, 0)))
    method, feed = started(**settings)
    assert every - set(method.losses(feed.batch(100, 0))) == gone


def test_late_terms_are_absent_before_their_time():
    method, feed = started(ce_warmup=0.15)
    assert "label" not in method.losses(feed.batch(29, 0))
    assert "label" in method.losses(feed.batch(30, 0))
    assert "bap" not in method.losses(feed.batch(0, 0))


def test_omega_scales_bap_and_nothing_else():
    def terms(omega):
        torch.manual_seed(1)
        method, feed = started(omega=omega)
        torch.manual_seed(2)
        return method.losses(feed.batch(100, 0))

    one, two = terms(1.0), terms(2.0)
    assert torch.allclose(2 * one["bap"], two["bap"])
    assert all(torch.equal(one[name], two[name]) for name in one if name != "bap")


def test_literal_set_is_the_paper_to_the_letter():
    literal = ask("fea", params="fea-literal").params
    assert (literal.epsilon, literal.lambda_fd, literal.fd, literal.omega) == (0.1, 0.01, "sq_l2", 2.0)
    assert (literal.ce_rows, literal.ce_warmup, literal.ce_mode) == ("all", 0.0, "simgcd")
    assert load_params("fea-literal", "fea").method == "fea"


def test_prototypes_have_biased_deviations_and_lonely_classes_borrow_one():
    memory = Prototypes(2)
    memory.add(torch.tensor([[0.0, 0.0], [2.0, 4.0], [9.0, 9.0]]), torch.tensor([0, 0, 2]))
    assert memory.row.tolist() == [0, 2]
    assert memory.mean.tolist() == [[1, 2], [9, 9]]
    assert memory.deviation.tolist() == [[1, 2], [1, 2]]


def test_pseudo_features_have_the_stored_mean_and_deviation():
    torch.manual_seed(0)
    memory = Prototypes(3)
    memory.add(torch.randn(500, 3) * torch.tensor([1.0, 2.0, 3.0]) + 5, torch.arange(500) % 2)
    features, rows = memory.draw(20_000)
    assert rows.bincount().tolist() == [20_000, 20_000]
    assert torch.allclose(features[rows == 1].mean(0), memory.mean[1], atol=0.1)
    assert torch.allclose(features[rows == 1].std(0), memory.deviation[1], atol=0.1)
