"""Loss terms written slowly in NumPy, to compare with."""

import math

import numpy as np
import pytest
import torch

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
