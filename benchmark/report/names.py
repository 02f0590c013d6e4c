"""How methods are called and ordered in tables and figures."""

from collections.abc import Iterable

from benchmark.report.frames import FLOORS
from benchmark.report.paper import Paper
from benchmark.report.runs import OWN_MARK

NEWER = {"happy": "Happy", "vbcgcd": "VB-CGCD", "mscincd": "MSc-iNCD++"}
"""Methods that the paper does not compare with, and how tables call them."""


class Names:
    """How methods are called and ordered in tables: as in the paper, then newer ones, the floors, and all others."""

    def __init__(self, paper: Paper) -> None:
        self.paper = paper

    def label(self, method: str) -> str:
        base, own = plain_name(method), method.removeprefix(plain_name(method))
        if base in self.paper.methods:
            return self.paper.methods[base].label + own
        return (NEWER | FLOORS)[base] + own if base in NEWER | FLOORS else method

    def ordered(self, methods: Iterable[str]) -> list[str]:
        first = [*self.paper.methods, *NEWER, *FLOORS]

        def place(name: str) -> tuple[int, str]:
            base = plain_name(name)
            return (first.index(base) if base in first else len(first)), name

        return sorted(set(methods), key=place)


def plain_name(method: str) -> str:
    """A method's name without the mark of own runs."""
    return method.removesuffix(OWN_MARK)
