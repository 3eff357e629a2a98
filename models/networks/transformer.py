"""The transformer on the particle list: a set transformer (Lee et al. 2019) with a class token.

The particles of an event attend to each other through a few inducing points, so that the time grows
with their number and not with its square. The pairwise features of the Particle Transformer (Qu, Li
and Qian 2022) are left out. An event has about 700 particles, not the hundred of a jet. So four
numbers of each of the 490,000 pairs take 8 MB an event, and each layer on them takes as much again.
Its class token (after Touvron et al. 2021) is here: a learnt query collects the particles.
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
    """Multihead attention and two dense layers (MAB of the paper).

    Vectors, the queries, collect information from other vectors, the seen ones. Attention and dense
    layers each follow a layer norm, and their result is added to the queries. torch's own module is
    not used: its exported form holds the number of events as a constant.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.head_width = width // heads
        self.norm_query = nn.LayerNorm(width)
        self.norm_seen = nn.LayerNorm(width)
        """Normalises the vectors that the queries attend to."""
        self.norm_dense = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key_and_value = nn.Linear(width, 2 * width)
        self.joined = nn.Linear(width, width)
        """Mixes the results of the heads."""
        self.dense = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )

    def forward(self, queries: Tensor, seen: Tensor, is_seen: Tensor | None = None) -> Tensor:
        """Let queries (B, N, width) attend to vectors `seen` (B, M, width).

        Returns:
            The new queries, (B, N, width). The mask `is_seen` (B, 1, 1, M) is false for vectors
            that do not count.
        """
        head_queries = self._split_heads(self.query(self.norm_query(queries)))
        # One layer computes keys and values together.
        keys_and_values = self.key_and_value(self.norm_seen(seen))
        keys, values = keys_and_values.chunk(2, dim=2)
        head_keys = self._split_heads(keys)
        head_values = self._split_heads(values)
        attended = scaled_dot_product_attention(
            head_queries, head_keys, head_values, attn_mask=is_seen
        )
        # The heads are joined again, then mixed by a layer.
        joined_heads = attended.transpose(1, 2).flatten(2)
        queries = queries + self.joined(joined_heads)
        output: Tensor = queries + self.dense(self.norm_dense(queries))
        return output

    def _split_heads(self, vectors: Tensor) -> Tensor:
        """Reshape (B, N, width) to (B, heads, N, width / heads): each head attends alone."""
        num_events, num_vectors = vectors.shape[:2]
        by_head = vectors.view(num_events, num_vectors, self.heads, self.head_width)
        return by_head.transpose(1, 2)


class InducedBlock(nn.Module):
    """Learnt points attend to particles, then the particles to the points (ISAB of the paper)."""

    def __init__(self, width: int, heads: int, points: int) -> None:
        super().__init__()
        self.points = learnt(points, width)
        """(1, points, width) learnt vectors, which carry information between the particles."""
        self.collect = AttentionBlock(width, heads)
        """The points attend to the particles."""
        self.spread = AttentionBlock(width, heads)
        """The particles attend to the points."""

    def forward(self, particles: Tensor, is_seen: Tensor) -> Tensor:
        """Let particles (B, L, width) exchange information; returns new vectors of the same shape.

        `is_seen` (B, 1, 1, L) masks padding.
        """
        # All events begin with the same learnt points.
        num_events = particles.shape[0]
        points = self.points.expand(num_events, -1, -1)
        collected = self.collect(points, particles, is_seen)
        spread: Tensor = self.spread(particles, collected)
        return spread


class TransformerClassifier(Classifier):
    """Maps raw particles (B, L, 19) and their numbers (B,) to logits (B, num_classes).

    Each particle becomes a vector, blocks of attention let the vectors exchange information, and a
    learnt token collects them. The order of the particles does not matter.
    """

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
        self.blocks = nn.ModuleList()
        for _ in range(settings.blocks):
            self.blocks.append(InducedBlock(width, heads, settings.points))
        self.token = learnt(1, width)
        """(1, 1, width) learnt vector that collects all particles."""
        self.pool = AttentionBlock(width, heads)
        self.output = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, num_classes))

    def forward(self, particles: Tensor, num_particles: Tensor) -> Tensor:
        """Compute logits of raw particles; `num_particles` rows of each event are valid."""
        num_events = particles.shape[0]
        # An exported network may get no events or no rows.
        particles = pad_to_one(particles)
        num_particles = pad_to_one(num_particles)
        rows, is_valid = scaled_rows(self.scaling, self.frame(particles), num_particles)
        # The two further axes are those of heads and queries, which share the mask.
        is_seen = is_valid[:, None, None]
        vectors = self.embedding(rows)
        for block in self.blocks:
            vectors = block(vectors, is_seen)
        tokens = self.token.expand(particles.shape[0], -1, -1)
        collected = self.pool(tokens, vectors, is_seen)
        # The slice removes the event that padding may have added; 0 is the only token.
        logits: Tensor = self.output(collected[:num_events, 0])
        return logits


def learnt(count: int, width: int) -> nn.Parameter:
    """Make a parameter of vectors (1, count, width), drawn from a normal distribution."""
    return nn.Parameter(torch.randn(1, count, width))
