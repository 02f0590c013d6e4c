"""A tensor kept outside parameters and buffers: not counted as stored, and gone after an interruption."""

from cheating import Cheat


class StrayTensor(Cheat):
    def end(self, session):
        super().end(session)
        self.cache = {"means": [self.mean.clone()]}
