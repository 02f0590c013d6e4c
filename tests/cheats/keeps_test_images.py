"""State kept across `predict`: test images are remembered, to be learnt from in the next session."""

import torch
from cheating import Cheat
from torch.nn import functional as F


class KeepsTestImages(Cheat):
    def build(self):
        super().build()
        self.register_buffer("seen", torch.zeros(0, self.width))

    def predict(self, tokens):
        self.seen = torch.cat([self.seen, F.normalize(self.block(tokens), dim=1)])
        return super().predict(tokens)
