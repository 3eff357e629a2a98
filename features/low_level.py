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

from features.arrays import EventArrays, Floats, Indices
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
    tracks, photons, neutrals = events.tracks, events.photons, events.neutral_hadrons
    in_tracks = slice(tracks.offsets[event], tracks.offsets[event + 1])
    in_photons = slice(photons.offsets[event], photons.offsets[event + 1])
    in_neutrals = slice(neutrals.offsets[event], neutrals.offsets[event + 1])
    pt = np.concatenate((tracks.pt[in_tracks], photons.pt[in_photons], neutrals.pt[in_neutrals]))
    eta = np.concatenate(
        (tracks.eta[in_tracks], photons.eta[in_photons], neutrals.eta[in_neutrals])
    )
    phi = np.concatenate(
        (tracks.phi[in_tracks], photons.phi[in_photons], neutrals.phi[in_neutrals])
    )
    num_tracks = in_tracks.stop - in_tracks.start
    num_photons = in_photons.stop - in_photons.start
    species = np.full(pt.size, NEUTRAL)
    species[: num_tracks + num_photons] = PHOTON
    species[:num_tracks] = TRACK
    return Candidates(species, pt, eta, phi)


@compiled
def comes_first(a: int, b: int, candidates: Candidates) -> bool:
    """Whether candidate a precedes candidate b if their sort keys are equal.

    Tracks precede photons and neutral hadrons; then higher pT, smaller eta, smaller phi. a and b
    are indices into the candidates.
    """
    species, pt, eta, phi = candidates
    return bool((species[a], -pt[a], eta[a], phi[a]) < (species[b], -pt[b], eta[b], phi[b]))


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
    # The small number avoids a division by zero if all keys are equal.
    min_key = keys.min()
    buckets_per_unit = (size - 1) / max(keys.max() - min_key, 1e-300)
    buckets = np.empty(size, dtype=np.int64)
    for i in range(size):
        buckets[i] = min(int((keys[i] - min_key) * buckets_per_unit), size - 1)
    _, order = bucket_order(buckets, size)

    # The insertion sort: all before `end` is sorted, and `moving` is moved to its place there.
    for end in range(1, size):
        moving = order[end]
        position = end
        while position > 0:
            previous = order[position - 1]
            if keys[previous] < keys[moving]:
                break
            if keys[previous] == keys[moving] and not comes_first(
                indices[moving], indices[previous], candidates
            ):
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
    min_pt = np.partition(pt, pt.size - cap)[pt.size - cap]
    harder = eligible[pt > min_pt]
    tied = eligible[pt == min_pt]
    tied_in_order = sorted_by(np.zeros(tied.size), tied, candidates)
    return np.sort(np.concatenate((harder, tied_in_order[: cap - harder.size])))


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
            distance2 = delta_r2(
                candidates.eta[eligible], candidates.phi[eligible], lepton.eta, lepton.phi
            )
            is_own_track = distance2 < cuts.own_track_dr * cuts.own_track_dr
            eligible = eligible[~is_own_track]
        capped = eligible[:cap] if cuts.as_published else highest_pt(eligible, cap, candidates)
        listed[num_listed : num_listed + capped.size] = capped
        num_listed += capped.size
    return listed[:num_listed]


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
        distance2 = delta_r2(candidates.eta[listed], candidates.phi[listed], lepton.eta, lepton.phi)
        listed = sorted_by(cuts.ordering * distance2, listed, candidates)
    core[: listed.size + 1] = 0.0
    fill_lepton(lepton, core[0])
    if listed.size == 0:
        return 1

    isolations = relative_isolations(candidates, cuts.isolation_cone, cuts.as_published)
    tracks = events.tracks
    first_track = tracks.offsets[event]
    for row, index in enumerate(listed, 1):
        core[row, CORE.kind] = candidates.species[index]
        core[row, CORE.pt] = candidates.pt[index]
        core[row, CORE.eta] = candidates.eta[index]
        core[row, CORE.phi] = candidates.phi[index]
        core[row, CORE.iso_charged] = isolations[index, TRACK]
        core[row, CORE.iso_photon] = isolations[index, PHOTON]
        core[row, CORE.iso_neutral] = isolations[index, NEUTRAL]
        if candidates.species[index] == TRACK:
            # Tracks are the first candidates, so the index is also that among the event's tracks.
            track = first_track + index
            charge = np.sign(tracks.pid[track]) if cuts.as_published else tracks.charge[track]
            core[row, CORE.charge] = charge
            core[row, CORE.vertex_x] = tracks.x[track]
            core[row, CORE.vertex_y] = tracks.y[track]
            core[row, CORE.vertex_z] = tracks.z[track]
    return listed.size + 1


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
