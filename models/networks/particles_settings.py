"""Settings of the classifier on the particle list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import PositiveInt
from typing_extensions import override

from models.networks.network_settings import NetworkSettings

if TYPE_CHECKING:
    from models.networks.classifier import Classifier
    from models.networks.scaling_layer import Scaler


class ParticlesSettings(NetworkSettings):
    """The recurrent network over the particle list."""

    name: ClassVar[str] = "particles"
    inputs: ClassVar[tuple[str, ...]] = ("particles", "num_particles")

    gru_width: PositiveInt = 50
    """Width of the GRU's state, which summarises the particle list; at least 1."""

    @override
    def build(self, scalers: Mapping[str, Scaler], num_classes: int) -> Classifier:
        from models.networks.particles import ParticlesClassifier

        return ParticlesClassifier(self.gru_width, scalers, num_classes)
