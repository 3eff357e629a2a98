"""Events to features: lepton selection, then the 14 HLF and the particle list of every selected event."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from features.arrays import Events, Floats, Indices, events_from_arrow
from features.compiling import compiled
from features.high_level import JetCuts, high_level_features
from features.leptons import LeptonCuts, select_lepton
from features.low_level import ORDER_DECREASING, ORDER_FILE, ORDER_INCREASING, particle_list
from features.schema import MAX_PARTICLES, NUM_HLF, NUM_PARTICLE_FEATURES
from features.settings import FeatureSettings, Ordering

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
    """(num_selected + 1,) rows of `particles` that each event owns."""
    particles: NDArray[np.float32]
    """(num_rows, 19), unpadded."""


def build_features(events: pa.Table, settings: FeatureSettings) -> FeatureBlock:
    """Select events and compute their features.

    Args:
        events: A table with `ingestion.schema.events_schema()`.
        settings: Selection and definitions.

    Returns:
        Features of the events that have an isolated lepton.
    """
    lepton_cuts = LeptonCuts(
        settings.min_lepton_pt, settings.max_lepton_isolation, settings.isolation_cone, settings.own_track_dr
    )
    jet_cuts = JetCuts(
        settings.min_jet_pt, settings.max_jet_abs_eta, settings.jet_lepton_cleaning_dr, settings.btag_mask
    )
    selected, hlf, offsets, rows = features_of(
        events_from_arrow(events), events.num_rows, lepton_cuts, jet_cuts, _ORDERINGS[settings.ordering]
    )
    return FeatureBlock(selected, hlf.astype(np.float32), offsets, rows)


@compiled
def features_of(
    events: Events, num_events: int, lepton_cuts: LeptonCuts, jet_cuts: JetCuts, ordering: int
) -> tuple[Indices, Floats, Indices, NDArray[np.float32]]:
    """The compiled loop over events; see `build_features`."""
    selected = np.empty(num_events, dtype=np.int64)
    hlf = np.empty((num_events, NUM_HLF))
    offsets = np.zeros(num_events + 1, dtype=np.int64)
    num_candidates = events.tracks.pt.size + events.photons.pt.size + events.neutral_hadrons.pt.size
    rows = np.empty((min(num_candidates + num_events, num_events * MAX_PARTICLES), NUM_PARTICLE_FEATURES), np.float32)
    count = 0
    for event in range(num_events):
        lepton = select_lepton(events, event, lepton_cuts)
        if lepton.pt == 0.0:
            continue
        selected[count] = event
        high_level_features(events, event, lepton, jet_cuts, hlf[count])
        particles = particle_list(events, event, lepton, lepton_cuts.own_track_dr, lepton_cuts.cone, ordering)
        offsets[count + 1] = offsets[count] + particles.shape[0]
        rows[offsets[count] : offsets[count + 1]] = particles
        count += 1
    return selected[:count], hlf[:count], offsets[: count + 1], rows[: offsets[count]]
