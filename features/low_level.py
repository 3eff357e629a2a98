"""The particle list (LLF) of an event: the lepton, then tracks, photons and neutral hadrons, 19 features each.

Columns are in the order of `features.schema.PARTICLE_FEATURE_NAMES`. The lists made here are unpadded; padding to 801
rows happens when the features Parquet is written.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from features.arrays import Events, Floats, Indices, Neutrals
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
def not_own_tracks(eta: Floats, phi: Floats, lepton: Lepton, own_track_dr: float) -> Indices:
    """Indices of the event's tracks that are not the lepton's own."""
    return np.nonzero(delta_r2(eta, phi, lepton.eta, lepton.phi) >= own_track_dr * own_track_dr)[0]


@compiled
def candidate_rows(
    events: Events, event: int, kind: int, kept: Indices, pt: Floats, eta: Floats, phi: Floats, cone: float
) -> Floats:
    """Kinematics and isolations, columns 0 to 6 and 10 to 12, of the kept candidates of one kind; the rest 0.

    Args:
        events: The events.
        event: Which one.
        kind: Of the candidates: _TRACK, _PHOTON or _NEUTRAL.
        kept: (num_kept,) their indices among the event's candidates of that kind.
        pt: (num_candidates,) pT or ET [GeV] of all of that kind, as the next two.
        eta: (num_candidates,).
        phi: (num_candidates,) [rad].
        cone: Radius of the isolation cone.

    Returns:
        (num_kept, 19).
    """
    rows = np.zeros((kept.size, 19))
    rows[:, 0] = energy(pt[kept], eta[kept])
    rows[:, 1] = px(pt[kept], phi[kept])
    rows[:, 2] = py(pt[kept], phi[kept])
    rows[:, 3] = pz(pt[kept], eta[kept])
    rows[:, 4] = pt[kept]
    rows[:, 5] = eta[kept]
    rows[:, 6] = phi[kept]
    tracks, photons, neutrals = events.tracks, events.photons, events.neutral_hadrons
    a, b = tracks.offsets[event], tracks.offsets[event + 1]
    rows[:, 10] = relative_isolation(
        kept, kind == _TRACK, pt, eta, phi, tracks.pt[a:b], tracks.eta[a:b], tracks.phi[a:b], cone
    )
    a, b = photons.offsets[event], photons.offsets[event + 1]
    rows[:, 11] = relative_isolation(
        kept, kind == _PHOTON, pt, eta, phi, photons.pt[a:b], photons.eta[a:b], photons.phi[a:b], cone
    )
    a, b = neutrals.offsets[event], neutrals.offsets[event + 1]
    rows[:, 12] = relative_isolation(
        kept, kind == _NEUTRAL, pt, eta, phi, neutrals.pt[a:b], neutrals.eta[a:b], neutrals.phi[a:b], cone
    )
    return rows


@compiled
def track_rows(events: Events, event: int, lepton: Lepton, own_track_dr: float, cone: float) -> Floats:
    """Rows of the hardest tracks but the lepton's own, in file order; (at most 450, 19)."""
    a, b = events.tracks.offsets[event], events.tracks.offsets[event + 1]
    pt, eta, phi = events.tracks.pt[a:b], events.tracks.eta[a:b], events.tracks.phi[a:b]
    kept = highest_pt(not_own_tracks(eta, phi, lepton, own_track_dr), pt, eta, phi, MAX_TRACKS)
    rows = candidate_rows(events, event, _TRACK, kept, pt, eta, phi, cone)
    rows[:, 7] = events.tracks.x[a:b][kept]
    rows[:, 8] = events.tracks.y[a:b][kept]
    rows[:, 9] = events.tracks.z[a:b][kept]
    rows[:, 13] = 1.0
    rows[:, 18] = events.tracks.charge[a:b][kept]
    return rows


@compiled
def neutral_rows(events: Events, event: int, neutrals: Neutrals, kind: int, cap: int, cone: float) -> Floats:
    """Rows of the hardest photons or neutral hadrons, in file order; (at most cap, 19). Vertex and charge are 0."""
    a, b = neutrals.offsets[event], neutrals.offsets[event + 1]
    pt, eta, phi = neutrals.pt[a:b], neutrals.eta[a:b], neutrals.phi[a:b]
    kept = highest_pt(np.arange(b - a), pt, eta, phi, cap)
    rows = candidate_rows(events, event, kind, kept, pt, eta, phi, cone)
    rows[:, 15 if kind == _PHOTON else 14] = 1.0
    return rows


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
) -> Floats:
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
    tracks = track_rows(events, event, lepton, own_track_dr, cone)
    photons = neutral_rows(events, event, events.photons, _PHOTON, MAX_PHOTONS, cone)
    neutrals = neutral_rows(events, event, events.neutral_hadrons, _NEUTRAL, MAX_NEUTRAL_HADRONS, cone)
    first_photon, first_neutral = 1 + tracks.shape[0], 1 + tracks.shape[0] + photons.shape[0]
    rows = np.empty((first_neutral + neutrals.shape[0], 19))
    rows[0] = lepton_row(lepton)
    rows[1:first_photon] = tracks
    rows[first_photon:first_neutral] = photons
    rows[first_neutral:] = neutrals
    if ordering != ORDER_FILE:
        kind = np.full(rows.shape[0] - 1, _TRACK)
        kind[first_photon - 1 :] = _PHOTON
        kind[first_neutral - 1 :] = _NEUTRAL
        rest = rows[1:]
        distance2 = delta_r2(rest[:, 5], rest[:, 6], lepton.eta, lepton.phi)
        rows[1:] = rest[sorted_by(ordering * distance2, kind, rest[:, 4], rest[:, 5], rest[:, 6])]
    return rows
