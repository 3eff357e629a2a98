"""Settings of the classifier on high-level features and particles."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt

from models.networks.network_settings import RecurrentSettings, network


@network("inclusive")
class InclusiveSettings(RecurrentSettings):
    """One network on the high-level features and the particle list."""

    classifier: ClassVar[str] = "InclusiveClassifier"
    inputs: ClassVar[tuple[str, ...]] = ("hlf", *RecurrentSettings.inputs)

    dense_width: PositiveInt = 25
    """Width of the hidden layer on top of the GRU's state and the high-level features; at least
    1."""
