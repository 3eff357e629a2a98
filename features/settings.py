"""Settings of the features: selection, physics, splits and layout of the dataset."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from features.columns import CAPS


class Ordering(StrEnum):
    """Order of the particle rows; the lepton is always row 0."""

    INCREASING = "increasing"
    """Nearest to the lepton first."""
    DECREASING = "decreasing"
    """Farthest from the lepton first."""
    FILE = "file"
    """Tracks, then photons, then neutral hadrons, each in the order of the input."""


class Convention(StrEnum):
    """Definitions of the features."""

    CORRECT = "correct"
    """The physics as defined."""
    SPARKDLTRIGGER = "sparkdltrigger"
    """The features of CERN's published notebooks, mistakes included, for comparison with their
    numbers."""


class Balance(StrEnum):
    """How classes of unequal size get the same total weight."""

    WEIGHTS = "weights"
    """Keep all events, and give each class a weight."""
    DOWNSAMPLE = "downsample"
    """Drop training events of the larger classes, chosen by a hash of their identity."""


class LeptonFlavour(StrEnum):
    """Kinds of leptons that select an event."""

    ELECTRON = "electron"
    MUON = "muon"


class SplitSettings(BaseModel):
    """Shares of the three splits."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    train: float = Field(default=0.64, gt=0, lt=1)
    """Share of events in the training split, between 0 and 1; `train`, `val` and `test` add up to
    1."""
    val: float = Field(default=0.16, gt=0, lt=1)
    """Share of events in the validation split, which chooses the best epoch; between 0 and 1."""
    test: float = Field(default=0.20, gt=0, lt=1)
    """Share of events in the test split, which only the final evaluation uses; between 0 and 1."""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        """Check that the shares add up to 1."""
        total = self.train + self.val + self.test
        if abs(total - 1.0) > 1e-9:
            raise ValueError(f"train, val and test add up to {total:g}; they must add up to 1")
        return self


