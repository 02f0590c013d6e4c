"""Other sessions: images that were not kept, or have not come yet, asked for by id."""

import torch
from cheating import Cheat


class OtherSessions(Cheat):
    def guess(self, session, index, h):
        for part in session.recall(torch.arange(int(index.max()) + 1)):
            assert len(part.tokens)
        return torch.zeros(len(index), dtype=torch.long)
