"""Code that is imported without an import statement, so that the digest of the method's files does not cover it."""

import importlib

from cheating import Cheat


class LateImport(Cheat):
    def guess(self, session, ids, h):
        return importlib.import_module("hidden_" + "helper").help_me(ids)
