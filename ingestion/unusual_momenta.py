"""Finds events whose momenta look as if they were in MeV, or as if eta were an azimuth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ingestion import tally
from ingestion.schema import PARTICLE_COLLECTIONS
from ingestion.thresholds import Jagged, Mask, any_per_event

#: Momenta may be in MeV if all of an event are above it [GeV].
_LARGE_PT: Final = 1000.0
#: The same of the mean of tracks, photons or neutral hadrons, which is 0.5 to 1 GeV.
_LARGE_MEAN_PT: Final = 400.0


def like_azimuths(collections: Mapping[str, Jagged]) -> dict[str, Mask]:
    """Find collections whose eta may be an azimuth, since it stops just below pi.

    Returns:
        (num_events,) masks by collection, of the events with an `abs(eta)` within 3 % below pi. A
        collection with an `abs(eta)` above pi, or none near it, is left out.
    """
    masks = {}
    for name, (offsets, fields) in collections.items():
        abs_eta = np.abs(fields["eta"])
        is_near_pi = abs_eta > 0.97 * np.pi
        if not is_near_pi.any():
            continue
        stops_at_pi = abs_eta.max() <= np.float32(np.pi)
        if stops_at_pi:
            masks[name] = any_per_event(offsets, is_near_pi)
    return masks


def large_momenta(
    scalars: Mapping[str, NDArray[Any]], collections: Mapping[str, Jagged]
) -> dict[str, Mask]:
    """Find events whose momenta are as large as if they were in MeV.

    Missing energy, leptons and jets are large if all in the event are above `_LARGE_PT`; tracks,
    photons and neutral hadrons, if their mean is above `_LARGE_MEAN_PT`.

    Returns:
        Two masks (num_events,) for each collection (and MET) with large momenta, by the name of
        their counter: of the events with large momenta, and of those with any.
    """
    has_large = {"MET": _is_large(scalars["met"])}
    has_any = {"MET": scalars["met"] > 0}
    for name, candidates in collections.items():
        has_any[name] = np.diff(candidates.offsets) > 0
        if name in PARTICLE_COLLECTIONS:
            has_large[name] = _mean_momenta(candidates) > _LARGE_MEAN_PT
        else:
            # All are large if there are candidates and none is small.
            is_small = ~_is_large(candidates.size)
            has_small = any_per_event(candidates.offsets, is_small)
            has_large[name] = has_any[name] & ~has_small
    masks_by_counter = {}
    for name, has_large_momenta in has_large.items():
        if has_large_momenta.any():
            masks_by_counter[f"{tally.LARGE_MOMENTA}{name}"] = has_large_momenta
            masks_by_counter[f"{tally.ANY_MOMENTA}{name}"] = has_any[name]
    return masks_by_counter


def _is_large(momenta: NDArray[Any]) -> Mask:
    """(num_momenta,) whether a momentum is finite and above `_LARGE_PT`."""
    is_finite = np.isfinite(momenta)
    is_large: Mask = is_finite & (momenta > _LARGE_PT)
    return is_large


def _mean_momenta(candidates: Jagged) -> NDArray[np.float64]:
    """(num_events,) mean pT or ET of the candidates, 0 without any; NaN and infinity count as 0."""
    counts = np.diff(candidates.offsets)
    num_events = len(counts)
    is_finite = np.isfinite(candidates.size)
    finite_size = np.where(is_finite, candidates.size, 0)
    event_of_candidate = np.repeat(np.arange(num_events), counts)
    sums = np.bincount(event_of_candidate, finite_size, num_events)
    return sums / np.maximum(counts, 1)
