"""The classifier on the set of particles: deep sets (Zaheer et al. 2017).

Komiske, Metodiev and Thaler (2019) introduced them for jets.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from features.columns import MAX_PARTICLES, NUM_PARTICLE_FEATURES
from models.networks.classifier import Classifier, dense
from models.networks.deepsets_settings import DeepSetsSettings, Pooling
from models.networks.lepton_frame import frame_layer
from models.networks.padding import scaled_rows
from models.networks.scaling_layer import Scaler, Standardize


class DeepSetsClassifier(Classifier):
    """Maps raw particles (B, L, 19) and their numbers (B,) to logits (B, num_classes).

    The same layers turn each particle into a vector; layers on the mean or sum of the vectors give
    the logits. So the order of the particles does not matter.
    """

    def __init__(
        self, settings: DeepSetsSettings, scalers: Mapping[str, Scaler], num_classes: int
    ) -> None:
        super().__init__(settings, scalers, num_classes)
        widths, hidden = settings.particle_widths, settings.hidden
        self.frame = frame_layer(settings.frame, "particles")
        self.takes_mean = settings.pooling is Pooling.MEAN
        """Whether the vectors of the particles are averaged; else they are summed."""
        self.scaling = Standardize(scalers["particles"])
        particle_layers = dense(NUM_PARTICLE_FEATURES, *widths)
        event_layers = dense(widths[-1], *hidden)
        self.of_particle = nn.Sequential(*particle_layers)
        """Layers on each particle alone."""
        self.of_event = nn.Sequential(*event_layers)
        """Layers on the mean or sum over the particles."""
        self.output = nn.Linear(hidden[-1], num_classes)

    def forward(self, particles: Tensor, num_particles: Tensor) -> Tensor:
        """Compute logits of raw particles; `num_particles` rows of each event are valid."""
        rows, is_valid = scaled_rows(self.scaling, self.frame(particles), num_particles)
        counts = is_valid.to(rows.dtype)
        # A mean divides by the number of particles; a sum by a constant, which keeps it near 1.
        divisor = counts.sum(dim=1, keepdim=True) if self.takes_mean else MAX_PARTICLES
        row_factors = (counts / divisor)[:, None]
        vectors = self.of_particle(rows)
        # A matrix product sums the vectors of the valid rows, each times 1 / divisor.
        pooled = torch.bmm(row_factors, vectors)[:, 0]
        logits: Tensor = self.output(self.of_event(pooled))
        return logits
