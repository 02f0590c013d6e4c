"""GM, FRoST, AutoNovel and SimGCD*: every term against the specification written out in NumPy, image by image."""

import math

import numpy as np
import pytest
import torch
from conftest import opened, start, started_phases
from test_fea import reached
from test_losses import slow_contrast
from torch.nn import functional as F

from methods.memory import densest, herd

TAU = 0.1


def cosines(h, weight):
    """Cosine of every image with every row of a head."""
    unit = lambda v: v / np.linalg.norm(v)  # noqa: E731
    return np.array([[unit(x) @ unit(w) for w in weight] for x in h])


def log_softmax(scores):
    return scores - np.array([[math.log(sum(math.exp(s) for s in row))] for row in scores])


def cross_entropy(scores, labels):
    return -np.mean([log_softmax(scores)[i, label] for i, label in enumerate(labels)])


def pairs_term(h_a, p_a, p_b, top):
    sets = [set(np.argsort(-row)[:top].tolist()) for row in h_a]
    total = 0.0
    for i in range(len(h_a)):
        for j in range(len(h_a)):
            chance = float(p_a[i] @ p_b[j])
            total -= math.log(chance + 1e-7) if sets[i] == sets[j] else math.log(1 - chance + 1e-7)
    return total / len(h_a) ** 2


def squared(p_a, p_b):
    return sum((x - y) ** 2 for x, y in zip(p_a.ravel(), p_b.ravel(), strict=True)) / p_a.size


def array(tensor):
    return tensor.detach().double().numpy()


def views(method, batch):
    with torch.no_grad():
        return array(method.block(batch.a)), array(method.block(batch.b))


def compared(terms, expected):
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(expected, rel=2e-4, abs=1e-6)


@pytest.mark.parametrize(("epoch", "settings"), [(20, {}), (150, {"c_inc": 1.0, "w_bce": 2.0}), (199, {"ramp": 0.75})])
def test_autonovel_as_specified(epoch, settings):
    method, feed = start("autonovel", **settings)
    p, batch = method.params, feed.batch(epoch, 0)
    h_a, h_b = views(method, batch)
    novel = [log_softmax(cosines(h, array(method.novel.weight)) / TAU) for h in (h_a, h_b)]
    joint = [log_softmax(cosines(h, array(method.head.weight)) / TAU) for h in (h_a, h_b)]
    ramp = math.exp(-5 * (1 - min(epoch, p.ramp * 200) / (p.ramp * 200)) ** 2)
    steady = squared(*map(np.exp, joint)) + squared(*map(np.exp, novel))
    expected = {
        "pairs": p.w_bce * pairs_term(h_a, *map(np.exp, novel), p.topk),
        "consistency": p.w_consistency * ramp * steady,
        "label": p.c_inc * ramp * cross_entropy(joint[0], 6 + novel[0].argmax(1)),
    }
    compared(method.losses(batch), expected)


def test_autonovel_concat_leaves_the_unified_head_alone_and_appends_the_novel_one():
    built, world = opened("autonovel", variant="concat")
    (feed,) = started_phases(built, world)
    terms = built.losses(feed.batch(150, 0))
    assert set(terms) == {"pairs", "consistency"}
    assert all(reached(term, built) == {"block", "novel"} for term in terms.values())
    before = built.head.weight.detach().clone()
    with torch.no_grad():
        built.end(world.session(1))
        h = built.block(feed.batch(0, 0).a)
        whole = torch.cat([built.head(h)[:, :6], built.novel(h)], dim=1)
    assert torch.equal(built.head.weight[:6], before[:6])
    assert torch.equal(built.predict(feed.batch(0, 0).a), whole.argmax(dim=1))


@pytest.mark.parametrize(("epoch", "settings"), [(20, {}), (199, {"ramp": 0.75, "sigma_shared": False, "c_inc": 0.5})])
def test_frost_as_specified(epoch, settings):
    method, feed = start("frost", **settings)
    p, batch = method.params, feed.batch(epoch, 0)
    h_a, h_b = views(method, batch)
    with torch.no_grad():
        old = array(method.teacher(batch.a))
    novel = [log_softmax(cosines(h, array(method.novel.weight)) / TAU) for h in (h_a, h_b)]
    joint = cosines(h_a, array(method.head.weight)) / TAU
    ramp = math.exp(-5 * (1 - min(epoch, p.ramp * 200) / (p.ramp * 200)) ** 2)
    torch.manual_seed(7)
    noise = array(torch.randn(p.n_p, 6, method.width))
    mean, deviation = array(method.prototypes.mean), array(method.prototypes.deviation)
    if p.sigma_shared:
        deviation = np.repeat(deviation.mean(0, keepdims=True), 6, axis=0)
    pseudo = [(mean[c] + deviation[c] * noise[i, c], c) for i in range(p.n_p) for c in range(6)]
    replayed = cosines([x for x, _ in pseudo], array(method.head.weight)) / TAU
    moved = h_a / np.sqrt((h_a**2).sum()) - old / np.sqrt((old**2).sum())
    expected = {
        "pairs": pairs_term(h_a, *map(np.exp, novel), p.topk),
        "consistency": p.w_consistency * ramp * squared(*map(np.exp, novel)),
        "label": p.c_inc * ramp * cross_entropy(joint, 6 + novel[0].argmax(1)),
        "replay": cross_entropy(replayed, [c for _, c in pseudo]),
        "distil": 10 * math.sqrt((moved**2).sum()),
    }
    torch.manual_seed(7)
    compared(method.losses(batch), expected)


