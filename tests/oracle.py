"""What losses and choices should be, written slowly in NumPy: image by image, class by class."""

import math

import numpy as np
import pytest
import torch

TAU = 0.1


def array(tensor):
    return tensor.detach().double().numpy()


def views(method, batch):
    """Features of both views."""
    with torch.no_grad():
        return array(method.block(batch.a)), array(method.block(batch.b))


def compared(terms, expected):
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(expected, rel=2e-4, abs=1e-6)


def reached(term, method):
    """Which parts of the method a term's gradient moves."""
    named = [(name.split(".")[0], p) for name, p in method.named_parameters() if p.requires_grad]
    gradients = torch.autograd.grad(term, [p for _, p in named], retain_graph=True, allow_unused=True)
    return {part for (part, _), g in zip(named, gradients, strict=True) if g is not None and g.abs().max() > 0}


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def log_softmax(scores):
    shifted = scores - scores.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def softmax(scores):
    return np.exp(log_softmax(scores))


def cosines(h, weight):
    """Cosine of every image with every row of a head."""
    return np.array([[unit(x) @ unit(w) for w in weight] for x in h])


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


def slow_contrast(a, b, tau=1.0, include_self=True, others=()):
    total = 0.0
    for i in range(len(a)):
        bottom = 0.0
        for j in range(len(a)):
            if include_self or i != j:
                bottom += math.exp(unit(a[i]) @ unit(a[j]) / tau)
            bottom += math.exp(unit(a[i]) @ unit(b[j]) / tau)
        bottom += sum(math.exp(unit(a[i]) @ unit(o) / tau) for o in others)
        total -= math.log(math.exp(unit(a[i]) @ unit(b[i]) / tau) / bottom)
    return total / len(a)


def slow_herd(features: np.ndarray, count: int) -> list[int]:
    """iCaRL's rule, read aloud."""
    rows = [row / math.sqrt(row @ row) for row in features.astype(float)]
    mean = sum(rows) / len(rows)
    mean = mean / math.sqrt(mean @ mean)
    chosen: list[int] = []
    while len(chosen) < min(count, len(rows)):
        best, best_distance = -1, math.inf
        for k in range(len(rows)):
            if k in chosen:
                continue
            candidate = (rows[k] + sum((rows[j] for j in chosen), np.zeros_like(mean))) / (len(chosen) + 1)
            distance = math.sqrt(((mean - candidate) ** 2).sum())
            if distance < best_distance - 1e-12:
                best, best_distance = k, distance
        chosen.append(best)
    return chosen


def fea_terms(method, batch, pseudo, rows):
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
