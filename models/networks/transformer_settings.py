"""Settings of the transformer on the particle list."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import PositiveInt, model_validator

from models.networks.network_settings import ParticleNetworkSettings, network


@network("transformer")
class TransformerSettings(ParticleNetworkSettings):
    """A set transformer: attention among particles by way of learnt points, and a class token."""

    classifier: ClassVar[str] = "TransformerClassifier"

    width: PositiveInt = 32
    """Width of the vector of each particle; a multiple of `heads`."""
    heads: PositiveInt = 4
    """Number of attention heads, at least 1."""
    blocks: PositiveInt = 2
    """Number of blocks in which particles see each other, at least 1."""
    points: PositiveInt = 16
    """Number of inducing points of each block, at least 1; particles exchange information through
    them only."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.heads:
            raise ValueError(
                f"width {self.width} is no multiple of the number of heads, {self.heads}"
            )
        return self
