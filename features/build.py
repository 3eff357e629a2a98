"""Events to features: lepton selection, then the 14 HLF and the particle list of every selected event."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from features.arrays import Events, Indices, events_from_arrow
from features.compiling import compiled
from features.high_level import JetCuts, high_level_features
from features.kinematics import energy
from features.leptons import LeptonCuts, select_lepton
from features.low_level import (
    NUM_CORE,
    ORDER_DECREASING,
    ORDER_FILE,
    ORDER_INCREASING,
    candidates_of,
    particle_features,
    particle_list,
)
from features.schema import MAX_PARTICLES, NUM_HLF
from features.settings import Convention, FeatureSettings, Ordering

#: What becomes of an event, in the order in which it is looked at.
SELECTED: Final = 0
LACKS_A_KIND: Final = 1
NO_ISOLATED_LEPTON: Final = 2
NONFINITE_FEATURES: Final = 3
#: Names of the counters, by outcome.
OUTCOMES: Final = ("selected", "rejected_lacks_a_kind", "rejected_no_isolated_lepton", "rejected_nonfinite_features")
FLOAT32_MAX: Final = float(np.finfo(np.float32).max)

_ORDERINGS: Final = {
    Ordering.INCREASING: ORDER_INCREASING,
    Ordering.DECREASING: ORDER_DECREASING,
    Ordering.FILE: ORDER_FILE,
}


class FeatureBlock(NamedTuple):
    """Features of the selected events of a block of events; values as in `features.schema`, unscaled."""

    selected: Indices
    """(num_selected,) their indices among the events of the block."""
    hlf: NDArray[np.float32]
    """(num_selected, 14)."""
    particle_offsets: Indices
    """(num_selected + 1,) rows of `core` that each event owns."""
    core: NDArray[np.float32]
    """(num_rows, 11), unpadded; columns `features.low_level.PARTICLE_CORE`."""
    outcome: NDArray[np.int8]
    """(num_events,) SELECTED, or why not: an index into OUTCOMES."""

    @property
    def particles(self) -> NDArray[np.float32]:
        """(num_rows, 19) features of the particles, unpadded."""
        return particle_features(self.core)


def build_features(events: pa.Table, settings: FeatureSettings) -> FeatureBlock:
    """Select events and compute their features.

    Args:
        events: A table with `ingestion.schema.events_schema()`.
        settings: Selection and definitions.

    Returns:
        Features of the events that have an isolated lepton, and numbers that float32 can hold.
    """
    as_published = settings.convention is Convention.SPARKDLTRIGGER
    lepton_cuts = LeptonCuts(
        settings.min_lepton_pt,
        settings.max_lepton_isolation,
        settings.isolation_cone,
        settings.own_track_dr,
        as_published,
    )
    jet_cuts = JetCuts(
        settings.min_jet_pt,
        settings.max_jet_abs_eta,
        settings.jet_lepton_cleaning_dr,
        settings.btag_mask,
        squared_mt=as_published,
    )
    outcome, hlf, offsets, core = features_of(
        events_from_arrow(events), events.num_rows, lepton_cuts, jet_cuts, _ORDERINGS[settings.ordering]
    )
    return FeatureBlock(np.flatnonzero(outcome == SELECTED), hlf, offsets, core, outcome)


@compiled
def features_of(
    events: Events, num_events: int, lepton_cuts: LeptonCuts, jet_cuts: JetCuts, ordering: int
) -> tuple[NDArray[np.int8], NDArray[np.float32], Indices, NDArray[np.float32]]:
    """The compiled loop over events; see `FeatureBlock`. Returns outcome, HLF, offsets and core."""
    outcome = np.full(num_events, SELECTED, dtype=np.int8)
    hlf = np.empty((num_events, NUM_HLF), dtype=np.float32)
    offsets = np.zeros(num_events + 1, dtype=np.int64)
    num_candidates = events.tracks.pt.size + events.photons.pt.size + events.neutral_hadrons.pt.size
    # One event more than can be needed, so that every event finds 801 rows to write to.
    most_rows = min(num_candidates + num_events, num_events * MAX_PARTICLES) + MAX_PARTICLES
    core = np.empty((most_rows, NUM_CORE), np.float32)
    count = 0
    for event in range(num_events):
        candidates = candidates_of(events, event)
        if lepton_cuts.as_published and np.unique(candidates.kind).size < 3:
            outcome[event] = LACKS_A_KIND
            continue
        lepton = select_lepton(events, event, candidates, lepton_cuts)
        if lepton.pt == 0.0:
            outcome[event] = NO_ISOLATED_LEPTON
            continue
        rows = core[offsets[count] :]
        num_rows = particle_list(events, event, candidates, lepton, lepton_cuts, ordering, rows)
        high_level_features(events, event, lepton, jet_cuts, hlf[count])
        if not (all_finite(hlf[count]) and fits_float32(rows[:num_rows])):
            outcome[event] = NONFINITE_FEATURES
            continue
        offsets[count + 1] = offsets[count] + num_rows
        count += 1
    return outcome, hlf[:count], offsets[: count + 1], core[: offsets[count]]


@compiled
def all_finite(values: NDArray[np.float32]) -> bool:
    """Whether no value is NaN or infinite."""
    for value in values:  # noqa: SIM110 - numba compiles no generators
        if not math.isfinite(value):
            return False
    return True


@compiled
def fits_float32(core: NDArray[np.float32]) -> bool:
    """Whether the isolations of all particles are finite, and the energies that will be made of them too."""
    for row in range(core.shape[0]):
        if not all_finite(core[row, 8:11]):
            return False
        pt, eta = float(core[row, 2]), float(core[row, 3])
        # A cosh for every particle would cost more than the sort.
        if (abs(eta) > 15.0 or pt > 1e30) and not energy(pt, eta) <= FLOAT32_MAX:
            return False
    return True
