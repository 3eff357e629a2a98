"""The high-level features (HLF): for each row of `features.columns.HIGH_LEVEL` an attribute of `SelectedEvents`.

Source: the features of CERN's HLF classifier (Nguyen et al. 2019, Migliorini et al. 2019). MT follows its definition: a
square root, which the published notebooks lack. Each feature is one number per event: GeV, radians, units of e.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from features.arrays import EventArrays, Floats, Indices
from features.columns import HLF_NAMES
from features.kinematics import delta_r2, transverse_mass
from features.leptons import Lepton
from features.settings import FeatureSettings


class CountedJets(NamedTuple):
    """The jets that pass the cuts, of all events, in the order of the events."""

    event: Indices
    """(num_jets,) event of each jet."""
    pt: Floats
    is_b: NDArray[np.bool_]


class SelectedEvents(NamedTuple):
    """Arrays with one entry per event, and the jets; the high-level features are attributes, also of the leptons."""

    leptons: Lepton[Floats]
    met: Floats
    met_phi: Floats
    jets: CountedJets
    squared_mt: bool
    """Whether MT is the square, without the root, as published."""

    @property
    def ht(self) -> Floats:
        """Sum of pT of the jets."""
        return self.sum_over_jets(self.jets.pt)

    @property
    def mt(self) -> Floats:
        """Transverse mass of the lepton and the missing transverse energy."""
        mass: Floats = transverse_mass(self.leptons.pt, self.leptons.phi, self.met, self.met_phi)
        return mass * mass if self.squared_mt else mass

    @property
    def num_jets(self) -> Floats:
        """Number of jets."""
        return self.sum_over_jets(np.ones(len(self.jets.pt)))

    @property
    def num_bjets(self) -> Floats:
        """Number of jets with a b-tag."""
        return self.sum_over_jets(self.jets.is_b)

    def sum_over_jets(self, values: Floats | NDArray[np.bool_]) -> Floats:
        """Sum a number per jet over the jets of each event."""
        return np.bincount(self.jets.event, values, minlength=len(self.met)).astype(np.float64, copy=False)


def high_level_features(events: SelectedEvents) -> NDArray[np.float32]:
    """All features, (num_events, NUM_HLF), in the order of the table; infinite beyond the range of float32."""
    out = np.empty((len(events.met), len(HLF_NAMES)), dtype=np.float32)
    of_leptons = {f"lepton_{name}": values for name, values in events.leptons._asdict().items()}
    with np.errstate(all="ignore"):
        for column, name in enumerate(HLF_NAMES):
            out[:, column] = of_leptons[name] if name in of_leptons else getattr(events, name)
    return out


def counted_jets(
    events: EventArrays, selected: Indices, leptons: Lepton[Floats], settings: FeatureSettings
) -> CountedJets:
    """The jets of the selected events that pass the cuts.

    Args:
        events: All events.
        selected: (num_selected,) indices of the selected events; `CountedJets.event` is an index into this array.
        leptons: Leptons of the selected events; jets too close to them do not count.
        settings: The cuts, and the b-tag bits that make a b-jet.
    """
    jets = events.jets
    numbers = np.full(len(events.met), -1)
    numbers[selected] = np.arange(len(selected))
    event = np.repeat(numbers, np.diff(jets.offsets))
    passes = (jets.pt > settings.min_jet_pt) & (abs(jets.eta) < settings.max_jet_abs_eta)
    passing = np.flatnonzero((event >= 0) & passes)
    event = event[passing]
    distance2 = delta_r2(jets.eta[passing], jets.phi[passing], leptons.eta[event], leptons.phi[event])
    away = ~(distance2 < settings.jet_cleaning**2)
    counted = passing[away]
    bits = jets.btag[counted].astype(np.int64)
    return CountedJets(event[away], jets.pt[counted], (bits & settings.btag_mask) != 0)
