"""Other sessions: images that were not kept, or have not come yet, asked for by id."""

import torch
from cheating import Cheat


class OtherSessions(Cheat):
    def guess(self, session, ids, h):
        for part in session.recall(torch.arange(int(ids.max()) + 1)):
            assert len(part.tokens)
        return torch.zeros(len(ids), dtype=torch.long)
