"""The classifier on the set of particles: deep sets (Zaheer et al. 2017), in physics particle flow networks.

Komiske, Metodiev and Thaler (2019) introduced them for jets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from features.columns import MAX_PARTICLES, NUM_PARTICLE_FEATURES
from models.networks.classifier import Classifier, dense
from models.networks.lepton_frame import frame_layer
from models.networks.network_settings import Frame
from models.networks.padding import scaled_rows
from models.networks.scaling_layer import Scaler, Standardize


class DeepSetsClassifier(Classifier):
    """Raw particles (B, L, 19) and their numbers (B,) to logits (B, num_classes), whatever the order of the particles.

    Args:
        particle_widths: Widths of the layers that each particle goes through.
        hidden: Widths of the layers after the pooling.
        takes_mean: Whether the mean over the particles is taken; else the sum, divided by the highest number of them.
        scalers: Scaler of the 19 features, by column.
        num_classes: Width of the output.
        frame: Directions in which it sees the particles.

    Examples:
        >>> scalers = {"particles": Scaler([0.0] * 19, [1.0] * 19)}
        >>> model = DeepSetsClassifier([64, 64], [64], scalers, takes_mean=True, num_classes=3)
        >>> model(torch.zeros(2, 5, 19), torch.tensor([5, 1])).shape
        torch.Size([2, 3])
    """

    inputs: ClassVar[tuple[str, ...]] = ("particles", "num_particles")

    def __init__(
        self,
        particle_widths: Sequence[int],
        hidden: Sequence[int],
        scalers: Mapping[str, Scaler],
        *,
        takes_mean: bool,
        num_classes: int,
        frame: Frame = Frame.DETECTOR,
    ) -> None:
        super().__init__()
        self.frame = frame_layer(frame, "particles")
        self.takes_mean = takes_mean
        self.scaling = Standardize(*scalers["particles"])
        self.of_particle = nn.Sequential(*dense(NUM_PARTICLE_FEATURES, *particle_widths))
        self.of_event = nn.Sequential(*dense(particle_widths[-1], *hidden))
        self.output = nn.Linear(hidden[-1], num_classes)

    def forward(self, particles: Tensor, num_particles: Tensor) -> Tensor:
        """Logits of raw particles."""
        rows, is_valid = scaled_rows(self.scaling, self.frame(particles), num_particles)
        counts = is_valid.to(rows.dtype)
        divisor = counts.sum(dim=1, keepdim=True) if self.takes_mean else MAX_PARTICLES
        pooled = torch.bmm((counts / divisor)[:, None], self.of_particle(rows))[:, 0]
        logits: Tensor = self.output(self.of_event(pooled))
        return logits
