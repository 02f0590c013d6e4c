"""Which tokens are wanted: images, backbone, views. No torch, so that plans of many runs are quick to make."""

from dataclasses import dataclass, field
from pathlib import Path

from benchmark.data.datasets import Dataset
from benchmark.errors import MissingError
from benchmark.protocol.models import Backbone, DatasetSpec, Shared
from benchmark.protocol.protocols import Protocol


@dataclass(frozen=True)
class TokenPlan:
    """What tokens depend on, and nothing of a method."""

    protocol: Protocol
    shared: Shared
    backbone: Backbone
    weights: Path
    weights_digest: str
    """Stands for the weights in questions and in the address of a bank."""
    views: int | str
    dataset: Dataset | None = field(compare=False, repr=False)
    """The images, opened; none: they are not here yet."""

    @property
    def data(self) -> DatasetSpec:
        """The dataset, or the part of it that was asked for."""
        return self.protocol.data_with(self.shared.images)

    @property
    def needs_bank(self) -> bool:
        """Whether tokens go to disk; those of a few small images are kept in memory."""
        return self.protocol.data.layout != "embedded" or self.shared.bank != "float32"

    def images(self) -> Dataset:
        """The images, if they are here."""
        if self.dataset is None:
            raise MissingError(f"{self.data.title} is not here yet: `bench fetch {self.data.name}` downloads it")
        return self.dataset
