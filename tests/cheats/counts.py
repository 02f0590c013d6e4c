"""Counts: how many images come together, and how many there are in all."""

import torch
from cheating import Cheat


class Counts(Cheat):
    def guess(self, session, ids, h):
        sizes = [len(part.ids) for part in session.clean()]
        part = torch.cat([torch.full((size,), k) for k, size in enumerate(sizes)])
        return (part if len(sizes) > 1 else torch.arange(len(ids)) * len(sizes)) % session.new
