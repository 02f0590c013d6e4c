"""A plain value kept outside parameters and buffers, which a resumed run would not have."""

from cheating import Cheat


class StrayValue(Cheat):
    def end(self, session):
        super().end(session)
        self.history = [round(float(self.mean.sum()), 3)]
