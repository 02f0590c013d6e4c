"""Order of test images: they come class by class, so counting them as they come gives every class."""

import torch
from cheating import Cheat

from methods.contract import knob


class PlaceOfTestImage(Cheat):
    class Params(Cheat.Params):
        per_class: int = knob(60, "ours", "test images per class, which everybody can look up")

    def build(self):
        super().build()
        self.register_buffer("came", torch.zeros((), dtype=torch.long))

    def end(self, session):
        super().end(session)
        self.came = torch.zeros_like(self.came)

    def predict(self, tokens):
        rows = (self.came + torch.arange(len(tokens))) // self.params.per_class
        self.came = self.came + len(tokens)
        return rows.clamp(max=len(self.mean) - 1)
