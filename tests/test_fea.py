"""What reaches what in FEA, and what its switches do."""

from pathlib import Path

import pytest
import torch
from conftest import fresh_world, opened, start
from oracle import fea_terms, reached

from benchmark.engine.lifecycle import begin
from benchmark.engine.request import ask
from benchmark.protocol.overrides import load_params


def started(**settings):
    return start("fea", **settings)


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


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"fd": "sq_l2", "lambda_fd": 0.01, "epsilon": 0.1, "ce_rows": "all"},
        {"ce_mode": "plain", "symmetric": True, "include_self": False, "sigma_shared": True},
    ],
    ids=["defaults", "letter", "others"],
)
def test_all_terms_equal_the_specification_written_out(settings):
    method, feed = started(**settings)
    batch = feed.batch(100, 0)
    torch.manual_seed(7)
    got = {name: term.item() for name, term in method.losses(batch).items()}
    torch.manual_seed(7)
    pseudo, rows = method.prototypes.draw(20, shared=method.params.sigma_shared)
    expected = fea_terms(method, batch, pseudo, rows)
    assert got.keys() == expected.keys()
    assert got == pytest.approx(expected, rel=2e-4, abs=2e-5)


def test_statistics_of_novel_images_come_from_the_new_rows():
    """Images that the whole classifier puts on old rows are stored under their best new row."""
    method, _ = started()
    session = fresh_world(ask("fea", views=2)).session(1)
    with torch.no_grad():  # two new rows that share the images between them, and old rows that take them all
        h = method.clean_features(session)
        method.head.weight[6], method.head.weight[7] = h[0], h[1]
        method.head.weight[0] = h.mean(dim=0)
    assert (method.head(h).argmax(dim=1) == 0).any()
    before = len(method.prototypes.row)
    method.end(session)
    assert method.prototypes.row[before:].tolist() == [6, 7]
    members = method.head(h)[:, 6:8].argmax(dim=1) == 1
    assert torch.allclose(method.prototypes.mean[before + 1], h[members].mean(dim=0), atol=1e-5)


@pytest.mark.parametrize("kept", [True, False])
def test_projectors_are_kept_or_made_anew(kept):
    method, world = opened("fea", keep_projectors=kept)
    begin(method, world, 1, 0)
    first = method.q[0].weight.detach().clone()
    begin(method, world, 2, 0)
    assert torch.equal(method.q[0].weight, first) == kept


def test_watching_the_gradients_changes_nothing(short_run):
    """docs/watched_fea.py trains as FEA does, and tells of every term how hard it pulls."""
    file = Path(__file__).parent.parent / "docs" / "watched_fea.py"
    plain, watched = short_run(method="fea"), short_run(method=f"{file}:WatchedFEA")
    for one, two in zip(plain.sessions, watched.sessions, strict=True):
        assert one.counts == two.counts
        for phase, other in zip(one.phases, two.phases, strict=True):
            assert phase.terms == other.terms
    logged = watched.sessions[1].phases[0].diagnostics
    assert logged["block_replay"] == [0.0] * 4  # pseudo features never pass the block
    assert logged["known_distil"] == [0.0] * 4  # features know no rows
    assert min(logged["known_replay"]) > 0
    assert min(logged["block_distil"][1:]) > 0
