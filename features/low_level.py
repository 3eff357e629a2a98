"""The particle list (LLF) of an event: the lepton, then tracks, photons and neutral hadrons.

The list is made in two steps. The first, here, chooses and orders the particles and computes their isolations; it keeps
11 numbers per particle (`features.columns.PARTICLE_CORE`), which are stored on disk. The second (`features.matrices`)
computes the 19 features from them when the features Parquet is read.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from features.arrays import EventArrays, Floats, Indices
from features.columns import ELECTRON, MUON, NEUTRAL, PARTICLE_CORE, PHOTON, TRACK, column_numbers
from features.isolation import Candidates, by_bucket, relative_isolations
from features.kinematics import delta_r2
from features.leptons import Cuts, Lepton
from features.settings import Ordering
from hep_core.compiling import compiled

#: Signs of the distance to the lepton in the sort key; 0 for the order of the file.
ORDERINGS: Final = {Ordering.INCREASING: 1, Ordering.DECREASING: -1, Ordering.FILE: 0}

#: Column numbers.
CORE: Final = column_numbers(tuple(PARTICLE_CORE))


@compiled
def candidates_of(events: EventArrays, event: int) -> Candidates:
    """Tracks, then photons, then neutral hadrons of one event."""
    tracks, photons, neutrals = events.tracks, events.photons, events.neutral_hadrons
    t0, t1 = tracks.offsets[event], tracks.offsets[event + 1]
    p0, p1 = photons.offsets[event], photons.offsets[event + 1]
    n0, n1 = neutrals.offsets[event], neutrals.offsets[event + 1]
    kind = np.full(t1 - t0 + p1 - p0 + n1 - n0, TRACK)
    kind[t1 - t0 :] = PHOTON
    kind[t1 - t0 + p1 - p0 :] = NEUTRAL
    return Candidates(
        kind,
        np.concatenate((tracks.pt[t0:t1], photons.pt[p0:p1], neutrals.pt[n0:n1])),
        np.concatenate((tracks.eta[t0:t1], photons.eta[p0:p1], neutrals.eta[n0:n1])),
        np.concatenate((tracks.phi[t0:t1], photons.phi[p0:p1], neutrals.phi[n0:n1])),
    )


@compiled
def comes_first(a: int, b: int, candidates: Candidates) -> bool:
    """Whether a comes before b at equal sort keys: by kind, then higher pT, smaller eta, smaller phi."""
    kind, pt, eta, phi = candidates
    return bool((kind[a], -pt[a], eta[a], phi[a]) < (kind[b], -pt[b], eta[b], phi[b]))


@compiled
def sorted_by(key: Floats, chosen: Indices, candidates: Candidates) -> Indices:
    """Sort the chosen candidates by `key`, ties by `comes_first`: the order of the input does not matter.

    A bucket sort: one bucket per candidate, then an insertion sort of the nearly sorted list. It is three times as fast
    here as a general sort. All arrays are (num_chosen,): keys, and indices into the candidates.
    """
    count = key.size
    if count < 2:
        return chosen.copy()
    lowest = key.min()
    scale = (count - 1) / max(key.max() - lowest, 1e-300)
    bucket = np.empty(count, dtype=np.int64)
    for index in range(count):
        bucket[index] = min(int((key[index] - lowest) * scale), count - 1)
    _, order = by_bucket(bucket, count)
    for end in range(1, count):
        moving = order[end]
        at = end
        while at > 0:
            before = order[at - 1]
            if key[before] < key[moving]:
                break
            if key[before] == key[moving] and not comes_first(
                chosen[moving], chosen[before], candidates
            ):
                break
            order[at] = before
            at -= 1
        order[at] = moving
    return chosen[order]


@compiled
def highest_pt(eligible: Indices, cap: int, candidates: Candidates) -> Indices:
    """The `cap` candidates of highest pT among the eligible ones of one kind, in input order."""
    if eligible.size <= cap or cap == 0:
        return eligible[:cap]
    pt = candidates.pt[eligible]
    lowest = np.partition(pt, pt.size - cap)[pt.size - cap]
    harder, tied = eligible[pt > lowest], eligible[pt == lowest]
    kept = sorted_by(np.zeros(tied.size), tied, candidates)[: cap - harder.size]
    return np.sort(np.concatenate((harder, kept)))


@compiled
def chosen_candidates(candidates: Candidates, lepton: Lepton[float], cuts: Cuts) -> Indices:
    """Candidates that get a row: the hardest of each kind (as published, the first), without the lepton's own track."""
    chosen, count = np.empty(candidates.pt.size, dtype=np.int64), 0
    for kind, cap in enumerate((cuts.max_tracks, cuts.max_photons, cuts.max_neutral_hadrons)):
        eligible = np.flatnonzero(candidates.kind == kind)
        if kind == TRACK:
            distance2 = delta_r2(
                candidates.eta[eligible], candidates.phi[eligible], lepton.eta, lepton.phi
            )
            eligible = eligible[~(distance2 < cuts.own_track_dr * cuts.own_track_dr)]
        kept = eligible[:cap] if cuts.as_published else highest_pt(eligible, cap, candidates)
        chosen[count : count + kept.size] = kept
        count += kept.size
    return chosen[:count]


@compiled
def particle_list(
    events: EventArrays,
    event: int,
    candidates: Candidates,
    lepton: Lepton[float],
    cuts: Cuts,
    out: NDArray[np.float32],
) -> int:
    """Fill `out`, (at least the rows of the longest list, 11), with the particles of one event: the lepton, the others.

    Returns the number of rows filled; the columns are those of `PARTICLE_CORE`.
    """
    chosen = chosen_candidates(candidates, lepton, cuts)
    if cuts.ordering != 0:
        distance2 = delta_r2(candidates.eta[chosen], candidates.phi[chosen], lepton.eta, lepton.phi)
        chosen = sorted_by(cuts.ordering * distance2, chosen, candidates)
    out[: chosen.size + 1] = 0.0
    out[0, CORE.kind] = ELECTRON if lepton.is_electron else MUON
    out[0, CORE.charge] = lepton.charge
    out[0, CORE.pt], out[0, CORE.eta], out[0, CORE.phi] = lepton.pt, lepton.eta, lepton.phi
    out[0, CORE.iso_charged] = lepton.iso_charged
    out[0, CORE.iso_photon] = lepton.iso_photon
    out[0, CORE.iso_neutral] = lepton.iso_neutral
    if chosen.size == 0:
        return 1
    relative = relative_isolations(candidates, cuts.isolation_cone, cuts.as_published)
    tracks, first_track = events.tracks, events.tracks.offsets[event]
    for row, index in enumerate(chosen, 1):
        out[row, CORE.kind] = candidates.kind[index]
        out[row, CORE.pt] = candidates.pt[index]
        out[row, CORE.eta] = candidates.eta[index]
        out[row, CORE.phi] = candidates.phi[index]
        for kind in range(3):
            out[row, CORE.iso_charged + kind] = relative[index, kind]
        if candidates.kind[index] == TRACK:
            track = first_track + index
            charge = np.sign(tracks.pid[track]) if cuts.as_published else tracks.charge[track]
            out[row, CORE.charge] = charge
            out[row, CORE.vertex_x] = tracks.x[track]
            out[row, CORE.vertex_y] = tracks.y[track]
            out[row, CORE.vertex_z] = tracks.z[track]
    return chosen.size + 1
