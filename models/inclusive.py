"""The classifier on both inputs: CERN's inclusive network, the third beside those of Migliorini 2020, section 4.3.2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from features.schema import NUM_HLF
from models.classifier import Classifier
from models.particles import ParticleEncoder
from models.scaling import Scaler, Standardize
from models.settings import ModelSettings


class InclusiveClassifier(Classifier):
    """Raw HLF (B, 14), particles (B, L, 19) and their numbers (B,) to logits (B, num_classes).

    The GRU's state and the scaled HLF side by side go through a dense layer with ReLU and a linear one.

    Examples:
        >>> scalers = {"hlf": Scaler([0.0] * 14, [1.0] * 14), "particles": Scaler([0.0] * 19, [1.0] * 19)}
        >>> model = InclusiveClassifier(ModelSettings(name="inclusive"), scalers, num_classes=3)
        >>> model(torch.zeros(2, 14), torch.zeros(2, 5, 19), torch.tensor([5, 1])).shape
        torch.Size([2, 3])
    """

    inputs: ClassVar[tuple[str, ...]] = ("hlf", "particles", "num_particles")

    def __init__(self, settings: ModelSettings, scalers: Mapping[str, Scaler], num_classes: int) -> None:
        super().__init__()
        self.encoder = ParticleEncoder(scalers["particles"], settings.gru_width)
        self.scaling = Standardize(*scalers["hlf"])
        self.layers = nn.Sequential(
            nn.Linear(settings.gru_width + NUM_HLF, settings.dense_width),
            nn.ReLU(),
            nn.Linear(settings.dense_width, num_classes),
        )

    def forward(self, hlf: Tensor, particles: Tensor, num_particles: Tensor) -> Tensor:
        """Logits of raw high-level features and raw particles."""
        joined = torch.cat([self.encoder(particles, num_particles), self.scaling(hlf)], dim=1)
        logits: Tensor = self.layers(joined)
        return logits
