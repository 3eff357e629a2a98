"""Calorimeters with energy flow: towers, and the energy in them that no track explains.

A tower adds up the energies of the particles that hit it and measures the sum with its resolution.
Its tracks explain their share. An excess above the threshold becomes a neutral candidate; otherwise
the tracks are scaled to the best estimate of both measurements. So the energy of charged particles
without a track is a neutral candidate too.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hep_simulation import parameters
from hep_simulation.particles import Floats, Integers, compiled

#: Highest |eta| of a tower.
_MAX_ETA: Final = 5.0
#: Highest number of towers around the beam.
_MAX_COLUMNS: Final = 360


class Calorimeter(NamedTuple):
    """The borders of the towers of a calorimeter, and its resolution.

    A tower is a cell in eta and phi. The towers of a row have the same borders in eta.
    """

    eta_edges: Floats
    """(num_rows + 1,) borders of the rows, in rising order."""
    num_around: Integers
    """(num_rows,) number of towers of each row around the beam."""
    resolution_edges: Floats
    """Edges in |eta| and terms of the resolution, as for `parameters.energy_resolution`."""
    resolution_terms: Floats
    min_energy: float
    """Least energy of a tower and of a neutral excess [GeV]."""

    def resolution(self, energy: Floats, eta: Floats) -> Floats:
        """Standard deviation of the measured energy of towers [GeV], (num_towers,)."""
        return parameters.energy_resolution(
            energy, eta, self.resolution_edges, self.resolution_terms
        )


class Hits(NamedTuple):
    """Energies [GeV] that arrive at a calorimeter, and where; all (n,)."""

    event: Integers
    eta: Floats
    phi: Floats
    energy: Floats

    @property
    def pt(self) -> Floats:
        """Transverse momenta of massless particles [GeV]."""
        pt: Floats = self.energy / np.cosh(self.eta)
        return pt

    def select(self, is_selected: NDArray[np.bool_]) -> Hits:
        """Some of the hits."""
        return Hits._make(column[is_selected] for column in self)


class MeasuredTracks(NamedTuple):
    """Energies that tracks measured, and where the tracks hit a calorimeter; all (n,)."""

    hits: Hits
    resolution: Floats
    """Relative resolution of the energy."""


class Flow(NamedTuple):
    """The result of one calorimeter."""

    neutral: Hits
    """Neutral candidates, in order of the events."""
    scale: Floats
    """(num_tracks,) factor on the momentum of each track; 1 if it is not scaled."""


class _Towers(NamedTuple):
    """Towers that were hit, in order of the events; all (num_towers,)."""

    event: Integers
    min_eta: Floats
    max_eta: Floats
    min_phi: Floats
    max_phi: Floats


def _calorimeter(
    *sections: tuple[Floats, int], resolution: tuple[Floats, Floats], min_energy: float
) -> Calorimeter:
    """Make a calorimeter that is symmetric in eta.

    Each section, from the centre outwards, is a pair: the upper edges in eta of its rows, and the
    number of towers around the beam in each. The rows are mirrored to negative eta. `resolution`
    has edges and terms, `min_energy` is in GeV.
    """
    upper_edges = np.concatenate([edges for edges, _ in sections])
    columns_of_section = [num_columns for _, num_columns in sections]
    rows_of_section = [len(edges) for edges, _ in sections]
    num_around = np.repeat(columns_of_section, rows_of_section)
    mirrored_edges = -upper_edges[::-1]
    all_edges = np.concatenate([mirrored_edges, [0.0], upper_edges])
    all_around = np.concatenate([num_around[::-1], num_around])
    resolution_edges, resolution_terms = resolution
    return Calorimeter(all_edges, all_around, resolution_edges, resolution_terms, min_energy)


_FORWARD: Final = np.array([3.125, 3.3, 3.475, 3.65, 3.825, 4.0, 4.175, 4.35, 4.525, 4.7, 5.0])
#: Photons and electrons hit it. Its towers have 1 degree in phi and 0.0174 in eta in barrel and
#: endcap, 10 degrees and 0.175 in the forward section.
ECAL: Final = _calorimeter(
    (0.0174 * np.arange(1, 171), 360),
    (_FORWARD, 36),
    resolution=(parameters.ECAL_EDGES, parameters.ECAL_TERMS),
    min_energy=parameters.ECAL_MIN,
)
#: All hadrons hit it. Its towers have 5 degrees in phi and 0.087 in eta in the barrel, 1 degree and
#: 0.0174 in the endcap; the forward section is that of `ECAL`.
HCAL: Final = _calorimeter(
    (0.087 * np.arange(1, 18), 72),
    (1.479 + 0.0174 * np.arange(1, 86), 360),
    (_FORWARD, 36),
    resolution=(parameters.HCAL_EDGES, parameters.HCAL_TERMS),
    min_energy=parameters.HCAL_MIN,
)


def measure(
    calorimeter: Calorimeter, hits: Hits, tracks: MeasuredTracks, rng: np.random.Generator
) -> Flow:
    """Measure hits with a calorimeter; `tracks` are those of the charged particles that hit it.

    The energy of a tower is smeared, and set to 0 if it is below the threshold or its error. Its
    excess over the tracks is a neutral candidate, at a random place in the tower, if it is above
    the threshold and the combined error. Otherwise the tracks are scaled to the mean of both
    measurements, weighted by their inverse variances.
    """
    hits = hits.select(np.abs(hits.eta) < _MAX_ETA)
    towers, hit_tower, track_tower = _hit_towers(calorimeter, hits, tracks.hits)
    num_towers = len(towers.event)

    # The energy that each tower measures, 0 for noise.
    eta = 0.5 * (towers.min_eta + towers.max_eta)
    true_energy = np.bincount(hit_tower, hits.energy, num_towers)
    true_sigma = calorimeter.resolution(true_energy, eta)
    energy = parameters.lognormal(true_energy, true_sigma, rng)
    sigma = calorimeter.resolution(energy, eta)
    is_noise = (energy < calorimeter.min_energy) | (energy < sigma)
    energy = np.where(is_noise, 0.0, energy)
    random_eta = rng.uniform(towers.min_eta, towers.max_eta)
    random_phi = rng.uniform(towers.min_phi, towers.max_phi)

    # The energy that the tracks of a tower measure, with its error.
    track_energy = np.bincount(track_tower, tracks.hits.energy, num_towers)
    variance_of_track = np.square(tracks.resolution * tracks.hits.energy)
    track_variance = np.bincount(track_tower, variance_of_track, num_towers)
    track_sigma = np.sqrt(track_variance)

    # What the tower measures beyond its tracks is a neutral candidate.
    excess = np.maximum(energy - track_energy, 0.0)
    combined_sigma = np.hypot(track_sigma, sigma)
    is_significant = excess > combined_sigma
    has_neutral = is_significant & (excess > calorimeter.min_energy)
    candidates = Hits(towers.event, random_eta, random_phi, excess)
    neutral = candidates.select(has_neutral)

    # Without a neutral candidate the tracks are scaled to the mean of both measurements.
    mean_energy = _weighted_mean(track_energy, track_sigma, energy, sigma)
    has_tracks = track_energy > 0
    is_scaled = has_tracks & ~has_neutral & np.isfinite(mean_energy)
    scale = np.ones(num_towers)
    np.divide(mean_energy, track_energy, out=scale, where=is_scaled)
    return Flow(neutral, scale[track_tower])


def _weighted_mean(
    track_energy: Floats, track_sigma: Floats, energy: Floats, sigma: Floats
) -> Floats:
    """(num_towers,) mean energy of tracks and tower, weighted by their inverse variances [GeV].

    A tower without an error has no weight. The mean is NaN where the tracks have no error.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        track_weight = 1 / np.square(track_sigma)
        inverse_variance = 1 / np.square(sigma)
        tower_weight = np.where(sigma > 0, inverse_variance, 0.0)
        weighted_sum = track_weight * track_energy + tower_weight * energy
        mean: Floats = weighted_sum / (track_weight + tower_weight)
    return mean


