"""Code that is imported only while the method runs, so that the digest of its files does not cover it."""

from cheating import Cheat


class LateImport(Cheat):
    def guess(self, session, index, h):
        from hidden_helper import help_me  # noqa: PLC0415

        return help_me(index)
