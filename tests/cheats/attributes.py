"""Attributes: whatever can be reached from what a method is handed, by attributes, containers, closures and owners."""

import numpy as np
import torch
from cheating import Cheat, tightest
from torch import Tensor


def reach(thing, seen, depth=12):
    """Every object below a thing; frames and the garbage collector are not asked."""
    if depth == 0 or id(thing) in seen or isinstance(thing, str | bytes | int | float | type | None):
        return
    seen[id(thing)] = thing
    yield thing
    below = [*getattr(thing, "__dict__", {}).values()]
    below += thing.values() if isinstance(thing, dict) else thing if isinstance(thing, list | tuple | set) else ()
    below += [cell.cell_contents for cell in getattr(thing, "__closure__", None) or ()]
    below += [
        getattr(thing, name) for name in ("__self__", "__func__", "args", "keywords", "func") if hasattr(thing, name)
    ]
    for one in below:
        yield from reach(one, seen, depth - 1)


class Attributes(Cheat):
    def guess(self, session, ids, h):
        below = [*reach([session, session.clean, session.recall, self.block, self.head, self.params], {})]
        asked = ids.tolist()
        maps = [thing for thing in below if isinstance(thing, dict) and asked[0] in thing and asked[-1] in thing]
        places = [ids, torch.arange(len(ids))]
        places += [torch.tensor([found[number] for number in asked]) for found in maps]
        guesses = [torch.zeros(len(ids), dtype=torch.long)]
        for thing in below:
            if isinstance(thing, Tensor | np.ndarray):
                array = torch.as_tensor(np.asarray(thing.detach() if isinstance(thing, Tensor) else thing))
                if array.ndim == 1 and not array.is_floating_point():
                    fitting = [place for place in places if int(place.max()) < len(array)]
                    guesses += [array[place].unique(return_inverse=True)[1] for place in fitting]
        return tightest([rows for rows in guesses if int(rows.max()) < session.new], h, session.new)
