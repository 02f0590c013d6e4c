"""Other sessions: the session object is kept, to be read again later."""

import torch
from cheating import Cheat


class KeepsSession(Cheat):
    before = None

    def guess(self, session, ids, h):
        if self.before is not None:
            list(self.before.clean())
        self.before = session
        return torch.zeros(len(ids), dtype=torch.long)
