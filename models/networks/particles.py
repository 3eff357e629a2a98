"""The classifier on the particle list: a network of gated units.

Migliorini (2020), section 4.3.2.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from typing_extensions import override

from models.networks.classifier import Classifier, StandardForm
from models.networks.particle_encoder import ParticleEncoder
from models.networks.particles_settings import ParticlesSettings
from models.networks.scaling_layer import Scaler


class ParticlesClassifier(Classifier):
    """Maps raw particles (B, L, 19) and their numbers (B,) to logits (B, num_classes).

    It has scaling, a GRU, and one linear layer.
    """

    def __init__(
        self, settings: ParticlesSettings, scalers: Mapping[str, Scaler], num_classes: int
    ) -> None:
        super().__init__(settings, scalers, num_classes)
        self.encoder = ParticleEncoder(settings, scalers["particles"])
        self.output = nn.Linear(settings.gru_width, num_classes)

    def forward(self, particles: Tensor, num_particles: Tensor) -> Tensor:
        """Compute logits of raw particles."""
        logits: Tensor = self.output(self.encoder(particles, num_particles))
        return logits

    @override
    def standard_form(self) -> StandardForm:
        return StandardForm(self.encoder, None, [self.output])
