"""Ids: images lie class by class, perhaps shuffled with a key that everybody can read."""

import numpy as np
import torch
from cheating import Cheat, by_place, tightest


class Ids(Cheat):
    def guess(self, session, ids, h):
        n = len(ids)
        shuffled = torch.from_numpy(np.random.default_rng([0xC0C0, session.number]).permutation(n))
        rank = ids.argsort().argsort()
        guesses = [
            by_place(rank, session.new),
            by_place(shuffled[rank], session.new),
            by_place(ids - ids.min(), session.new),
        ]
        return tightest(guesses, h, session.new)
