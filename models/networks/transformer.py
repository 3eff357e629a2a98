"""The transformer on the particle list: a set transformer (Lee et al. 2019) with a class token.

The particles of an event attend to each other through a few inducing points, so that the time grows with their number
and not with its square. The pairwise features of the Particle Transformer (Qu, Li and Qian 2022) are left out: an event
has about 700 particles, not the hundred of a jet, so four numbers of each of the 490,000 pairs are 8 MB an event, and
each layer on them again. Its class token (after Touvron et al. 2021) is here: a learnt query collects the particles.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from features.columns import NUM_PARTICLE_FEATURES
from models.networks.classifier import Classifier
from models.networks.lepton_frame import frame_layer
from models.networks.padding import pad_to_one, scaled_rows
from models.networks.scaling_layer import Scaler, Standardize
from models.networks.transformer_settings import TransformerSettings


class AttentionBlock(nn.Module):
    """Multihead attention and two dense layers, each added to its input and after a layer norm (MAB of the paper).

    torch's own module is not used: its exported form holds the number of events as a constant.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width // heads
        self.norm_query, self.norm_seen, self.norm_dense = (nn.LayerNorm(width) for _ in range(3))
        self.query = nn.Linear(width, width)
        self.key_and_value = nn.Linear(width, 2 * width)
        self.joined = nn.Linear(width, width)
        self.dense = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )

    def forward(self, asking: Tensor, seen: Tensor, is_seen: Tensor | None = None) -> Tensor:
        """Vectors (B, N, width) attend to others (B, M, width), of which `is_seen` (B, 1, 1, M) masks some."""
        query = self._in_heads(self.query(self.norm_query(asking)))
        key, value = map(self._in_heads, self.key_and_value(self.norm_seen(seen)).chunk(2, dim=2))
        found = scaled_dot_product_attention(query, key, value, attn_mask=is_seen)
        asking = asking + self.joined(found.transpose(1, 2).flatten(2))
        added: Tensor = asking + self.dense(self.norm_dense(asking))
        return added

    def _in_heads(self, vectors: Tensor) -> Tensor:
        """(B, N, width) to (B, heads, N, width / heads)."""
        return vectors.view(*vectors.shape[:2], self.heads, self.width).transpose(1, 2)


class InducedBlock(nn.Module):
    """Learnt points attend to the particles, then the particles to the points (ISAB of the paper)."""

    def __init__(self, width: int, heads: int, points: int) -> None:
        super().__init__()
        self.points = learnt(points, width)
        self.collect, self.spread = AttentionBlock(width, heads), AttentionBlock(width, heads)

    def forward(self, particles: Tensor, is_seen: Tensor) -> Tensor:
        """New vectors (B, L, width) of particles (B, L, width), of which `is_seen` (B, 1, 1, L) masks some."""
        seen = self.collect(self.points.expand(particles.shape[0], -1, -1), particles, is_seen)
        spread: Tensor = self.spread(particles, seen)
        return spread


class TransformerClassifier(Classifier):
    """Raw particles (B, L, 19) and their numbers (B,) to logits (B, num_classes), in any order of the particles."""

    def __init__(
        self, settings: TransformerSettings, scalers: Mapping[str, Scaler], num_classes: int
    ) -> None:
        super().__init__(settings, scalers, num_classes)
        width, heads = settings.width, settings.heads
        self.frame = frame_layer(settings.frame, "particles")
        self.scaling = Standardize(scalers["particles"])
        self.embedding = nn.Sequential(
            nn.Linear(NUM_PARTICLE_FEATURES, width), nn.ReLU(), nn.Linear(width, width)
        )
        self.blocks = nn.ModuleList(
            InducedBlock(width, heads, settings.points) for _ in range(settings.blocks)
        )
        self.token = learnt(1, width)
        self.pool = AttentionBlock(width, heads)
        self.output = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, num_classes))

    def forward(self, particles: Tensor, num_particles: Tensor) -> Tensor:
        """Logits of raw particles."""
        num_events = particles.shape[0]
        particles, num_particles = pad_to_one(particles), pad_to_one(num_particles)
        rows, is_valid = scaled_rows(self.scaling, self.frame(particles), num_particles)
        is_seen, vectors = is_valid[:, None, None], self.embedding(rows)
        for block in self.blocks:
            vectors = block(vectors, is_seen)
        collected = self.pool(self.token.expand(particles.shape[0], -1, -1), vectors, is_seen)
        logits: Tensor = self.output(collected[:num_events, 0])
        return logits


def learnt(count: int, width: int) -> nn.Parameter:
    """Vectors (1, count, width) to learn, with unit spread at first."""
    return nn.Parameter(torch.randn(1, count, width))
