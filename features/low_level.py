"""The particle list (LLF) of an event: the lepton, then tracks, photons and neutral hadrons, 19 features each.

Columns are in the order of `features.schema.PARTICLE_FEATURE_NAMES`. The lists made here are unpadded; padding to 801
rows happens when the features Parquet is written.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from features.arrays import Events, Floats, Indices
from features.compiling import compiled
from features.isolation import relative_isolation
from features.kinematics import delta_r2, energy, px, py, pz
from features.leptons import Lepton
from features.schema import MAX_NEUTRAL_HADRONS, MAX_PHOTONS, MAX_TRACKS

#: Codes of `features.settings.Ordering` inside the kernels, which know no strings.
ORDER_FILE: Final = 0
ORDER_INCREASING: Final = 1
ORDER_DECREASING: Final = -1

_TRACK: Final = 0
_PHOTON: Final = 1
_NEUTRAL: Final = 2


@compiled
def comes_first(a: int, b: int, kind: Indices, pt: Floats, eta: Floats, phi: Floats) -> bool:
    """Whether a goes before b where the sort key ties: by kind, then higher pT, smaller eta, smaller phi."""
    if kind[a] != kind[b]:
        return bool(kind[a] < kind[b])
    if pt[a] != pt[b]:
        return bool(pt[a] > pt[b])
    if eta[a] != eta[b]:
        return bool(eta[a] < eta[b])
    return bool(phi[a] < phi[b])


@compiled
def sorted_by(key: Floats, kind: Indices, pt: Floats, eta: Floats, phi: Floats) -> Indices:
    """Indices that sort by `key`, ties by `comes_first`: the result never depends on the order of the input.

    Args:
        key: (num_particles,) what to sort by, smallest first.
        kind: (num_particles,) 0 track, 1 photon, 2 neutral hadron.
        pt: (num_particles,) [GeV].
        eta: (num_particles,).
        phi: (num_particles,) [rad].

    Returns:
        (num_particles,) indices.

    Examples:
        >>> same, zero = np.ones(2), np.zeros(2)
        >>> sorted_by(same, np.zeros(2, np.int64), np.array([1.0, 2.0]), zero, zero).tolist()
        [1, 0]
    """
    order = np.argsort(key, kind="mergesort")
    for end in range(1, order.size):
        at = end
        while (
            at > 0
            and key[order[at - 1]] == key[order[at]]
            and comes_first(order[at], order[at - 1], kind, pt, eta, phi)
        ):
            order[at - 1], order[at] = order[at], order[at - 1]
            at -= 1
    return order


@compiled
def highest_pt(eligible: Indices, pt: Floats, eta: Floats, phi: Floats, cap: int) -> Indices:
    """Of the eligible candidates of one kind the `cap` of highest pT, in input order.

    Examples:
        >>> zero = np.zeros(3)
        >>> highest_pt(np.arange(3), np.array([1.0, 3.0, 2.0]), zero, zero, 2).tolist()
        [1, 2]
    """
    if eligible.size <= cap:
        return eligible
    pt, eta, phi = pt[eligible], eta[eligible], phi[eligible]
    order = sorted_by(-pt, np.zeros(pt.size, dtype=np.int64), pt, eta, phi)
    return np.sort(eligible[order[:cap]])


@compiled
def not_own_tracks(events: Events, event: int, lepton: Lepton, own_track_dr: float) -> Indices:
    """Indices, from the event's first track, of the tracks that are not the lepton's own."""
    first, last = events.tracks.offsets[event], events.tracks.offsets[event + 1]
    eta, phi = events.tracks.eta[first:last], events.tracks.phi[first:last]
    return np.nonzero(delta_r2(eta, phi, lepton.eta, lepton.phi) >= own_track_dr * own_track_dr)[0]


@compiled
def isolations(
    events: Events, event: int, kind: int, kept: Indices, pt: Floats, eta: Floats, phi: Floats, cone: float
) -> Floats:
    """Isolation of the kept candidates of one kind from tracks, photons and neutral hadrons; (num_kept, 3)."""
    out = np.empty((kept.size, 3))
    tracks, photons, neutrals = events.tracks, events.photons, events.neutral_hadrons
    a, b = tracks.offsets[event], tracks.offsets[event + 1]
    out[:, 0] = relative_isolation(
        kept, kind == _TRACK, pt, eta, phi, tracks.pt[a:b], tracks.eta[a:b], tracks.phi[a:b], cone
    )
    a, b = photons.offsets[event], photons.offsets[event + 1]
    out[:, 1] = relative_isolation(
        kept, kind == _PHOTON, pt, eta, phi, photons.pt[a:b], photons.eta[a:b], photons.phi[a:b], cone
    )
    a, b = neutrals.offsets[event], neutrals.offsets[event + 1]
    out[:, 2] = relative_isolation(
        kept, kind == _NEUTRAL, pt, eta, phi, neutrals.pt[a:b], neutrals.eta[a:b], neutrals.phi[a:b], cone
    )
    return out


@compiled
def fill_kinematics(rows: Floats, pt: Floats, eta: Floats, phi: Floats) -> None:
    """Columns 0 to 6: E, px, py, pz, pT, eta, phi of massless particles."""
    rows[:, 0] = energy(pt, eta)
    rows[:, 1] = px(pt, phi)
    rows[:, 2] = py(pt, phi)
    rows[:, 3] = pz(pt, eta)
    rows[:, 4] = pt
    rows[:, 5] = eta
    rows[:, 6] = phi


@compiled
def lepton_row(lepton: Lepton) -> Floats:
    """The 19 features of the selected lepton: vertex 0, no charged hadron, is_electron or is_muon set."""
    row = np.zeros(19)
    row[0] = energy(lepton.pt, lepton.eta)
    row[1] = px(lepton.pt, lepton.phi)
    row[2] = py(lepton.pt, lepton.phi)
    row[3] = pz(lepton.pt, lepton.eta)
    row[4], row[5], row[6] = lepton.pt, lepton.eta, lepton.phi
    row[10], row[11], row[12] = lepton.iso_charged, lepton.iso_photon, lepton.iso_neutral
    row[16] = lepton.is_electron
    row[17] = not lepton.is_electron
    row[18] = lepton.charge
    return row


@compiled
def particle_list(
    events: Events, event: int, lepton: Lepton, own_track_dr: float, cone: float, ordering: int
) -> NDArray[np.float64]:
    """All rows of one event: lepton first, the rest by distance from it or as in the file.

    Args:
        events: The events.
        event: Which one.
        lepton: Its selected lepton.
        own_track_dr: Tracks closer to the lepton than this are the lepton itself and get no row.
        cone: Radius of the isolation cone.
        ordering: ORDER_INCREASING, ORDER_DECREASING (in Delta R from the lepton) or ORDER_FILE.

    Returns:
        (1 + num_candidates, 19), at most 801 rows.
    """
    tracks, photons, neutrals = events.tracks, events.photons, events.neutral_hadrons
    a, b = tracks.offsets[event], tracks.offsets[event + 1]
    c, d = photons.offsets[event], photons.offsets[event + 1]
    e, f = neutrals.offsets[event], neutrals.offsets[event + 1]
    kept_tracks = highest_pt(
        not_own_tracks(events, event, lepton, own_track_dr),
        tracks.pt[a:b],
        tracks.eta[a:b],
        tracks.phi[a:b],
        MAX_TRACKS,
    )
    kept_photons = highest_pt(np.arange(d - c), photons.pt[c:d], photons.eta[c:d], photons.phi[c:d], MAX_PHOTONS)
    kept_neutrals = highest_pt(
        np.arange(f - e), neutrals.pt[e:f], neutrals.eta[e:f], neutrals.phi[e:f], MAX_NEUTRAL_HADRONS
    )
    first_photon = kept_tracks.size
    first_neutral = first_photon + kept_photons.size
    rows = np.zeros((first_neutral + kept_neutrals.size, 19))
    kind = np.zeros(rows.shape[0], dtype=np.int64)

    block = rows[:first_photon]
    fill_kinematics(block, tracks.pt[a:b][kept_tracks], tracks.eta[a:b][kept_tracks], tracks.phi[a:b][kept_tracks])
    block[:, 7] = tracks.x[a:b][kept_tracks]
    block[:, 8] = tracks.y[a:b][kept_tracks]
    block[:, 9] = tracks.z[a:b][kept_tracks]
    block[:, 10:13] = isolations(
        events, event, _TRACK, kept_tracks, tracks.pt[a:b], tracks.eta[a:b], tracks.phi[a:b], cone
    )
    block[:, 13] = 1.0
    block[:, 18] = tracks.charge[a:b][kept_tracks]

    block = rows[first_photon:first_neutral]
    fill_kinematics(
        block, photons.pt[c:d][kept_photons], photons.eta[c:d][kept_photons], photons.phi[c:d][kept_photons]
    )
    block[:, 10:13] = isolations(
        events, event, _PHOTON, kept_photons, photons.pt[c:d], photons.eta[c:d], photons.phi[c:d], cone
    )
    block[:, 15] = 1.0
    kind[first_photon:first_neutral] = _PHOTON

    block = rows[first_neutral:]
    fill_kinematics(
        block,
        neutrals.pt[e:f][kept_neutrals],
        neutrals.eta[e:f][kept_neutrals],
        neutrals.phi[e:f][kept_neutrals],
    )
    block[:, 10:13] = isolations(
        events, event, _NEUTRAL, kept_neutrals, neutrals.pt[e:f], neutrals.eta[e:f], neutrals.phi[e:f], cone
    )
    block[:, 14] = 1.0
    kind[first_neutral:] = _NEUTRAL

    if ordering != ORDER_FILE:
        distance2 = delta_r2(rows[:, 5], rows[:, 6], lepton.eta, lepton.phi)
        rows = rows[sorted_by(ordering * distance2, kind, rows[:, 4], rows[:, 5], rows[:, 6])]
    out = np.empty((rows.shape[0] + 1, 19))
    out[0] = lepton_row(lepton)
    out[1:] = rows
    return out
