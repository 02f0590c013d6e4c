"""Ids: images lie class by class, perhaps shuffled with a key that everybody can read."""

import numpy as np
import torch
from cheating import Cheat, by_place, tightest


class Ids(Cheat):
    def guess(self, session, index, h):
        n = len(index)
        shuffled = torch.from_numpy(np.random.default_rng([0xC0C0, session.number]).permutation(n))
        rank = index.argsort().argsort()
        guesses = [
            by_place(rank, session.new),
            by_place(shuffled[rank], session.new),
            by_place(index - index.min(), session.new),
        ]
        return tightest(guesses, h, session.new)
