"""The high-level features (HLF): a function for each row of `features.columns.HIGH_LEVEL`.

Source: the features of CERN's HLF classifier (Nguyen et al. 2019, Migliorini et al. 2019). MT
follows its definition: a square root, which the published notebooks lack. Each feature is one
number per event: GeV, radians, units of e.
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
from features.functions import FUNCTIONS, FeatureFunction, builtin_feature
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
    """(num_jets,) pT [GeV]."""
    is_b: NDArray[np.bool_]
    """(num_jets,) whether a jet has a b-tag."""


class SelectedEvents(NamedTuple):
    """The selected events, the input of the functions of features: arrays (num_events,), and jets.

    Momenta and energies are in GeV, angles in radians.
    """

    leptons: Lepton[Floats]
    """The selected lepton of each event."""
    met: Floats
    """Missing transverse energy."""
    met_phi: Floats
    jets: CountedJets
    squared_mt: bool
    """Whether MT is the square, without the root, as published."""
    records: Callable[[], ak.Array]
    """The same events as awkward records: tracks, photons, neutral_hadrons, electrons, muons, jets,
    met, met_phi, and the branches that are passed through."""

    def sum_over_jets(self, values: Floats | NDArray[np.bool_]) -> Floats:
        """(num_events,) sums of a number per jet, (num_jets,), over the jets of each event."""
        sums = np.bincount(self.jets.event, values, minlength=len(self.met))
        # Without any jet NumPy returns integers.
        return sums.astype(np.float64, copy=False)


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
    """Azimuth of the missing transverse energy."""
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


def _lepton_feature(name: str) -> FeatureFunction:
    """The function of the feature that is a field of the selected lepton."""

    def lepton_field(events: SelectedEvents) -> Floats:
        values: Floats = getattr(events.leptons, name)
        return values

    return FeatureFunction(lepton_field)


for _name in Lepton._fields:
    FUNCTIONS[f"lepton_{_name}"] = _lepton_feature(_name)


def high_level_features(events: SelectedEvents) -> NDArray[np.float32]:
    """Compute all features, (num_events, NUM_HLF), in the order of the table of columns.

    Numbers beyond the range of float32 become infinite. Only the values of plugins are checked.

    Raises:
        FeatureError: The function of a plugin fails, or returns another number of values, or
            values that are not finite or beyond the range of float32.
    """
    num_events = len(events.met)
    hlf = np.empty((num_events, len(HIGH_LEVEL)), dtype=np.float32)
    with np.errstate(all="ignore"):
        for column, name in enumerate(hlf_names()):
            feature = FUNCTIONS[name]
            if feature.is_plugin:
                hlf[:, column] = _plugin_values(name, feature, events)
            else:
                hlf[:, column] = feature.function(events)
    return hlf


def _plugin_values(
    name: str, feature: FeatureFunction, events: SelectedEvents
) -> NDArray[np.float64]:
    """The values of a plugin's feature, (num_events,).

    Raises:
        FeatureError: The function fails, or the number of values is wrong, or some are not finite
            or beyond the range of float32.
    """
    title = f"the feature '{name}' ({feature.location})"
    try:
        returned = feature.function(_copy_arrays(events))
    except Exception as cause:
        line = _failing_line(cause, feature)
        error_name = type(cause).__name__
        raise FeatureError(f"{title} fails{line}: {error_name}: {cause}") from cause

    values = _as_floats(returned, title)
    num_events = len(events.met)
    if values.shape != (num_events,):
        raise FeatureError(
            f"{title} gives an array of shape {values.shape} for {num_events} events; it needs one "
            f"number for each event"
        )
    is_finite = np.isfinite(values)
    if not is_finite.all():
        num_not_finite = np.count_nonzero(~is_finite)
        raise FeatureError(
            f"{title} gives {num_not_finite} of {num_events} events a number that is not finite"
            f"{_first_event(events, ~is_finite)}"
        )
    is_too_large = abs(values) > np.finfo(np.float32).max
    if is_too_large.any():
        raise FeatureError(
            f"{title} gives {np.count_nonzero(is_too_large)} of {num_events} events a number beyond "
            f"the range of float32{_first_event(events, is_too_large)}"
        )
    return values


def _copy_arrays(events: SelectedEvents) -> SelectedEvents:
    """The same events in arrays of their own, so that a plugin may change them in place."""
    lepton_fields = [values.copy() for values in events.leptons]
    jet_fields = [values.copy() for values in events.jets]
    return events._replace(
        leptons=Lepton._make(lepton_fields),
        met=events.met.copy(),
        met_phi=events.met_phi.copy(),
        jets=CountedJets._make(jet_fields),
    )


def _as_floats(returned: object, title: str) -> NDArray[np.float64]:
    """What a plugin's function returned, as an array of float64; masked numbers are NaN.

    Raises:
        FeatureError: These are no real numbers. The message begins with `title`.
    """
    advice = "it needs an array of real numbers, one for each event"
    try:
        array = np.asarray(returned)
        # Objects may be numbers of another library, such as the nullable ones of pandas.
        if array.dtype == object:
            _refuse_text(array)
            array = np.asarray(returned, dtype=np.float64)
    except Exception as cause:
        type_name = type(returned).__name__
        raise FeatureError(
            f"{title} returns an object of the type {type_name}, and {advice}: {cause}"
        ) from cause
    # Truth values, integers and floating point numbers.
    if array.dtype.kind not in "biuf":
        raise FeatureError(f"{title} returns values of the type {array.dtype}, and {advice}")
    values = array.astype(np.float64)
    if isinstance(returned, np.ma.MaskedArray):
        values[np.ma.getmaskarray(returned)] = np.nan
    return values


def _refuse_text(objects: NDArray[np.object_]) -> None:
    """Raise TypeError if an array of objects holds a text, which NumPy would read as a number."""
    for element in objects.ravel():
        if isinstance(element, (str, bytes)):
            type_name = type(element).__name__
            raise TypeError(f"{element!r} is of the type {type_name}")


def _first_event(events: SelectedEvents, is_wrong: NDArray[np.bool_]) -> str:
    """The text `; the first is entry ... of the file ...` of the first event with a wrong value.

    It is empty for events without an identity, such as those of a notebook. `is_wrong`:
    (num_events,) whether the value of an event is wrong.
    """
    records = events.records()
    if not {"entry", "file_uuid"} <= {*records.fields}:
        return ""
    first = int(np.argmax(is_wrong))
    return f"; the first is entry {records.entry[first]} of the file {records.file_uuid[first]}"


def _failing_line(error: Exception, feature: FeatureFunction) -> str:
    """The text ` in line N`, with the line of the plugin's file at which its function failed.

    It is empty if the traceback has no line of this file.
    """
    line = ""
    # Compiled code leaves no frame.
    for frame in traceback.extract_tb(error.__traceback__):
        is_in_plugin = feature.location.startswith(f"{frame.filename}:")
        if is_in_plugin:
            line = f" in line {frame.lineno}"
    return line


def check_independence(hlf: NDArray[np.float32], recomputed: NDArray[np.float32]) -> None:
    """Check that features of plugins do not depend on the other events of a block.

    It compares features of a few events with those computed again without the others; both are
    (num_events, NUM_HLF).

    Raises:
        FeatureError: A feature of a plugin differs.
    """
    for column, name in enumerate(hlf_names()):
        feature = FUNCTIONS[name]
        if not feature.is_plugin:
            continue
        values = hlf[:, column]
        recomputed_values = recomputed[:, column]
        if not np.allclose(values, recomputed_values, rtol=1e-5, atol=1e-6):
            raise FeatureError(
                f"the feature '{name}' ({feature.location}) of an event depends on the other events, "
                f"on their order, on random numbers or on a counter: it has another value when it "
                f"is computed again without the other events and in reverse order"
            )


def counted_jets(
    events: EventArrays, selected: Indices, leptons: Lepton[Floats], settings: FeatureSettings
) -> CountedJets:
    """The jets of the selected events that pass the cuts and are not close to the selected lepton.

    A jet within `jet_cleaning` in eta and phi of the lepton is the lepton itself.

    `selected` are the (num_selected,) indices of the selected events, `leptons` their leptons.
    `CountedJets.event` is an index into both.
    """
    jets = events.jets
    # Index of each event among the selected events; -1 for an event that is not selected.
    selected_index = np.full(len(events.met), -1)
    selected_index[selected] = np.arange(len(selected))
    num_jets_of_event = np.diff(jets.offsets)
    jet_event = np.repeat(selected_index, num_jets_of_event)

    is_hard = jets.pt > settings.min_jet_pt
    is_central = abs(jets.eta) < settings.max_jet_abs_eta
    is_selected = jet_event >= 0
    passing = np.flatnonzero(is_hard & is_central & is_selected)
    event = jet_event[passing]
    distance2 = delta_r2(
        jets.eta[passing], jets.phi[passing], leptons.eta[event], leptons.phi[event]
    )
    is_lepton = distance2 < settings.jet_cleaning**2
    event = event[~is_lepton]
    counted = passing[~is_lepton]
    tag_bits = jets.btag[counted].astype(np.int64)
    is_b = (tag_bits & settings.btag_mask) != 0
    return CountedJets(event, jets.pt[counted], is_b)
