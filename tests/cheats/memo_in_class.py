"""State kept across `predict`: plain numbers of every image in a dictionary of the class."""

from cheating import Cheat


class MemoInClass(Cheat):
    memo = {}  # noqa: RUF012 - the very thing that is tried here

    def predict(self, tokens):
        rows = super().predict(tokens)
        self.memo.update(zip((token.numpy().tobytes() for token in tokens.cls), rows.tolist(), strict=True))
        return rows
