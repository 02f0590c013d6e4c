"""Order of batches: the seed of the shuffle can be worked out, so a place in a batch is a place in the data."""

import torch
from cheating import Cheat, by_place

from benchmark.engine.feed import shuffled_places
from benchmark.seeds import generator
from methods.contract import Phase


class BatchOrder(Cheat):
    def build(self):
        super().build()
        self.register_buffer("met", torch.zeros(0, dtype=torch.long))
        self.register_buffer("place", torch.zeros(0, dtype=torch.long))

    def phases(self):
        return (Phase(),)

    def begin(self, session, phase):
        super().begin(session, phase)
        self.number, self.size = session.number, len(session.ids)

    def losses(self, batch):
        step = len(batch.ids)
        if batch.epoch == 0:
            taken = len(self.met)
            order = shuffled_places(self.size, self.size // step * step, generator(0, "order", self.number, 0, 0))
            self.place = torch.cat([self.place, order[taken : taken + step]])
            self.met = torch.cat([self.met, batch.ids])
        return {"nothing": 0.0 * self.head.weight.sum()}

    def guess(self, session, ids, h):
        by_id = dict(zip(self.met.tolist(), by_place_of(self.place, self.size, session.new).tolist(), strict=True))
        self.met, self.place = self.met[:0], self.place[:0]
        return torch.tensor([by_id.get(number, 0) for number in ids.tolist()])


def by_place_of(place, size, classes):
    return by_place(torch.arange(size), classes)[place]
