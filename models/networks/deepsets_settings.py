"""Settings of the classifier on the set of particles."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from pydantic import Field, PositiveInt

from models.networks.network_settings import ParticleNetworkSettings, network


class Pooling(StrEnum):
    """What is taken over the particles of an event."""

    MEAN = "mean"
    """The mean over the particles; their number is not seen."""
    SUM = "sum"
    """The sum over the particles, divided by the highest number of them, 801."""


@network("deepsets")
class DeepSetsSettings(ParticleNetworkSettings):
    """Deep sets: dense layers on each particle, their sum or mean, and dense layers on that."""

    classifier: ClassVar[str] = "DeepSetsClassifier"

    particle_widths: list[PositiveInt] = Field(default=[64, 64], min_length=1)
    """Widths of the layers that each particle goes through, each at least 1."""
    pooling: Pooling = Pooling.MEAN
    """How the particles of an event become one vector."""
    hidden: list[PositiveInt] = Field(default=[64], min_length=1)
    """Widths of the hidden layers on top of that vector, each at least 1."""