def test_frost_stores_what_its_novel_head_believes():
    built, world = opened("frost")
    (_,) = started_phases(built, world)
    session = world.session(1)
    with torch.no_grad():
        built.end(session)
        h = built.clean_features(session)
        believed = 6 + built.novel(h).argmax(dim=1)
    for row in believed.unique():
        place = built.prototypes.row.tolist().index(row)
        own = h[believed == row]
        assert torch.allclose(built.prototypes.mean[place], own.mean(dim=0), atol=1e-6)
        assert torch.allclose(built.prototypes.deviation[place], (own.var(dim=0) + 1e-5).sqrt(), atol=1e-6)


@pytest.mark.parametrize(
    ("epoch", "settings"),
    [
        (10, {}),
        (199, {}),
        (10, {"ce_warmup": 0.0}),
        (60, {"ce_rows": "all", "epsilon": 0.1}),
        (60, {"ce_rows": "new", "epsilon": 1.0}),
    ],
)
def test_simgcd_as_specified(epoch, settings):
    method, feed = start("simgcd", **settings)
    p, batch = method.params, feed.batch(epoch, 0)
    new, old = views(method, batch), views(method, batch.memory)
    everything = [np.concatenate([new[v], old[v]]) for v in (0, 1)]
    with torch.no_grad():
        z = [array(method.q(torch.tensor(h).float())) for h in everything]
        z_old = [array(method.q(torch.tensor(h).float())) for h in old]
    weight, rows = array(method.head.weight), batch.memory.row.tolist()
    cosine = [cosines(h, weight) for h in (everything if p.ce_rows == "all" else new)]
    if p.ce_rows == "new":
        cosine = [c[:, 6:] for c in cosine]
    mean = np.exp(log_softmax(cosines(np.concatenate(new), weight) / TAU)).mean(0)
    grouped = np.concatenate(z_old)
    grouped = grouped / np.linalg.norm(grouped, axis=1, keepdims=True)
    label, total = rows * 2, 0.0
    for i in range(len(label)):
        others = [j for j in range(len(label)) if j != i]
        bottom = sum(math.exp(grouped[i] @ grouped[j] / 0.07) for j in others)
        same = [j for j in others if label[j] == label[i]]
        total -= np.mean([math.log(math.exp(grouped[i] @ grouped[j] / 0.07) / bottom) for j in same])
    both_ways = (slow_contrast(*z, include_self=False) + slow_contrast(*z[::-1], include_self=False)) / 2
    expected = {
        "classify": 0.35 * cross_entropy(cosines(np.concatenate(old), weight) / TAU, label),
        "group": 0.35 * total / len(label),
        "contrast": 0.65 * both_ways,
        "guide": 0.65 * p.epsilon * sum(0.5 * math.log(0.5 / mean[k]) for k in (6, 7)),
    }
    if epoch >= p.ce_warmup * 200:
        sharp = [*np.linspace(0.07, 0.04, 30), *[0.04] * 170][epoch]
        targets = [np.exp(log_softmax(c / sharp)) for c in cosine]
        student = [log_softmax(c / TAU) for c in cosine]
        crossed = sum((targets[v] * student[1 - v]).sum(1).mean() for v in (0, 1))
        expected["label"] = -0.65 * crossed / 2
    compared(method.losses(batch), expected)


def test_simgcd_without_exemplars_has_no_terms_of_theirs():
    method, feed = start("simgcd", exemplars=0)
    assert feed.batch(100, 0).memory is None
    assert len(feed.batch(100, 0).ids) == 64  # a whole batch: the ablation changes the exemplars alone
    assert set(method.losses(feed.batch(100, 0))) == {"contrast", "guide", "label"}
    assert "guide" not in start("simgcd", epsilon=0.0)[0].losses(feed.batch(100, 0))


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
    believed = dict(zip(method.believed_index.tolist(), method.believed_row.tolist(), strict=True))
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
