"""GM, and what all methods have in common, against slow forms."""

import numpy as np
import pytest
import torch
from conftest import opened, start, started_phases
from oracle import (
    TAU,
    array,
    compared,
    cosines,
    cross_entropy,
    log_softmax,
    pairs_term,
    reached,
    squared,
    views,
)
from torch.nn import functional as F

from methods.memory import densest, herd


def test_growing_as_specified():
    method, feed = start("gm", gamma_sd=2.0, topk=3)
    batch = feed.batch(3, 0)
    assert len(batch.ids) == len(batch.memory.row)  # as many exemplars as novel images
    h_a, h_b = views(method, batch)
    clustered = [np.exp(log_softmax(cosines(h, array(method.cluster.weight)) / TAU)) for h in (h_a, h_b)]
    with torch.no_grad():
        static = np.concatenate([array(method.static(v)) for v in (batch.memory.a, batch.memory.b)])
    dynamic = np.concatenate(views(method, batch.memory))
    agreed = np.mean([x @ y / np.linalg.norm(x) / np.linalg.norm(y) for x, y in zip(static, dynamic, strict=True)])
    expected = {
        "pairs": pairs_term(h_a, *clustered, 3),
        "consistency": squared(*clustered),
        "distil": 2.0 * (1 - agreed),  # the specification's -cos, shifted so that agreement costs nothing
    }
    compared(method.losses(batch), expected)


@pytest.mark.parametrize("inference", ["nme_closest", "unified"])
def test_merging_as_specified(inference):
    method, feed = start("gm", phase=1, inference=inference)
    batch = feed.batch(3, 0)
    h = np.concatenate([*views(method, batch), *views(method, batch.memory)])
    believed = dict(zip(method.believed_ids.tolist(), method.believed_row.tolist(), strict=True))
    rows = [believed[i] for i in batch.ids.tolist()] * 2 + batch.memory.row.tolist() * 2
    assert set(batch.memory.row.tolist()) <= set(range(6))  # exemplars of known classes alone
    columns = method.mean_row.tolist()
    terms = method.losses(batch)
    near = cosines(h, array(method.mean)) / 0.1
    with torch.no_grad():
        static = np.concatenate([array(method.static(v)) for v in (batch.memory.a, batch.memory.b)])
    expected = {
        "merge": cross_entropy(near, [columns.index(row) for row in rows]),
        "distil": 1 - np.mean([cosines([x], [y])[0, 0] for x, y in zip(static, h[-len(static) :], strict=True)]),
    }
    compared({name: terms[name] for name in expected}, expected)
    assert ("unify" in terms) == (inference == "unified")
    if inference == "unified":
        compared({"unify": terms["unify"]}, {"unify": cross_entropy(cosines(h, array(method.head.weight)) / TAU, rows)})
        assert reached(terms["unify"], method) == {"head"}
    assert reached(terms["merge"], method) == reached(terms["distil"], method) == {"block"}