class FeatureSettings(BaseModel):
    """Selection, physics of the features, and layout of the dataset."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    convention: Convention = Convention.CORRECT
    """Definitions of the features: `correct`, or `sparkdltrigger` as in CERN's notebooks (needs
    `ordering: file`)."""
    particles: bool = True
    """Whether the dataset has particle lists. Without them, inputs need no tracks, photons and
    neutral hadrons: the isolations of leptons are then 0 and cut nothing."""
    lepton_flavours: list[LeptonFlavour] = Field(default=list(LeptonFlavour), min_length=1)
    """Kinds of leptons that count: `electron`, `muon` or both."""
    min_lepton_pt: float = Field(default=23.0, ge=0)
    """The pT of the selected lepton is above this threshold [GeV]."""
    max_lepton_abs_eta: float | None = Field(default=None, gt=0)
    """The |eta| of the selected lepton is below this limit; null for none."""
    max_lepton_isolation: float | None = Field(default=0.45, gt=0)
    """The isolation of the selected lepton, summed over all kinds and relative to its pT, is below
    this threshold; null for none."""
    min_leptons: int = Field(default=1, ge=1)
    """Lowest number of leptons that pass these cuts; that of highest pT is the selected lepton."""
    max_leptons: int | None = Field(default=None, ge=1)
    """Highest number of leptons that pass these cuts; null for no limit."""
    isolation_cone: float = Field(default=0.3, ge=0.001, le=3)
    """Radius of the isolation cone in Delta R, 0.001 to 3."""
    own_track_dr: float = Field(default=1e-4, ge=0)
    """A track closer to the selected lepton than this Delta R is the lepton's own track."""
    min_jet_pt: float = Field(default=30.0, ge=0)
    """Jets count in HT and in the numbers of jets if their pT is above this threshold [GeV]."""
    max_jet_abs_eta: float = Field(default=2.6, gt=0)
    """Jets count in HT and in the numbers of jets if their |eta| is below this limit."""
    jet_lepton_cleaning_dr: float | None = Field(default=None, ge=0)
    """Jets closer to the selected lepton than this Delta R do not count: most are the lepton
    itself. 0 keeps all jets; null is 0.4 with convention `correct` and 0 with `sparkdltrigger`, as
    published."""
    min_jets: int = Field(default=0, ge=0)
    """Lowest number of jets that count."""
    min_bjets: int = Field(default=0, ge=0)
    """Lowest number of b-jets among them."""
    btag_mask: int = Field(default=0xFFFFFFFF, ge=0, le=0xFFFFFFFF)
    """Bit mask of b-tags: a jet is a b-jet if its BTag has one of these bits (Delphes: 1 loose, 2
    medium, 4 tight)."""
    max_tracks: int = Field(default=CAPS["max_tracks"], ge=0, le=100_000)
    """Highest number of tracks in the particle list: those of highest pT are kept."""
    max_photons: int = Field(default=CAPS["max_photons"], ge=0, le=100_000)
    """Highest number of photons in the particle list."""
    max_neutral_hadrons: int = Field(default=CAPS["max_neutral_hadrons"], ge=0, le=100_000)
    """Highest number of neutral hadrons in the particle list."""
    ordering: Ordering = Ordering.INCREASING
    """Order of the particle rows after the lepton: `increasing` or `decreasing` in Delta R from it,
    or as in `file`."""
    split: SplitSettings = SplitSettings()
    """Shares of the train, val and test splits; they add up to 1."""
    balance: Balance = Balance.WEIGHTS
    """How classes get the same total weight: class `weights`, or `downsample` the larger classes in
    the training split."""
    integrated_luminosity: float = Field(default=1.0, gt=0)
    """Luminosity of the physics weights [1/pb]: `Event.Weight` x `cross_section_pb` x this / sum of
    weights of the sample, where all samples of a class have a cross-section. Other samples count by
    their numbers of events."""
    rows_per_group: int = Field(default=2048, ge=1, le=100_000)
    """Highest number of events in a row group, the unit in which workers get data; 1 to 100000. It
    has fewer if its particles would take more than 256 MB."""
    feed_workers: int = Field(default=8, ge=1)
    """Number of workers that read without sharing row groups, for speed only: each split gets as
    many row groups, or a multiple, as far as it has events. Any number of workers trains on all
    events."""

    @property
    def jet_cleaning(self) -> float:
        """`jet_lepton_cleaning_dr`, or the value of the convention."""
        if self.jet_lepton_cleaning_dr is not None:
            return self.jet_lepton_cleaning_dr
        return 0.0 if self.convention is Convention.SPARKDLTRIGGER else 0.4

    @field_validator("lepton_flavours")
    @classmethod
    def _flavours_in_order(cls, flavours: list[LeptonFlavour]) -> list[LeptonFlavour]:
        # Equal sets of flavours get one order, so that `plan` sees no change between them.
        return [flavour for flavour in LeptonFlavour if flavour in flavours]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.max_leptons is not None and self.max_leptons < self.min_leptons:
            raise ValueError(
                f"max_leptons {self.max_leptons} is below min_leptons {self.min_leptons}: "
                "no event passes"
            )
        if self.convention is Convention.SPARKDLTRIGGER and self.ordering is not Ordering.FILE:
            raise ValueError(
                "convention sparkdltrigger keeps particles in file order; "
                f"set ordering: file (now {self.ordering})"
            )
        if self.convention is Convention.SPARKDLTRIGGER and not self.particles:
            raise ValueError(
                "convention sparkdltrigger needs particles: it rejects events without; "
                "set particles: true"
            )
        return self


def ingest_thresholds(reading: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of ingest that change what features mean, by their keys in the config.

    They are the thresholds, whose names begin with `min_`. `reading` are settings of ingest.
    """
    thresholds = {}
    for key, setting in reading.items():
        if key.startswith("min_"):
            thresholds[f"ingest.{key}"] = setting
    return thresholds