def _hit_towers(
    calorimeter: Calorimeter, hits: Hits, tracks: Hits
) -> tuple[_Towers, Integers, Integers]:
    """Find the towers that hits or tracks reach.

    Returns:
        The towers; the index of the tower of each hit; that of each track.
    """
    hit_keys = tower_keys(hits.event, hits.eta, hits.phi, calorimeter)
    track_keys = tower_keys(tracks.event, tracks.eta, tracks.phi, calorimeter)
    keys = np.concatenate([hit_keys, track_keys])
    events = np.concatenate([hits.event, tracks.event])
    order = np.argsort(events, kind="stable")
    num_rows = len(calorimeter.num_around)
    towers, tower_of_key = _distinct(keys, order, _MAX_COLUMNS * num_rows)
    hit_tower, track_tower = np.split(tower_of_key, [len(hit_keys)])

    # A key is (event * num_rows + row) * _MAX_COLUMNS + column, so division gives its parts.
    event_and_row, column = np.divmod(towers, _MAX_COLUMNS)
    event, row = np.divmod(event_and_row, num_rows)
    min_eta = calorimeter.eta_edges[row]
    max_eta = calorimeter.eta_edges[row + 1]
    width = 2 * np.pi / calorimeter.num_around[row]
    min_phi = -np.pi + column * width
    max_phi = min_phi + width
    borders = _Towers(event, min_eta, max_eta, min_phi, max_phi)
    return borders, hit_tower, track_tower


