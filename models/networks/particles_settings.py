"""Settings of the classifier on the particle list."""

from __future__ import annotations

from typing import ClassVar

from models.networks.network_settings import RecurrentSettings, network


@network("particles")
class ParticlesSettings(RecurrentSettings):
    """A recurrent network (GRU) over the particle list."""

    classifier: ClassVar[str] = "ParticlesClassifier"
