"""The control: guesses by chance."""

from cheating import Cheat


class Blind(Cheat):
    pass