def test_without_replay_the_merge_is_a_plain_epoch():
    method, feed = start("gm", phase=1, replay=False)
    assert (feed.steps, len(feed.batch(0, 0).ids), feed.batch(0, 0).memory) == (len(feed.ids) // 64, 64, None)
    assert set(method.losses(feed.batch(0, 0))) == {"merge"}


def test_exemplars_of_gm_are_herded_among_the_dense_and_its_means_are_theirs():
    built, world = opened("gm", exemplars=4)
    phases = started_phases(built, world)
    next(phases)
    with torch.no_grad():  # the branches must differ before the means are made, or either would do
        for parameter in built.block.block.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    next(phases)
    session = world.session(1, built.memory()[0])
    with torch.no_grad():
        h = built.clean_features(session)
        scores = built.cluster(h)
        rows, dense = 6 + scores.argmax(dim=1), densest(scores, 15, 0.5)
        ids = torch.cat([part.ids for part in session.clean()])
        for row in rows.unique():
            members = torch.nonzero((rows == row) & dense).squeeze(1)
            members = members if len(members) else torch.nonzero(rows == row).squeeze(1)
            chosen = built.chosen.ids[built.chosen.row == row]
            assert chosen.tolist() == ids[members[herd(h[members], 4)]].tolist()
            picked = F.normalize(torch.cat([built.block(part.tokens) for part in session.recall(chosen)]), dim=1)
            place = built.mean_row.tolist().index(row)
            assert torch.allclose(built.mean[place], F.normalize(picked.mean(dim=0), dim=0), atol=1e-6)
        for row in range(6):  # base classes as the static branch sees them
            chosen = built.exemplars.ids[built.exemplars.row == row]
            static, growing = (
                F.normalize(
                    F.normalize(torch.cat([branch(part.tokens) for part in session.recall(chosen)]), dim=1).mean(0),
                    dim=0,
                )
                for branch in (built.static, built.block)
            )
            assert len(chosen) == 4
            assert torch.allclose(built.mean[row], static, atol=1e-6)
            assert not torch.allclose(static, growing, atol=1e-3)
        assert len(built.exemplars) == 24  # the old ones only, until the session ends
        built.end(session)
        assert len(built.exemplars) == 24 + 4 * len(rows.unique())


def test_branches_are_unified_by_a_moving_average():
    built, world = opened("gm", ema_beta=0.9)
    _grow, _merge = started_phases(built, world)
    with torch.no_grad():
        for parameter in built.block.parameters():
            parameter.add_(torch.randn_like(parameter))
    static = [p.clone() for p in built.static.parameters()]
    with torch.no_grad():
        built.end(world.session(1, built.memory()[0]))
    for before, after, dynamic in zip(static, built.static.parameters(), built.block.parameters(), strict=True):
        assert torch.allclose(after, 0.9 * before + 0.1 * dynamic, atol=1e-5)


def test_gm_asks_the_branch_that_is_closer():
    built, world = opened("gm")
    _grow, _merge = started_phases(built, world)
    with torch.no_grad():
        for parameter in built.block.block.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
        tokens = next(world.session(1).clean()).tokens
        near = [
            [min((float(np.linalg.norm(x - m)), int(r)) for m, r in zip(array(built.mean), built.mean_row, strict=True))
             for x in array(F.normalize(branch(tokens), dim=1))]
            for branch in (built.static, built.block)
        ]  # fmt: skip
        expected = [min(pair)[1] for pair in zip(*near, strict=True)]
        assert built.predict(tokens).tolist() == expected
    assert {s < d for s, d in zip(*near, strict=True)} == {True, False}  # either branch is asked


@pytest.mark.parametrize(
    ("name", "settings", "gone"),
    [
        ("frost", {"n_p": 0}, {"replay"}),
        ("frost", {"lambda_proto": 0}, {"replay"}),
        ("frost", {"w_kd": 0}, {"distil"}),
        ("frost", {"w_bce": 0}, {"pairs"}),
        ("frost", {"c_inc": 0}, {"label"}),
        ("frost", {"w_consistency": 0}, {"consistency"}),
        ("autonovel", {"w_consistency": 0}, {"consistency"}),
        ("autonovel", {"w_bce": 0}, {"pairs"}),
        ("autonovel", {"c_inc": 0}, {"label"}),
        ("gm", {"w_bce": 0}, {"pairs"}),
        ("gm", {"gamma_sd": 0}, {"distil"}),
        ("simgcd", {"epsilon": 0}, {"guide"}),
        ("simgcd", {"sup_weight": 0}, {"classify", "group"}),
    ],
)
def test_a_switched_off_term_is_absent_and_the_others_stay(name, settings, gone):
    def terms(**changed):
        method, feed = start(name, **changed)
        return set(method.losses(feed.batch(100, 0)))

    assert terms() - terms(**settings) == gone


def test_which_term_reaches_which_part():
    def table(name, phase=0):
        method, feed = start(name, phase)
        return {term: reached(value, method) for term, value in method.losses(feed.batch(150, 0)).items()}

    assert table("frost") == {
        "replay": {"head"},
        "distil": {"block"},
        "pairs": {"block", "novel"},
        "consistency": {"block", "novel"},
        "label": {"block", "head"},  # labels carry no gradient back to the novel head
    }
    assert table("autonovel") == {
        "pairs": {"block", "novel"},
        "consistency": {"block", "head", "novel"},
        "label": {"block", "head"},
    }
    assert table("simgcd") == {
        "classify": {"block", "head"},
        "group": {"block", "q"},
        "contrast": {"block", "q"},
        "guide": {"block", "head"},
        "label": {"block", "head"},
    }
    assert table("gm") == {
        "pairs": {"block", "cluster"},
        "consistency": {"block", "cluster"},
        "distil": {"block"},
    }


def test_diagnostics_by_hand():
    method, feed = start("frost", topk=2)
    batch = feed.batch(0, 0)
    with torch.no_grad():
        h, old = method.block(batch.a), method.teacher(batch.a)
        figures = {name: float(value) for name, value in method.diagnose(batch).items()}
        rows, novel = method.head(h).argmax(1).tolist(), (6 + method.novel(h).argmax(1)).tolist()
    sets = [frozenset(np.argsort(-row)[:2].tolist()) for row in h.numpy()]
    same = [sets[i] == sets[j] for i in range(len(sets)) for j in range(len(sets)) if i != j]
    moved = [np.linalg.norm(x - y) / np.linalg.norm(y) for x, y in zip(h.numpy(), old.numpy(), strict=True)]
    assert figures == pytest.approx(
        {
            "share_on_new_rows": np.mean([row >= 6 for row in rows]),
            "empty_rows": 2 - len({row for row in rows if row >= 6}),
            "positive_pairs": np.mean(same),
            "heads_agree": np.mean([a == b for a, b in zip(rows, novel, strict=True)]),
            "distance_to_teacher": np.mean(moved),
        },
        rel=1e-4,
    )
    gm, feed = start("gm")
    batch = feed.batch(0, 0)
    with torch.no_grad():
        expected = F.cosine_similarity(gm.block(batch.memory.a), gm.static(batch.memory.a)).mean()
        assert torch.allclose(gm.diagnose(batch)["branch_cosine"], expected)
    assert set(gm.diagnose(batch)) == {"positive_pairs", "branch_cosine"}  # the new classes have no means yet
    gm, feed = start("gm", phase=1)
    assert {"share_on_new_rows", "empty_rows"} <= set(gm.diagnose(feed.batch(0, 0)))
