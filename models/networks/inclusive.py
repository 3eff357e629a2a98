"""The classifier on high-level features and particles: CERN's inclusive network (Migliorini 2020, section 4.3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from features.columns import NUM_HLF
from models.networks.classifier import Classifier, Parts, dense
from models.networks.lepton_frame import frame_layer
from models.networks.network_settings import Frame, ReadFrom
from models.networks.particles import ParticleEncoder
from models.networks.scaling_layer import Scaler, Standardize


class InclusiveClassifier(Classifier):
    """Raw HLF (B, NUM_HLF), particles (B, L, 19) and their numbers (B,) to logits (B, num_classes).

    The GRU's state and the scaled HLF are concatenated and go through a dense layer with ReLU and a linear layer.

    Examples:
        >>> scalers = {"hlf": Scaler([0.0] * NUM_HLF, [1.0] * NUM_HLF), "particles": Scaler([0.0] * 19, [1.0] * 19)}
        >>> model = InclusiveClassifier(50, 25, ReadFrom.END, scalers, num_classes=3)
        >>> model(torch.zeros(2, NUM_HLF), torch.zeros(2, 5, 19), torch.tensor([5, 1])).shape
        torch.Size([2, 3])
    """

    inputs: ClassVar[tuple[str, ...]] = ("hlf", "particles", "num_particles")

    def __init__(
        self,
        gru_width: int,
        dense_width: int,
        read_from: ReadFrom,
        scalers: Mapping[str, Scaler],
        num_classes: int,
        *,
        frame: Frame = Frame.DETECTOR,
    ) -> None:
        super().__init__()
        self.encoder = ParticleEncoder(scalers["particles"], gru_width, read_from, frame=frame)
        self.frame = frame_layer(frame, "hlf")
        self.scaling = Standardize(*scalers["hlf"])
        self.layers = nn.Sequential(*dense(gru_width + NUM_HLF, dense_width), nn.Linear(dense_width, num_classes))

    def forward(self, hlf: Tensor, particles: Tensor, num_particles: Tensor) -> Tensor:
        """Logits of raw high-level features and raw particles."""
        joined = torch.cat([self.encoder(particles, num_particles), self.scaling(self.frame(hlf))], dim=1)
        logits: Tensor = self.layers(joined)
        return logits

    @override
    def parts(self) -> Parts:
        return Parts(self.encoder, self.scaling, list(self.layers), self.frame)
