"""Order of test images: the place alone gives the class."""

import torch
from cheating import Cheat, by_place


class PlaceOfTestImage(Cheat):
    def predict(self, tokens):
        return by_place(torch.arange(len(tokens)), len(self.mean))
