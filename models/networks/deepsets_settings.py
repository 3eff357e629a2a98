"""Settings of the classifier on the set of particles."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, PositiveInt
from typing_extensions import override

from models.networks.network_settings import ParticleNetworkSettings

if TYPE_CHECKING:
    from models.networks.classifier import Classifier
    from models.networks.scaling_layer import Scaler


class Pooling(StrEnum):
    """What is taken over the particles of an event."""

    MEAN = "mean"
    """The mean over the particles; their number is not seen."""
    SUM = "sum"
    """The sum over the particles, divided by the highest number of them, 801."""


class DeepSetsSettings(ParticleNetworkSettings):
    """Deep sets: dense layers on each particle, their sum or mean, and dense layers on that."""

    name: ClassVar[str] = "deepsets"

    particle_widths: list[PositiveInt] = Field(default=[64, 64], min_length=1)
    """Widths of the layers that each particle goes through, each at least 1."""
    pooling: Pooling = Pooling.MEAN
    """How the particles of an event become one vector."""
    hidden: list[PositiveInt] = Field(default=[64], min_length=1)
    """Widths of the hidden layers on top of that vector, each at least 1."""

    @override
    def build(self, scalers: Mapping[str, Scaler], num_classes: int) -> Classifier:
        from models.networks.deepsets import DeepSetsClassifier

        takes_mean = self.pooling is Pooling.MEAN
        return DeepSetsClassifier(
            self.particle_widths,
            self.hidden,
            scalers,
            takes_mean=takes_mean,
            num_classes=num_classes,
            frame=self.frame,
        )
