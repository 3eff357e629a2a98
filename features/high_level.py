"""The high-level features (HLF): a function for each row of `features.columns.HIGH_LEVEL`.

Source: the features of CERN's HLF classifier (Nguyen et al. 2019, Migliorini et al. 2019). MT follows its definition: a
square root, which the published notebooks lack. Each feature is one number per event: GeV, radians, units of e.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from features.arrays import EventArrays, Floats, Indices
from features.columns import HIGH_LEVEL, hlf_names
from features.errors import FeatureError
from features.functions import FUNCTIONS, Computed, builtin_feature
from features.kinematics import delta_r2, transverse_mass
from features.leptons import Lepton
from features.settings import FeatureSettings

if TYPE_CHECKING:
    import awkward as ak


class CountedJets(NamedTuple):
    """The jets that pass the cuts, of all events, in the order of the events."""

    event: Indices
    """(num_jets,) event of each jet."""
    pt: Floats
    is_b: NDArray[np.bool_]


class SelectedEvents(NamedTuple):
    """Arrays with one entry per event, and the jets."""

    leptons: Lepton[Floats]
    met: Floats
    met_phi: Floats
    jets: CountedJets
    squared_mt: bool
    """Whether MT is the square, without the root, as published."""
    records: Callable[[], ak.Array]
    """The same events as awkward records: tracks, photons, neutral_hadrons, electrons, muons, jets, met, met_phi, and
    the branches that are passed through."""

    def sum_over_jets(self, values: Floats | NDArray[np.bool_]) -> Floats:
        """Sum a number per jet over the jets of each event."""
        return np.bincount(self.jets.event, values, minlength=len(self.met)).astype(
            np.float64, copy=False
        )


@builtin_feature
def ht(events: SelectedEvents) -> Floats:
    """Sum of pT of the jets."""
    return events.sum_over_jets(events.jets.pt)


@builtin_feature
def met(events: SelectedEvents) -> Floats:
    """Missing transverse energy."""
    return events.met


@builtin_feature
def met_phi(events: SelectedEvents) -> Floats:
    """Its azimuth."""
    return events.met_phi


@builtin_feature
def mt(events: SelectedEvents) -> Floats:
    """Transverse mass of the lepton and the missing transverse energy."""
    mass: Floats = transverse_mass(
        events.leptons.pt, events.leptons.phi, events.met, events.met_phi
    )
    return mass * mass if events.squared_mt else mass


@builtin_feature
def num_jets(events: SelectedEvents) -> Floats:
    """Number of jets."""
    return events.sum_over_jets(np.ones(len(events.jets.pt)))


@builtin_feature
def num_bjets(events: SelectedEvents) -> Floats:
    """Number of jets with a b-tag."""
    return events.sum_over_jets(events.jets.is_b)


def _of_lepton(name: str) -> Callable[[SelectedEvents], Floats]:
    def of_lepton(events: SelectedEvents) -> Floats:
        values: Floats = getattr(events.leptons, name)
        return values

    return of_lepton


FUNCTIONS.update({f"lepton_{name}": Computed(_of_lepton(name)) for name in Lepton._fields})


def high_level_features(events: SelectedEvents) -> NDArray[np.float32]:
    """All features, (num_events, NUM_HLF), in the order of the table; infinite beyond the range of float32.

    Raises:
        FeatureError: The function of a plugin fails, or gives another number of values, or values that are not finite.
    """
    out = np.empty((len(events.met), len(HIGH_LEVEL)), dtype=np.float32)
    with np.errstate(all="ignore"):
        for column, name in enumerate(hlf_names()):
            found = FUNCTIONS[name]
            out[:, column] = (
                _of_plugin(name, found, events) if found.is_plugin else found.function(events)
            )
    return out


def _of_plugin(name: str, found: Computed, events: SelectedEvents) -> NDArray[np.float64]:
    where = f"the feature '{name}' ({found.location})"
    try:
        values = np.asarray(found.function(events), dtype=np.float64)
    except Exception as cause:
        frames = [
            frame for frame in traceback.extract_tb(cause.__traceback__) if frame.filename in where
        ]
        # Compiled code leaves no frame.
        line = f" in line {frames[-1].lineno}" if frames else ""
        raise FeatureError(f"{where} fails{line}: {type(cause).__name__}: {cause}") from cause
    if values.shape != events.met.shape:
        raise FeatureError(
            f"{where} gives an array of shape {values.shape} for {len(events.met)} events"
        )
    if not np.isfinite(values).all():
        count = np.count_nonzero(~np.isfinite(values))
        raise FeatureError(
            f"{where} gives {count} of {len(values)} events a number that is not finite"
        )
    return values


def refuse_dependence(few: NDArray[np.float32], again: NDArray[np.float32]) -> None:
    """Refuse a feature of a plugin that differs where a `few` events are computed `again`, alone and in another order.

    Both are (num_events, NUM_HLF).
    """
    for column, name in enumerate(hlf_names()):
        found = FUNCTIONS[name]
        if found.is_plugin and not np.allclose(
            few[:, column], again[:, column], rtol=1e-5, atol=1e-6
        ):
            raise FeatureError(
                f"the feature '{name}' ({found.location}) of an event depends on the other events"
            )


def counted_jets(
    events: EventArrays, selected: Indices, leptons: Lepton[Floats], settings: FeatureSettings
) -> CountedJets:
    """The jets of the selected events that pass the cuts; jets too close to the `leptons` of these do not count.

    `CountedJets.event` is an index into `selected`, the (num_selected,) indices of the selected events.
    """
    jets = events.jets
    numbers = np.full(len(events.met), -1)
    numbers[selected] = np.arange(len(selected))
    event = np.repeat(numbers, np.diff(jets.offsets))
    passes = (jets.pt > settings.min_jet_pt) & (abs(jets.eta) < settings.max_jet_abs_eta)
    passing = np.flatnonzero((event >= 0) & passes)
    event = event[passing]
    distance2 = delta_r2(
        jets.eta[passing], jets.phi[passing], leptons.eta[event], leptons.phi[event]
    )
    away = ~(distance2 < settings.jet_cleaning**2)
    counted = passing[away]
    bits = jets.btag[counted].astype(np.int64)
    return CountedJets(event[away], jets.pt[counted], (bits & settings.btag_mask) != 0)
