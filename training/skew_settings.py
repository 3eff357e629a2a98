"""Settings of unequal data, which `training.readers.skew` divides. No torch."""

from __future__ import annotations

from pydantic import Field

from hep_core.settings_section import SettingsSection


class SkewSettings(SettingsSection):
    """Workers whose training events differ in their mixture of classes."""

    dirichlet: float = Field(default=0.1, gt=0)
    """Concentration of the Dirichlet distribution of a worker's mixture, greater than 0: 0.1 gives
    most workers hardly more than one class, 100 nearly the same mixture to all."""
