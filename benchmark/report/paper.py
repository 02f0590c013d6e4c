"""The published figures, from protocols/paper.yaml."""

from importlib.resources import files
from typing import Any

from pydantic import Field

from benchmark.protocol.models import Spec
from benchmark.protocol.reading import read_yaml, validated

Figures = dict[str, float]
"""By protocol, in percent."""


class PaperMethod(Spec):
    """A row of the paper's tables."""

    label: str
    exemplars: int = Field(description="images kept of a class")
    target: bool = Field(description="whether the suite's method of this name is to be compared with it")


class PaperMetric(Spec):
    """What the paper prints of one metric."""

    table: str
    rows: dict[str, Figures]


class Variant(Spec):
    """A row of a table in which one method is changed."""

    label: str
    changed: dict[str, Any]
    figures: Figures


class Variants(Spec):
    """A table of average accuracies in which one method is changed."""

    table: str
    method: str
    rows: tuple[Variant, ...]


class Paper(Spec):
    """All published figures; whatever is absent was not printed."""

    source: str
    methods: dict[str, PaperMethod]
    metrics: dict[str, PaperMetric]
    variants: dict[str, Variants]

    @property
    def protocols(self) -> list[str]:
        """In the order of the paper's main table."""
        return [*dict.fromkeys(name for row in self.metrics["average_accuracy"].rows.values() for name in row)]

    def figure(self, metric: str, method: str, protocol: str) -> float | None:
        """The figure that a reference run of this method is to be compared with."""
        if method not in self.methods or not self.methods[method].target:
            return None
        return self.metrics[metric].rows.get(method, {}).get(protocol)


def load_paper() -> Paper:
    return validated(Paper, read_yaml(files("protocols") / "paper.yaml"), "paper.yaml")
