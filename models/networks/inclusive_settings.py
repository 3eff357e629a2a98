"""Settings of the classifier on high-level features and particles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PositiveInt
from typing_extensions import override

from models.networks.network_settings import ParticleNetworkSettings, ReadFrom

if TYPE_CHECKING:
    from models.networks.classifier import Classifier
    from models.networks.scaling_layer import Scaler


class InclusiveSettings(ParticleNetworkSettings):
    """One network on the high-level features and the particle list."""

    name: ClassVar[str] = "inclusive"
    inputs: ClassVar[tuple[str, ...]] = ("hlf", *ParticleNetworkSettings.inputs)
    before: ClassVar[Mapping[str, Any]] = {**ParticleNetworkSettings.before, "read_from": ReadFrom.START}

    gru_width: PositiveInt = 50
    """Width of the GRU's state, which summarises the particle list; at least 1."""
    dense_width: PositiveInt = 25
    """Width of the hidden layer on top of the GRU's state and the high-level features; at least 1."""
    read_from: ReadFrom = ReadFrom.END
    """End of the particle list at which the GRU starts: `end` (its last state is that after the lepton) or `start`."""

    @override
    def build(self, scalers: Mapping[str, Scaler], num_classes: int) -> Classifier:
        from models.networks.inclusive import InclusiveClassifier

        return InclusiveClassifier(
            self.gru_width, self.dense_width, self.read_from, scalers, num_classes, frame=self.frame
        )
