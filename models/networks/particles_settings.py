"""Settings of the classifier on the particle list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PositiveInt
from typing_extensions import override

from models.networks.network_settings import ParticleNetworkSettings, ReadFrom

if TYPE_CHECKING:
    from models.networks.classifier import Classifier
    from models.networks.scaling_layer import Scaler


class ParticlesSettings(ParticleNetworkSettings):
    """A recurrent network (GRU) over the particle list."""

    name: ClassVar[str] = "particles"
    before: ClassVar[Mapping[str, Any]] = {**ParticleNetworkSettings.before, "read_from": ReadFrom.START}

    gru_width: PositiveInt = 50
    """Width of the GRU's state, which summarises the particle list; at least 1."""
    read_from: ReadFrom = ReadFrom.END
    """End of the particle list at which the GRU starts: `end` (its last state is that after the lepton) or `start`."""

    @override
    def build(self, scalers: Mapping[str, Scaler], num_classes: int) -> Classifier:
        from models.networks.particles import ParticlesClassifier

        return ParticlesClassifier(self.gru_width, self.read_from, scalers, num_classes, frame=self.frame)
