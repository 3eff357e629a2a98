"""Settings of the classifier on high-level features."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, PositiveInt
from typing_extensions import override

from models.networks.network_settings import NetworkSettings, network


@network("hlf")
class HlfSettings(NetworkSettings):
    """A multilayer perceptron on the high-level features."""

    classifier: ClassVar[str] = "HlfClassifier"
    inputs: ClassVar[tuple[str, ...]] = ("hlf",)
    not_built: ClassVar[frozenset[str]] = frozenset({"from_gridsearch"})

    hidden: list[PositiveInt] = Field(default=[50, 20, 10], min_length=1)
    """Widths of the perceptron's hidden layers, each at least 1: 50, 20, 10 as CERN's network, 50,
    20 as the thesis."""
    from_gridsearch: bool = False
    """Whether widths, learning rate, batch size and epochs are the best ones of the grid search."""

    @property
    @override
    def is_searched(self) -> bool:
        return self.from_gridsearch
