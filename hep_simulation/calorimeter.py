"""Calorimeters with energy flow: towers, and what of their energy no track explains.

A tower adds up the energies of the particles that hit it and measures the sum with its resolution. Its tracks explain
their part. An excess above the threshold becomes a neutral candidate; otherwise the tracks are scaled to the best
estimate of both measurements. So the energy of charged particles without a track is a neutral candidate too.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from hep_simulation import parameters
from hep_simulation.particles import Floats, Integers, compiled

_MAX_ETA: Final = 5.0


class Calorimeter(NamedTuple):
    """Towers and their resolution."""

    edges: Floats
    """In eta."""
    around: Integers
    """Number of towers around the beam between each pair of edges."""
    resolution_edges: Floats
    resolution_terms: Floats
    """As for `parameters.energy_resolution`."""
    least: float
    """Least energy of a tower and of a neutral excess [GeV]."""


class Hits(NamedTuple):
    """Energies that arrive at a calorimeter."""

    event: Integers
    eta: Floats
    phi: Floats
    energy: Floats

    @property
    def pt(self) -> Floats:
        """Transverse momenta of massless particles [GeV]."""
        pt: Floats = self.energy / np.cosh(self.eta)
        return pt


class MeasuredTracks(NamedTuple):
    """Energies that tracks measured; arrays as in `Hits`."""

    hits: Hits
    resolution: Floats
    """Relative resolution of the energy."""


class Flow(NamedTuple):
    """The result of one calorimeter."""

    neutral: Hits
    """Neutral candidates, in order of the events."""
    scale: Floats
    """Factor on the momentum of each track."""


def _calorimeter(
    *parts: tuple[Floats, int], resolution: tuple[Floats, Floats], least: float
) -> Calorimeter:
    """Towers at positive eta, mirrored: parts from the centre outwards, each with its edges and number around."""
    upper = np.concatenate([edges for edges, _ in parts])
    around = np.concatenate([np.full(len(edges), number) for edges, number in parts])
    mirrored = np.concatenate([-upper[::-1], [0.0], upper]), np.concatenate([around[::-1], around])
    return Calorimeter(*mirrored, *resolution, least)


_FORWARD: Final = np.array([3.125, 3.3, 3.475, 3.65, 3.825, 4.0, 4.175, 4.35, 4.525, 4.7, 5.0])
#: Photons and electrons hit it. 1 degree and 0.0174 in barrel and endcap, 10 degrees and 0.175 forward.
ECAL: Final = _calorimeter(
    (0.0174 * np.arange(1, 171), 360),
    (_FORWARD, 36),
    resolution=(parameters.ECAL_EDGES, parameters.ECAL_TERMS),
    least=parameters.ECAL_MIN,
)
#: All hadrons hit it. 5 degrees and 0.087 in the barrel, 1 degree and 0.0174 in the endcap, forward as above.
HCAL: Final = _calorimeter(
    (0.087 * np.arange(1, 18), 72),
    (1.479 + 0.0174 * np.arange(1, 86), 360),
    (_FORWARD, 36),
    resolution=(parameters.HCAL_EDGES, parameters.HCAL_TERMS),
    least=parameters.HCAL_MIN,
)


def measure(
    calorimeter: Calorimeter, hits: Hits, tracks: MeasuredTracks, rng: np.random.Generator
) -> Flow:
    """What a calorimeter measures; `tracks` are those of the charged particles that hit it."""
    edges, terms, least = calorimeter[2:]
    hits = Hits(*(column[np.abs(hits.eta) < _MAX_ETA] for column in hits))
    keys = tower_of(hits.event, hits.eta, hits.phi, calorimeter)
    track_keys = tower_of(*tracks.hits[:3], calorimeter)
    order = np.argsort(np.concatenate([hits.event, tracks.hits.event]), kind="stable")
    towers, place = _distinct(
        np.concatenate([keys, track_keys]), order, 360 * len(calorimeter.around)
    )
    hit_place, track_place = place[: len(keys)], place[len(keys) :]
    event, low_eta, high_eta, low_phi, high_phi = _borders(towers, calorimeter)
    middle = 0.5 * (low_eta + high_eta)
    true = np.bincount(hit_place, hits.energy, len(towers))
    energy = parameters.lognormal(
        true, parameters.energy_resolution(true, middle, edges, terms), rng
    )
    sigma = parameters.energy_resolution(energy, middle, edges, terms)
    energy = np.where((energy < least) | (energy < sigma), 0.0, energy)
    eta, phi = rng.uniform(low_eta, high_eta), rng.uniform(low_phi, high_phi)
    charged = np.bincount(track_place, tracks.hits.energy, len(towers))
    # A track whose own measurement is better than the tower's says how well its part is known.
    error = tracks.resolution * tracks.hits.energy
    charged_sigma = np.sqrt(np.bincount(track_place, np.square(error), len(towers)))
    excess = np.maximum(energy - charged, 0.0)
    is_neutral = (excess > least) & (excess > np.hypot(charged_sigma, sigma))
    with np.errstate(divide="ignore", invalid="ignore"):
        of_track, of_tower = (
            1 / np.square(charged_sigma),
            np.where(sigma > 0, 1 / np.square(sigma), 0.0),
        )
        best = (of_track * charged + of_tower * energy) / (of_track + of_tower)
        scale = np.where((charged > 0) & ~is_neutral & np.isfinite(best), best / charged, 1.0)
    neutral = Hits(event[is_neutral], eta[is_neutral], phi[is_neutral], excess[is_neutral])
    return Flow(neutral, scale[track_place])


def tower_of(event: Integers, eta: Floats, phi: Floats, calorimeter: Calorimeter) -> Integers:
    """One number per event and tower, in the order of the events; |eta| is below 5."""
    num_rows = len(calorimeter.around)
    row = np.clip(np.searchsorted(calorimeter.edges, eta) - 1, 0, num_rows - 1)
    around = calorimeter.around[row]
    column = np.minimum(((phi + np.pi) / (2 * np.pi) * around).astype(np.int64), around - 1)
    towers: Integers = (event * num_rows + row) * 360 + column
    return towers


@compiled
def _distinct(keys: Integers, order: Integers, per_event: int) -> tuple[Integers, Integers]:
    """Distinct numbers of towers, and the place of each key among them; `order` is that of the events."""
    towers, place, place_of = np.empty_like(keys), np.empty_like(keys), np.full(per_event, -1)
    first = found = begin = 0
    for each in order:
        if keys[each] >= begin + per_event:
            # Another event: forget the towers of the one before.
            for tower in towers[first:found]:
                place_of[tower - begin] = -1
            first, begin = found, keys[each] // per_event * per_event
        column = keys[each] - begin
        if place_of[column] < 0:
            place_of[column] = found
            towers[found] = keys[each]
            found += 1
        place[each] = place_of[column]
    return towers[:found], place


def _borders(
    towers: Integers, calorimeter: Calorimeter
) -> tuple[Integers, Floats, Floats, Floats, Floats]:
    rest, column = np.divmod(towers, 360)
    event, row = np.divmod(rest, len(calorimeter.around))
    width = 2 * np.pi / calorimeter.around[row]
    low_phi = -np.pi + column * width
    return event, calorimeter.edges[row], calorimeter.edges[row + 1], low_phi, low_phi + width
