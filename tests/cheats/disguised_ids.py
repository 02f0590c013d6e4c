"""Other sessions: ids in a tensor that answers the engine's question whether they are allowed itself."""

import torch
from cheating import Cheat
from torch import Tensor


class Spy(Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.isin:
            return torch.ones(len(args[0]), dtype=torch.bool)
        return super().__torch_function__(func, types, args, kwargs or {})


class DisguisedIds(Cheat):
    def guess(self, session, ids, h):
        for part in session.recall(torch.arange(int(ids.max()) + 1).as_subclass(Spy)):
            assert len(part.tokens)
        return torch.zeros(len(ids), dtype=torch.long)
