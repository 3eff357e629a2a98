"""Events to features: lepton selection, high-level features and particle lists."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from features.arrays import EventArrays, Floats, Indices, events_from_arrow, offsets_from_counts
from features.columns import CAPS, NUM_CORE, column_numbers, hlf_names
from features.functions import plugin_features
from features.high_level import (
    SelectedEvents,
    check_independence,
    counted_jets,
    high_level_features,
)
from features.isolation import Candidates
from features.kinematics import energy
from features.leptons import Cuts, Lepton, select_lepton
from features.low_level import CORE, ORDERINGS, event_candidates, particle_list
from features.settings import Convention, FeatureSettings
from hep_core.compiling import compiled

if TYPE_CHECKING:
    import awkward as ak

#: Outcomes of an event, numbers in the order of the checks: selected, or why it is not.
(
    SELECTED,
    LACKS_CANDIDATE_KIND,
    NO_LEPTON,
    NO_ISOLATED_LEPTON,
    WRONG_NUMBER_OF_LEPTONS,
    FEW_JETS,
    FEW_BJETS,
    NONFINITE_FEATURES,
) = range(8)
#: Names of the counters, by outcome.
OUTCOMES: Final = (
    "selected",
    "rejected_lacks_a_kind",
    "rejected_no_lepton_in_acceptance",
    "rejected_no_isolated_lepton",
    "rejected_number_of_leptons",
    "rejected_few_jets",
    "rejected_few_bjets",
    "rejected_nonfinite_features",
)
#: Column numbers of the high-level features, as attributes.
HLF: Final = column_numbers(hlf_names())
FLOAT32_MAX: Final = float(np.finfo(np.float32).max)


class FeatureBlock(NamedTuple):
    """Features of the selected events of a block of events, unscaled; see `features.columns`."""

    selected: Indices
    """(num_selected,) indices of the selected events in the block."""
    hlf: NDArray[np.float32]
    """(num_selected, NUM_HLF)."""
    particle_offsets: Indices
    """(num_selected + 1,): event i has the rows `[particle_offsets[i]:particle_offsets[i + 1]]`."""
    core: NDArray[np.float32]
    """(num_rows, 11) particles, unpadded; columns `features.columns.PARTICLE_CORE`."""
    outcome: NDArray[np.int8]
    """(num_events,) SELECTED or the reason of the rejection: an index into OUTCOMES."""
    lacks_own_track: NDArray[np.bool_]
    """(num_events,) whether the hardest lepton has no track of its own."""


class EnergyScales(NamedTuple):
    """Factors on energies, 1 for no shift."""

    jets: float = 1.0
    """Factor on the pT of all jets."""
    met: float = 1.0
    """Factor on the missing transverse energy."""


#: Number of events for which the features of plugins are computed again.
_NUM_RECOMPUTED: Final = 8
_UNSHIFTED: Final = EnergyScales()


def build_features(
    events: pa.Table,
    settings: FeatureSettings,
    *,
    scales: EnergyScales = _UNSHIFTED,
    check_plugins: bool = True,
) -> FeatureBlock:
    """Select events and compute their features.

    Compiled kernels select the lepton of each event and list its particles; NumPy then computes the
    high-level features of the selected events, and the last cuts use these.

    Args:
        events: A table in the schema `ingestion.schema.events_schema()`.
        settings: Selection and definitions.
        scales: Factors on the energies of jets and on the missing energy.
        check_plugins: Whether features of plugins are computed again for a few events alone.

    Returns:
        Features of the events that have an isolated lepton and whose numbers are in the range of
        float32.
    """
    cuts = _kernel_cuts(settings)
    arrays = events_from_arrow(events, settings.lepton_flavours)
    jets = arrays.jets._replace(pt=arrays.jets.pt * scales.jets)
    arrays = arrays._replace(jets=jets, met=arrays.met * scales.met)

    outcome, lacks_own_track, lepton_rows, particle_offsets, core = select_and_list(
        arrays, events.num_rows, cuts
    )
    selected = np.flatnonzero(outcome == SELECTED)
    leptons = Lepton(*lepton_rows.T)
    met = arrays.met[selected]
    met_phi = arrays.met_phi[selected]
    jets_of_selected = counted_jets(arrays, selected, leptons, settings)

    def records() -> ak.Array:
        """The selected events as records, which only plugins need."""
        return _records(events.take(pa.array(selected)), scales)

    selected_events = SelectedEvents(
        leptons, met, met_phi, jets_of_selected, squared_mt=cuts.as_published, records=records
    )
    hlf = high_level_features(selected_events)
    if check_plugins and plugin_features():
        _check_plugins(events, selected, hlf, settings, scales)

    if not settings.particles:
        particle_offsets, core = np.zeros_like(particle_offsets), core[:0]
        # Files without candidates have no tracks at all.
        lacks_own_track &= arrays.tracks.pt.size > 0
    block = FeatureBlock(selected, hlf, particle_offsets, core, outcome, lacks_own_track)
    return _apply_cuts_on_hlf(block, settings)


def _kernel_cuts(settings: FeatureSettings) -> Cuts:
    """The settings that the compiled kernels need; a limit that is None keeps its default.

    Without particles, no candidate is listed: the caps on the particle lists are 0.
    """
    limits = settings.model_dump(include=set(Cuts._fields), exclude_none=True)
    limits["ordering"] = ORDERINGS[settings.ordering]
    if not settings.particles:
        limits |= dict.fromkeys(CAPS, 0)
    return Cuts(as_published=settings.convention is Convention.SPARKDLTRIGGER, **limits)


def _records(events: pa.Table, scales: EnergyScales) -> ak.Array:
    """Events as awkward records, with shifted energies, for the features of plugins."""
    import awkward as ak  # noqa: PLC0415 - for plugins only

    records = ak.from_arrow(events.combine_chunks())
    if scales != _UNSHIFTED:
        records["jets", "pt"] = records.jets.pt * scales.jets
        records["met"] = records.met * scales.met
    return records


def _check_plugins(
    events: pa.Table,
    selected: Indices,
    hlf: NDArray[np.float32],
    settings: FeatureSettings,
    scales: EnergyScales,
) -> None:
    """Check that features of plugins do not depend on other events or on the order of the events.

    Features of the first selected events are computed again, without the others and in reverse
    order. `hlf` are those of all selected events, (num_selected, NUM_HLF).

    Raises:
        FeatureError: A feature differs.
    """
    reversed_events = selected[:_NUM_RECOMPUTED][::-1]
    reversed_hlf = hlf[:_NUM_RECOMPUTED][::-1]
    event_rows = events.take(pa.array(reversed_events))
    recomputed = build_features(event_rows, settings, scales=scales, check_plugins=False)
    # An event may be rejected now by a feature of another value, so rows are compared by event.
    check_independence(reversed_hlf[recomputed.selected], recomputed.hlf)


def _apply_cuts_on_hlf(block: FeatureBlock, settings: FeatureSettings) -> FeatureBlock:
    """Drop events with too few jets, and those with features beyond the range of float32.

    It also writes the reasons into the `outcome` of `block`, which the result shares.
    """
    has_few_jets = block.hlf[:, HLF.num_jets] < settings.min_jets
    has_few_bjets = block.hlf[:, HLF.num_bjets] < settings.min_bjets
    is_finite = np.isfinite(block.hlf).all(axis=1)
    # Of several reasons, `np.select` takes the first.
    reasons = [has_few_jets, has_few_bjets, ~is_finite]
    outcome = np.select(reasons, [FEW_JETS, FEW_BJETS, NONFINITE_FEATURES], SELECTED)
    passes = outcome == SELECTED
    if passes.all():
        return block
    block.outcome[block.selected] = outcome
    # The particles of dropped events are dropped too, and the offsets are counted again.
    num_particles = np.diff(block.particle_offsets)
    particle_passes = np.repeat(passes, num_particles)
    return block._replace(
        selected=block.selected[passes],
        hlf=block.hlf[passes],
        particle_offsets=offsets_from_counts(num_particles[passes]),
        core=block.core[particle_passes],
    )


@compiled
def select_and_list(
    events: EventArrays, num_events: int, cuts: Cuts
) -> tuple[NDArray[np.int8], NDArray[np.bool_], Floats, Indices, NDArray[np.float32]]:
    """Select the lepton of each event, and list the particles of the selected events.

    Returns:
        Outcome (num_events,); whether the hardest lepton lacks its track (num_events,); leptons of
        the selected events (num_selected, 8) with the fields of `Lepton`; offsets and core as in
        `FeatureBlock`.
    """
    outcome = np.full(num_events, SELECTED, dtype=np.int8)
    lacks_own_track = np.zeros(num_events, dtype=np.bool_)
    leptons = np.empty((num_events, 8))
    offsets = np.zeros(num_events + 1, dtype=np.int64)
    core = np.empty((max_core_rows(events, num_events, cuts), NUM_CORE), np.float32)
    num_selected = 0
    for event in range(num_events):
        candidates = event_candidates(events, event)
        lepton, num_accepted, num_isolated, has_no_own_track = select_lepton(
            events.leptons, event, candidates, cuts
        )
        lacks_own_track[event] = has_no_own_track
        outcome[event] = lepton_outcome(candidates, num_accepted, num_isolated, cuts)
        if outcome[event] != SELECTED:
            continue
        # The next event overwrites these rows unless this one is selected.
        first_row = offsets[num_selected]
        rows = core[first_row:]
        num_rows = particle_list(events, event, candidates, lepton, cuts, rows)
        if not fits_float32(rows[:num_rows]):
            outcome[event] = NONFINITE_FEATURES
            continue
        leptons[num_selected] = lepton
        num_selected += 1
        offsets[num_selected] = first_row + num_rows

    offsets = offsets[: num_selected + 1]
    return outcome, lacks_own_track, leptons[:num_selected], offsets, core[: offsets[-1]]


@compiled
def max_core_rows(events: EventArrays, num_events: int, cuts: Cuts) -> int:
    """Rows that are enough for the particles of all events.

    There is space for one event more than needed, since each needs that of the longest list.
    """
    num_charged = events.tracks.pt.size
    num_neutral = events.photons.pt.size + events.neutral_hadrons.pt.size
    num_leptons = num_events
    max_particles = 1 + cuts.max_tracks + cuts.max_photons + cuts.max_neutral_hadrons
    num_rows = min(num_charged + num_neutral + num_leptons, num_events * max_particles)
    return num_rows + max_particles


@compiled
def lepton_outcome(candidates: Candidates, num_accepted: int, num_isolated: int, cuts: Cuts) -> int:
    """Whether the leptons of an event select it, or the first reason against it.

    The order of the checks gives the outcome of an event that several reject. `num_accepted`
    leptons pass the cuts on pT and eta, `num_isolated` of these are isolated.
    """
    if cuts.as_published and np.unique(candidates.species).size < 3:
        return LACKS_CANDIDATE_KIND
    if num_accepted == 0:
        return NO_LEPTON
    if num_isolated == 0:
        return NO_ISOLATED_LEPTON
    if not cuts.min_leptons <= num_isolated <= cuts.max_leptons:
        return WRONG_NUMBER_OF_LEPTONS
    return SELECTED


@compiled
def fits_float32(core: NDArray[np.float32]) -> bool:
    """Whether the isolations, and the energies that follow from pT and eta, fit float32.

    `core` is (num_rows, 11), the particles of one event. An isolation that does not fit is infinite
    here already; energies are computed only later, when the dataset is read.
    """
    for row in range(core.shape[0]):
        for column in (CORE.iso_charged, CORE.iso_photon, CORE.iso_neutral):
            if not math.isfinite(core[row, column]):
                return False
        pt = float(core[row, CORE.pt])
        eta = float(core[row, CORE.eta])
        # Other particles have finite energies; a cosh for each would cost more than the sort.
        is_extreme = abs(eta) > 15.0 or pt > 1e30
        if is_extreme and not energy(pt, eta) <= FLOAT32_MAX:
            return False
    return True
