"""The particle list (LLF) of an event: the lepton, then tracks, photons and neutral hadrons.

The list is made in two steps. The first, here, chooses and orders the particles and computes their
isolations; it keeps 11 numbers per particle (`features.columns.PARTICLE_CORE`), which are stored on
disk. The second (`features.matrices`) computes the 19 features from them when the features Parquet
is read.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from features.arrays import EventArrays, Floats, Indices, Neutrals, Tracks
from features.columns import (
    ELECTRON,
    MUON,
    NEUTRAL,
    PARTICLE_CORE,
    PHOTON,
    TRACK,
    column_numbers,
)
from features.isolation import Candidates, bucket_order, relative_isolations
from features.kinematics import delta_r2
from features.leptons import Cuts, Lepton
from features.settings import Ordering
from hep_core.compiling import compiled

#: Signs by which the distance to the lepton is multiplied for the sort; 0 for no sort.
ORDERINGS: Final = {Ordering.INCREASING: 1, Ordering.DECREASING: -1, Ordering.FILE: 0}

#: Column numbers of the 11 numbers of a particle, as attributes.
CORE: Final = column_numbers(tuple(PARTICLE_CORE))


@compiled
def event_candidates(events: EventArrays, event: int) -> Candidates:
    """The candidates of one event: tracks, then photons, then neutral hadrons."""
    track_pt, track_eta, track_phi = event_momenta(events.tracks, event)
    photon_pt, photon_eta, photon_phi = event_momenta(events.photons, event)
    neutral_pt, neutral_eta, neutral_phi = event_momenta(events.neutral_hadrons, event)
    pt = np.concatenate((track_pt, photon_pt, neutral_pt))
    eta = np.concatenate((track_eta, photon_eta, neutral_eta))
    phi = np.concatenate((track_phi, photon_phi, neutral_phi))
    first_neutral = track_pt.size + photon_pt.size
    species = np.full(pt.size, NEUTRAL)
    species[:first_neutral] = PHOTON
    species[: track_pt.size] = TRACK
    return Candidates(species, pt, eta, phi)


@compiled
def event_momenta(collection: Tracks | Neutrals, event: int) -> tuple[Floats, Floats, Floats]:
    """Views of pT, eta and phi of the candidates of one event in a collection."""
    start = collection.offsets[event]
    stop = collection.offsets[event + 1]
    pt = collection.pt[start:stop]
    eta = collection.eta[start:stop]
    phi = collection.phi[start:stop]
    return pt, eta, phi


@compiled
def comes_first(a: int, b: int, candidates: Candidates) -> bool:
    """Whether candidate a precedes candidate b if their sort keys are equal.

    Tracks precede photons and neutral hadrons; then higher pT, smaller eta, smaller phi. a and b
    are indices into the candidates.
    """
    species, pt, eta, phi = candidates
    key_of_a = (species[a], -pt[a], eta[a], phi[a])
    key_of_b = (species[b], -pt[b], eta[b], phi[b])
    return bool(key_of_a < key_of_b)


@compiled
def sorted_by(keys: Floats, indices: Indices, candidates: Candidates) -> Indices:
    """Sort candidates by `keys`, equal keys by `comes_first`, whatever the order of the input is.

    The range of keys is cut into as many equal buckets as there are candidates. Sorting by bucket
    gives a nearly sorted list, which an insertion sort completes. This is three times as fast here
    as a general sort.

    Args:
        keys: (n,) sort keys.
        indices: (n,) indices into the candidates.
        candidates: All candidates of the event.
    """
    size = keys.size
    if size < 2:
        return indices.copy()
    min_key = keys.min()
    key_range = keys.max() - min_key
    # The small number avoids a division by zero if all keys are equal.
    buckets_per_unit = (size - 1) / max(key_range, 1e-300)
    buckets = np.empty(size, dtype=np.int64)
    for index, key in enumerate(keys):
        bucket = int((key - min_key) * buckets_per_unit)
        buckets[index] = min(bucket, size - 1)
    _, order = bucket_order(buckets, size)

    # The insertion sort: all before `end` is sorted, and `moving` is moved to its place there.
    for end in range(1, size):
        moving = order[end]
        moving_key = keys[moving]
        position = end
        while position > 0:
            previous = order[position - 1]
            previous_key = keys[previous]
            if previous_key < moving_key:
                break
            is_tied = previous_key == moving_key
            if is_tied and not comes_first(indices[moving], indices[previous], candidates):
                break
            order[position] = previous
            position -= 1
        order[position] = moving
    return indices[order]


@compiled
def highest_pt(eligible: Indices, cap: int, candidates: Candidates) -> Indices:
    """The `cap` candidates of highest pT among the `eligible` ones, as indices in input order.

    Of candidates with the same pT at the cap, `comes_first` decides which are kept.
    """
    if eligible.size <= cap or cap == 0:
        return eligible[:cap]
    pt = candidates.pt[eligible]
    # The lowest pT that is kept.
    num_dropped = pt.size - cap
    min_pt = np.partition(pt, num_dropped)[num_dropped]
    harder = eligible[pt > min_pt]
    tied = eligible[pt == min_pt]
    tied_in_order = sorted_by(np.zeros(tied.size), tied, candidates)
    num_of_tied = cap - harder.size
    hardest = np.concatenate((harder, tied_in_order[:num_of_tied]))
    return np.sort(hardest)


@compiled
def listed_candidates(candidates: Candidates, lepton: Lepton[float], cuts: Cuts) -> Indices:
    """Indices of the candidates that get a row in the particle list of an event.

    These are the hardest of each species (tracks, photons, neutral hadrons), up to its cap, without
    the lepton's own track. As published, they are the first of each species instead.
    """
    listed = np.empty(candidates.pt.size, dtype=np.int64)
    num_listed = 0
    caps = (cuts.max_tracks, cuts.max_photons, cuts.max_neutral_hadrons)
    for species, cap in enumerate(caps):
        eligible = np.flatnonzero(candidates.species == species)
        if species == TRACK:
            distance2 = lepton_distance2(candidates, eligible, lepton)
            is_own_track = distance2 < cuts.own_track_dr * cuts.own_track_dr
            eligible = eligible[~is_own_track]
        capped = eligible[:cap]
        if not cuts.as_published:
            capped = highest_pt(eligible, cap, candidates)
        end = num_listed + capped.size
        listed[num_listed:end] = capped
        num_listed = end
    return listed[:num_listed]


@compiled
def lepton_distance2(candidates: Candidates, indices: Indices, lepton: Lepton[float]) -> Floats:
    """(n,) squared distances in eta and phi of some candidates, by their `indices`, to a lepton."""
    eta = candidates.eta[indices]
    phi = candidates.phi[indices]
    distance2: Floats = delta_r2(eta, phi, lepton.eta, lepton.phi)
    return distance2


@compiled
def particle_list(
    events: EventArrays,
    event: int,
    candidates: Candidates,
    lepton: Lepton[float],
    cuts: Cuts,
    core: NDArray[np.float32],
) -> int:
    """Fill `core` with the particles of one event: the lepton, then the listed candidates.

    The candidates are sorted by their distance to the lepton in eta and phi, if the settings say
    so. `core` is (num_rows, 11), with at least the rows of the longest list; its columns are those
    of `PARTICLE_CORE`.

    Returns:
        The number of rows filled.
    """
    listed = listed_candidates(candidates, lepton, cuts)
    if cuts.ordering != 0:
        # Squared distances have the same order; the factor -1 puts the farthest first.
        distance2 = lepton_distance2(candidates, listed, lepton)
        listed = sorted_by(cuts.ordering * distance2, listed, candidates)
    core[: listed.size + 1] = 0.0
    fill_lepton(lepton, core[0])
    if listed.size == 0:
        return 1

    isolations = relative_isolations(candidates, cuts.isolation_cone, cuts.as_published)
    first_track = events.tracks.offsets[event]
    for row, index in enumerate(listed, 1):
        fill_candidate(candidates, index, isolations[index], core[row])
        if candidates.species[index] == TRACK:
            # Tracks are the first candidates, so the index is also that among the event's tracks.
            fill_track(events.tracks, first_track + index, cuts.as_published, core[row])
    return listed.size + 1


@compiled
def fill_candidate(
    candidates: Candidates, index: int, isolation: Floats, core_row: NDArray[np.float32]
) -> None:
    """Fill the (11,) row of a candidate, but for the numbers that only tracks have.

    `isolation` (3,) is that of the candidate from each species.
    """
    core_row[CORE.kind] = candidates.species[index]
    core_row[CORE.pt] = candidates.pt[index]
    core_row[CORE.eta] = candidates.eta[index]
    core_row[CORE.phi] = candidates.phi[index]
    core_row[CORE.iso_charged] = isolation[TRACK]
    core_row[CORE.iso_photon] = isolation[PHOTON]
    core_row[CORE.iso_neutral] = isolation[NEUTRAL]


@compiled
def fill_track(
    tracks: Tracks, index: int, as_published: bool, core_row: NDArray[np.float32]
) -> None:
    """Fill charge and vertex in the (11,) row of a track; as published, with the sign of its ID."""
    charge = tracks.charge[index]
    if as_published:
        charge = np.sign(tracks.pid[index])
    core_row[CORE.charge] = charge
    core_row[CORE.vertex_x] = tracks.x[index]
    core_row[CORE.vertex_y] = tracks.y[index]
    core_row[CORE.vertex_z] = tracks.z[index]


@compiled
def fill_lepton(lepton: Lepton[float], core_row: NDArray[np.float32]) -> None:
    """Fill the (11,) row of the selected lepton; its vertex stays 0."""
    core_row[CORE.kind] = ELECTRON if lepton.is_electron else MUON
    core_row[CORE.charge] = lepton.charge
    core_row[CORE.pt] = lepton.pt
    core_row[CORE.eta] = lepton.eta
    core_row[CORE.phi] = lepton.phi
    core_row[CORE.iso_charged] = lepton.iso_charged
    core_row[CORE.iso_photon] = lepton.iso_photon
    core_row[CORE.iso_neutral] = lepton.iso_neutral
