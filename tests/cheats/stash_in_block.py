"""Images kept as an attribute of the block, which is not the method's own module."""

from cheating import Cheat


class StashInBlock(Cheat):
    def end(self, session):
        super().end(session)
        self.block.block.stash = [part.tokens for part in session.clean()]
