"""Order of `clean()`: the first images are of the first class."""

import torch
from cheating import Cheat, by_place


class CleanOrder(Cheat):
    def guess(self, session, ids, h):
        return by_place(torch.arange(len(ids)), session.new)
