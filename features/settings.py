"""What a user may choose about making features."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Ordering(StrEnum):
    """Order of the particle rows after the lepton, which is always row 0."""

    INCREASING = "increasing"
    """Nearest to the lepton first."""
    DECREASING = "decreasing"
    """Farthest from the lepton first."""
    FILE = "file"
    """Tracks, photons, neutral hadrons, each as in the input."""


class Convention(StrEnum):
    """Whose definitions of the features."""

    CORRECT = "correct"
    """The physics as defined."""
    SPARKDLTRIGGER = "sparkdltrigger"
    """As CERN's published notebooks compute them, mistakes included, to compare with their numbers."""


class Balance(StrEnum):
    """How classes of unequal size are made to count alike."""

    WEIGHTS = "weights"
    """All events stay; each class gets a weight."""
    DOWNSAMPLE = "downsample"
    """Events of the larger classes are dropped by a hash of their identity."""


class SplitSettings(BaseModel):
    """Shares of the three splits."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    train: float = Field(default=0.64, gt=0, lt=1)
    """Share of events to train on."""
    val: float = Field(default=0.16, gt=0, lt=1)
    """Share of events to choose the best epoch by."""
    test: float = Field(default=0.20, gt=0, lt=1)
    """Share of events to evaluate on, once."""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        total = self.train + self.val + self.test
        if abs(total - 1.0) > 1e-9:
            raise ValueError(f"train, val and test add up to {total:g}; they must add up to 1")
        return self


class FeatureSettings(BaseModel):
    """Selection, physics of the features, and layout of the dataset."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    convention: Convention = Convention.CORRECT
    """Whose definitions of the features: correct, or sparkdltrigger (CERN's notebooks; needs `ordering: file`)."""
    min_lepton_pt: float = Field(default=23.0, ge=0)
    """The selected lepton needs more pT than this [GeV]."""
    max_lepton_isolation: float = Field(default=0.45, gt=0)
    """... and less summed isolation than this."""
    isolation_cone: float = Field(default=0.3, ge=0.001, le=3)
    """Radius in Delta R of the isolation cone."""
    own_track_dr: float = Field(default=1e-4, ge=0)
    """A track this close to the lepton is the lepton's own."""
    min_jet_pt: float = Field(default=30.0, ge=0)
    """Jets counted in HT and the jet numbers need more pT than this [GeV]."""
    max_jet_abs_eta: float = Field(default=2.6, gt=0)
    """... and less |eta| than this."""
    jet_lepton_cleaning_dr: float = Field(default=0.0, ge=0)
    """Jets closer to the lepton than this do not count; 0 keeps all, as published."""
    btag_mask: int = Field(default=0xFFFFFFFF, ge=0, le=0xFFFFFFFF)
    """A jet is a b-jet if its BTag has one of these bits (Delphes: 1 loose, 2 medium, 4 tight)."""
    ordering: Ordering = Ordering.INCREASING
    """Order of the particle rows."""
    split: SplitSettings = SplitSettings()
    """Shares of train, val and test."""
    balance: Balance = Balance.WEIGHTS
    """How classes of unequal size are made to count alike."""
    rows_per_group: int = Field(default=2048, ge=1, le=100_000)
    """Upper limit of the rows of a row group, the unit that workers are given."""
    feed_workers: int = Field(default=8, ge=1)
    """Train and val get at least so many row groups, and a multiple of it: so many workers are fed evenly."""

    @model_validator(mode="after")
    def _published_order(self) -> Self:
        if self.convention is Convention.SPARKDLTRIGGER and self.ordering is not Ordering.FILE:
            raise ValueError(
                f"convention sparkdltrigger keeps particles in file order; set ordering: file (now {self.ordering})"
            )
        return self
