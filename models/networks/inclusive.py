"""The classifier on high-level features and particles: CERN's inclusive network.

Migliorini (2020), section 4.3.2.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from typing_extensions import override

from features.columns import hlf_names
from models.networks.classifier import Classifier, StandardForm, dense
from models.networks.inclusive_settings import InclusiveSettings
from models.networks.lepton_frame import frame_layer
from models.networks.particle_encoder import ParticleEncoder
from models.networks.scaling_layer import Scaler, Standardize


class InclusiveClassifier(Classifier):
    """Maps raw HLF, particles and numbers of particles to logits (B, num_classes).

    The high-level features (HLF) are (B, NUM_HLF), the particles (B, L, 19), their numbers (B,). A
    recurrent network (GRU) summarises the particles. Its state and the scaled HLF are concatenated
    and go through a dense layer with ReLU and a linear layer.
    """

    def __init__(
        self, settings: InclusiveSettings, scalers: Mapping[str, Scaler], num_classes: int
    ) -> None:
        super().__init__(settings, scalers, num_classes)
        width = settings.dense_width
        self.encoder = ParticleEncoder(settings, scalers["particles"])
        self.frame = frame_layer(settings.frame, "hlf")
        self.scaling = Standardize(scalers["hlf"])
        joined_width = settings.gru_width + len(hlf_names())
        hidden_layers = dense(joined_width, width)
        output = nn.Linear(width, num_classes)
        self.layers = nn.Sequential(*hidden_layers, output)

    def forward(self, hlf: Tensor, particles: Tensor, num_particles: Tensor) -> Tensor:
        """Compute logits of raw high-level features and raw particles."""
        state = self.encoder(particles, num_particles)
        features = self.scaling(self.frame(hlf))
        joined = torch.cat([state, features], dim=1)
        logits: Tensor = self.layers(joined)
        return logits

    @override
    def standard_form(self) -> StandardForm:
        return StandardForm(self.encoder, self.scaling, list(self.layers), self.frame)
