"""State kept across `predict`: how many images came before says which class is next."""

import torch
from cheating import Cheat


class CallCounter(Cheat):
    def build(self):
        super().build()
        self.register_buffer("came", torch.zeros((), dtype=torch.long))

    def predict(self, tokens):
        rows = (self.came + torch.arange(len(tokens))) // 20 % len(self.mean)
        self.came = self.came + len(tokens)
        return rows
