"""Events to features: lepton selection, then the high-level features and the particle list of every selected event."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from features.arrays import EventArrays, Floats, Indices, events_from_arrow
from features.columns import CAPS, NUM_CORE, column_numbers, hlf_names
from features.functions import plugin_features
from features.high_level import SelectedEvents, counted_jets, high_level_features, refuse_dependence
from features.kinematics import energy
from features.leptons import Cuts, Lepton, select_lepton
from features.low_level import CORE, ORDERINGS, candidates_of, particle_list
from features.settings import Convention, FeatureSettings
from hep_core.compiling import compiled

if TYPE_CHECKING:
    import awkward as ak

#: Outcomes of an event, in the order of the checks.
(
    SELECTED,
    LACKS_A_KIND,
    NO_LEPTON,
    NO_ISOLATED_LEPTON,
    OTHER_NUMBER,
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
HLF: Final = column_numbers(hlf_names())
FLOAT32_MAX: Final = float(np.finfo(np.float32).max)


class FeatureBlock(NamedTuple):
    """Features of the selected events of a block of events; values as in `features.columns`, unscaled."""

    selected: Indices
    """(num_selected,) indices of the selected events in the block."""
    hlf: NDArray[np.float32]
    """(num_selected, NUM_HLF)."""
    particle_offsets: Indices
    """(num_selected + 1,) rows of `core` that each event owns."""
    core: NDArray[np.float32]
    """(num_rows, 11), unpadded; columns `features.columns.PARTICLE_CORE`."""
    outcome: NDArray[np.int8]
    """(num_events,) SELECTED or the reason of the rejection: an index into OUTCOMES."""
    lacks_own_track: NDArray[np.bool_]
    """(num_events,) whether the hardest lepton has no track of its own."""


class EnergyScales(NamedTuple):
    """Factors of the energies, 1 for no shift."""

    jets: float = 1.0
    """Of the pT of all jets."""
    met: float = 1.0
    """Of the missing transverse energy."""


#: Number of events for which the features of plugins are computed again.
_COMPUTED_AGAIN: Final = 8
_UNSHIFTED: Final = EnergyScales()


def build_features(
    events: pa.Table,
    settings: FeatureSettings,
    *,
    scales: EnergyScales = _UNSHIFTED,
    again: bool = True,
) -> FeatureBlock:
    """Select events and compute their features.

    Args:
        events: A table in the schema `ingestion.schema.events_schema()`.
        settings: Selection and definitions.
        scales: Factors of the energies of jets and of the missing energy.
        again: Whether features of plugins are computed again for a few events alone.

    Returns:
        Features of the events that have an isolated lepton and whose numbers are in the range of float32.
    """
    cuts = _cuts_of(settings)
    arrays = events_from_arrow(events, settings.lepton_flavours)
    jets = arrays.jets._replace(pt=arrays.jets.pt * scales.jets)
    arrays = arrays._replace(jets=jets, met=arrays.met * scales.met)
    outcome, lone, found, offsets, core = particles_of(arrays, events.num_rows, cuts)
    selected = np.flatnonzero(outcome == SELECTED)
    leptons = Lepton(*found.T)
    counted = counted_jets(arrays, selected, leptons, settings)
    hlf = high_level_features(
        SelectedEvents(
            leptons,
            arrays.met[selected],
            arrays.met_phi[selected],
            counted,
            squared_mt=cuts.as_published,
            records=lambda: _records(events.take(pa.array(selected)), scales),
        )
    )
    if again and plugin_features():
        few = selected[:_COMPUTED_AGAIN][::-1]
        alone = build_features(events.take(pa.array(few)), settings, scales=scales, again=False)
        refuse_dependence(hlf[: len(few)][::-1][alone.selected], alone.hlf)
    if not settings.particles:
        offsets, core = np.zeros_like(offsets), core[:0]
        # Files without candidates have no tracks at all.
        lone &= arrays.tracks.pt.size > 0
    few_jets, few_bjets = (
        hlf[:, HLF.num_jets] < settings.min_jets,
        hlf[:, HLF.num_bjets] < settings.min_bjets,
    )
    # Of several reasons the earliest cut counts.
    reasons = np.select(
        [few_jets, few_bjets, ~np.isfinite(hlf).all(axis=1)],
        [FEW_JETS, FEW_BJETS, NONFINITE_FEATURES],
        SELECTED,
    )
    kept = reasons == SELECTED
    if not kept.all():
        outcome[selected] = reasons
        lengths = np.diff(offsets)
        selected, hlf, core = selected[kept], hlf[kept], core[np.repeat(kept, lengths)]
        offsets = np.concatenate([[0], np.cumsum(lengths[kept])])
    return FeatureBlock(selected, hlf, offsets, core, outcome, lone)


def _records(events: pa.Table, scales: EnergyScales) -> ak.Array:
    import awkward as ak  # noqa: PLC0415 - for plugins only

    found = ak.from_arrow(events.combine_chunks())
    if scales != _UNSHIFTED:
        found["jets"] = ak.with_field(found.jets, found.jets.pt * scales.jets, "pt")
        found["met"] = found.met * scales.met
    return found


def _cuts_of(settings: FeatureSettings) -> Cuts:
    given = {name: value for name, value in settings if name in Cuts._fields and value is not None}
    if not settings.particles:
        given |= dict.fromkeys(CAPS, 0)
    given["ordering"] = ORDERINGS[settings.ordering]
    return Cuts(as_published=settings.convention is Convention.SPARKDLTRIGGER, **given)


@compiled
def particles_of(
    events: EventArrays, num_events: int, cuts: Cuts
) -> tuple[NDArray[np.int8], NDArray[np.bool_], Floats, Indices, NDArray[np.float32]]:
    """The compiled loop over events.

    Returns:
        Outcome (num_events,); whether the hardest lepton lacks its track (num_events,); leptons of the selected events
        (num_selected, 8) with the fields of `Lepton`; offsets and core as in `FeatureBlock`.
    """
    outcome = np.full(num_events, SELECTED, dtype=np.int8)
    lone = np.zeros(num_events, dtype=np.bool_)
    leptons = np.empty((num_events, 8))
    offsets = np.zeros(num_events + 1, dtype=np.int64)
    num_candidates = events.tracks.pt.size + events.photons.pt.size + events.neutral_hadrons.pt.size
    # Room for one event more than needed, so that every event has all rows to write to.
    longest = 1 + cuts.max_tracks + cuts.max_photons + cuts.max_neutral_hadrons
    most_rows = min(num_candidates + num_events, num_events * longest) + longest
    core = np.empty((most_rows, NUM_CORE), np.float32)
    count = 0
    for event in range(num_events):
        candidates = candidates_of(events, event)
        lepton, num_accepted, num_isolated, lone[event] = select_lepton(
            events.leptons, event, candidates, cuts
        )
        if cuts.as_published and np.unique(candidates.kind).size < 3:
            outcome[event] = LACKS_A_KIND
        elif num_accepted == 0:
            outcome[event] = NO_LEPTON
        elif num_isolated == 0:
            outcome[event] = NO_ISOLATED_LEPTON
        elif not cuts.min_leptons <= num_isolated <= cuts.max_leptons:
            outcome[event] = OTHER_NUMBER
        else:
            rows = core[offsets[count] :]
            num_rows = particle_list(events, event, candidates, lepton, cuts, rows)
            if not fits_float32(rows[:num_rows]):
                outcome[event] = NONFINITE_FEATURES
                continue
            leptons[count] = lepton
            offsets[count + 1] = offsets[count] + num_rows
            count += 1
    return outcome, lone, leptons[:count], offsets[: count + 1], core[: offsets[count]]


@compiled
def fits_float32(core: NDArray[np.float32]) -> bool:
    """Whether the isolations and the future energies of all particles are finite in float32."""
    for row in range(core.shape[0]):
        for column in (CORE.iso_charged, CORE.iso_photon, CORE.iso_neutral):
            if not math.isfinite(core[row, column]):
                return False
        pt, eta = float(core[row, CORE.pt]), float(core[row, CORE.eta])
        # A cosh for every particle would cost more than the sort.
        if (abs(eta) > 15.0 or pt > 1e30) and not energy(pt, eta) <= FLOAT32_MAX:
            return False
    return True