def tower_keys(event: Integers, eta: Floats, phi: Floats, calorimeter: Calorimeter) -> Integers:
    """(n,) a number that identifies event and tower of each hit; |eta| is below 5.

    It is (event * num_rows + row) * _MAX_COLUMNS + column, so keys of later events are larger. The
    row is the place in eta, the column that in phi.
    """
    num_rows = len(calorimeter.num_around)
    edge_above = np.searchsorted(calorimeter.eta_edges, eta)
    row = np.clip(edge_above - 1, 0, num_rows - 1)
    num_columns = calorimeter.num_around[row]
    turns = (phi + np.pi) / (2 * np.pi)
    column = (turns * num_columns).astype(np.int64)
    # An azimuth of pi is in the last column.
    column = np.minimum(column, num_columns - 1)
    event_and_row = event * num_rows + row
    keys: Integers = event_and_row * _MAX_COLUMNS + column
    return keys


@compiled
def _distinct(keys: Integers, order: Integers, keys_per_event: int) -> tuple[Integers, Integers]:
    """Distinct keys of towers, and the index of each key among them.

    `order` are the indices of the keys in order of the events. Within an event, towers are in order
    of their first key there. A table over all towers of one event holds the index of those seen so
    far, -1 for the others. NumPy would do the same, but sorts and takes longer, by:

        np.unique(keys, return_inverse=True)
    """
    towers = np.empty_like(keys)
    tower_of_key = np.empty_like(keys)
    index_in_event = np.full(keys_per_event, -1)
    first_of_event = num_towers = event_start = 0
    for i in order:
        if keys[i] >= event_start + keys_per_event:
            # The next event begins: the table forgets the towers of the previous one.
            for tower in towers[first_of_event:num_towers]:
                index_in_event[tower - event_start] = -1
            first_of_event = num_towers
            event_start = keys[i] // keys_per_event * keys_per_event
        key_in_event = keys[i] - event_start
        if index_in_event[key_in_event] < 0:
            index_in_event[key_in_event] = num_towers
            towers[num_towers] = keys[i]
            num_towers += 1
        tower_of_key[i] = index_in_event[key_in_event]
    return towers[:num_towers], tower_of_key
