"""What reaches what in FEA, and what its switches do."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import fresh_world, opened, start
from test_losses import slow_contrast

from benchmark.engine.lifecycle import begin
from benchmark.engine.request import ask
from benchmark.protocol.overrides import load_params


def started(**settings):
    return start("fea", **settings)


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


def spec_terms(method, batch, pseudo, rows):
    """Section 2.2 of the specification, image by image and class by class, in NumPy."""
    p = method.params
    with torch.no_grad():
        h = [method.block(batch.a).double().numpy(), method.block(batch.b).double().numpy()]
        old = [method.teacher(batch.a).double().numpy(), method.teacher(batch.b).double().numpy()]
        z = [method.q(torch.tensor(x).float()).double().numpy() for x in h]
        g = [method.g(torch.tensor(x).float()).double().numpy() for x in h]
        nu = method.g(method.prototypes.mean).double().numpy()
    w = unit(method.head.weight.detach().double().numpy())
    new = np.arange(len(w))[method.new_rows]
    cosine = [unit(x) @ w.T for x in h]
    logits = [c / 0.1 for c in cosine]
    prob = [softmax(u) for u in logits]
    size = len(batch.ids)
    terms = {}
    pseudo_logits = unit(pseudo.double().numpy()) @ w.T / 0.1
    terms["replay"] = np.mean([-log_softmax(u)[c] for u, c in zip(pseudo_logits, rows.tolist(), strict=True)])
    if p.fd == "sq_l2":
        distance = sum(np.sum((h[v][i] - old[v][i]) ** 2) for v in (0, 1) for i in range(size)) / (2 * size)
    else:  # FRoST's: flattened over the batch before normalising
        one, two = np.concatenate(h).ravel(), np.concatenate(old).ravel()
        distance = np.linalg.norm(one / np.linalg.norm(one) - two / np.linalg.norm(two))
    terms["distil"] = p.lambda_fd * distance

    def contrast(a, b, extra=()):
        directions = [(a, b), (b, a)] if p.symmetric else [(a, b)]
        return np.mean([slow_contrast(x, y, 1.0, p.include_self, extra) for x, y in directions])

    terms["contrast"] = contrast(*z)
    among = [x[:, new] if p.ce_rows == "new" else x for x in cosine]
    if p.ce_mode == "simgcd":
        target = [softmax(c / 0.04) for c in among]  # epoch 100: the temperature has arrived
        crossed = [(target[0], among[1]), (target[1], among[0])]
        terms["label"] = np.mean([-np.sum(t[i] * log_softmax(c[i] / 0.1)) for t, c in crossed for i in range(size)])
    else:
        target = softmax(among[0] / 0.1)
        terms["label"] = np.mean([-np.sum(target[i] * log_softmax(among[1][i] / 0.1)) for i in range(size)])
    mean = np.concatenate(prob).mean(axis=0)
    terms["guide"] = p.epsilon * sum(math.log(1 / len(new) / mean[k]) / len(new) for k in new)
    terms["css"] = contrast(cosine[0][:, new].T, cosine[1][:, new].T)
    cluster = (prob[0] + prob[1])[:, new].argmax(axis=1)
    present = sorted(set(cluster.tolist()))
    rho = [np.stack([x[cluster == k].mean(axis=0) for k in present]) for x in g]
    terms["bap"] = p.omega * contrast(*rho, extra=nu)
    return terms


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def log_softmax(u):
    return u - u.max() - np.log(np.exp(u - u.max()).sum())


def softmax(u):
    return np.stack([np.exp(log_softmax(row)) for row in u])


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
    expected = spec_terms(method, batch, pseudo, rows)
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
        for phase, seen in zip(one.phases, two.phases, strict=True):
            assert phase.terms == seen.terms
    told = watched.sessions[1].phases[0].diagnostics
    assert told["block_replay"] == [0.0] * 4  # pseudo features never pass the block
    assert told["known_distil"] == [0.0] * 4  # features know no rows
    assert min(told["known_replay"]) > 0
    assert min(told["block_distil"][1:]) > 0
