"""Isolation: the sum of pT close to a particle, relative to its own pT.

For a particle p and the candidates of one species (tracks, photons or neutral hadrons):

    I(p) = 1 / pT(p) * sum of pT(q) over all q of the species, q not p, with Delta R(p, q) < cone

Source: CERN's published definition (cerndb/SparkDLTrigger, `PFIso`), corrected: azimuths are
wrapped to (-pi, pi], and no particle counts in its own cone. `as_published` gives the numbers of
the published code: azimuths unwrapped, every candidate in its own cone, and 1 subtracted from the
isolation from tracks of all candidates, whatever their species.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from features.arrays import Floats, Indices
from features.columns import TRACK
from features.kinematics import delta_phi
from hep_core.compiling import compiled

#: Highest number of rows and of columns; for a tiny cone, more would cost memory and save no time.
_MAX_CELLS: Final = 128
#: Width of a cell in units of the cone: above 1, so that rounding never puts neighbours two cells
#: apart.
_MARGIN: Final = 1.0 + 1e-9
#: Candidates beyond this |eta| share the outermost rows.
_MAX_ETA: Final = 10.0
_TWO_PI: Final = 2.0 * math.pi


class Candidates(NamedTuple):
    """All tracks, photons and neutral hadrons of one event, in this order.

    Within a species they have the order of the file.
    """

    species: Indices
    """(num_candidates,) TRACK, PHOTON or NEUTRAL."""
    pt: Floats
    """pT or ET [GeV]."""
    eta: Floats
    phi: Floats


@compiled
def lepton_sums(
    candidates: Candidates,
    eta: float,
    phi: float,
    cone: float,
    own_track_dr: float,
    as_published: bool,
) -> tuple[Floats, bool]:
    """Sum the pT of the candidates around one lepton, and search for the lepton's own track.

    Candidates within `cone` of the lepton, a distance in eta and phi, count. Tracks closer than
    `own_track_dr` are the lepton itself and do not. As published they count, and differences of
    azimuths stay unwrapped.

    Returns:
        Sums by species, (3,) [GeV], and whether the lepton has an own track.

    Examples:
        >>> species, pt = np.array([0, 1]), np.array([40.0, 4.0])
        >>> event = Candidates(species, pt, np.zeros(2), np.array([3.1, -3.1]))
        >>> lepton_sums(event, 0.0, 3.1, 0.3, 1e-4, False)
        (array([0., 4., 0.]), True)
        >>> lepton_sums(event, 0.0, 3.1, 0.3, 1e-4, True)
        (array([40.,  0.,  0.]), True)
    """
    sums = np.zeros(3)
    has_own_track = False
    largest_dr = max(cone, own_track_dr)
    for index in range(candidates.pt.size):
        delta_eta = abs(candidates.eta[index] - eta)
        if delta_eta >= largest_dr:
            continue
        species = candidates.species[index]
        dphi = delta_phi(phi, candidates.phi[index])
        distance2 = delta_eta**2 + dphi**2
        is_near = distance2 < own_track_dr**2
        is_own_track = is_near and species == TRACK
        has_own_track = has_own_track or is_own_track
        # As published, azimuths stay unwrapped, and the own track counts in the sum.
        if as_published:
            dphi = phi - candidates.phi[index]
            distance2 = delta_eta**2 + dphi**2
            is_own_track = False
        in_cone = distance2 < cone**2
        if in_cone and not is_own_track:
            sums[species] += candidates.pt[index]
    return sums, has_own_track


@compiled
def relative_isolations(candidates: Candidates, cone: float, as_published: bool) -> Floats:
    """(num_candidates, 3) isolation of every candidate of an event, from each species.

    It is the sum of pT of the other candidates of the species within `cone` in eta and phi, divided
    by the candidate's own pT. Columns are TRACK, PHOTON and NEUTRAL.

    Only candidates in neighbouring cells of a grid are compared: about fifteen instead of all seven
    hundred. Each pair is compared once: a candidate meets the later ones of its own cell, those of
    the next cell of its row, and those of the three adjacent cells of the row above.

    Examples:
        >>> species, pt = np.array([0, 1]), np.array([2.0, 4.0])
        >>> event = Candidates(species, pt, np.zeros(2), np.array([3.1, -3.1]))
        >>> relative_isolations(event, 0.3, False).tolist()
        [[0.0, 2.0, 0.0], [0.5, 0.0, 0.0]]
        >>> relative_isolations(event, 0.3, True).tolist()
        [[0.0, 0.0, 0.0], [-1.0, 1.0, 0.0]]
    """
    # Candidates, with copies at the ends of phi, are sorted by cell; `source` is the index in the
    # event.
    cells, source, phi, num_rows, num_columns = grid_cells(candidates, cone, as_published)
    # One empty row more, so that every row has one above.
    cell_start, order = bucket_order(cells, (num_rows + 1) * num_columns)
    source, phi = source[order], phi[order]
    species = candidates.species[source]
    pt = candidates.pt[source]
    eta = candidates.eta[source]

    sums = np.zeros((candidates.pt.size, 3))
    for row in range(num_rows):
        # The first and the last column hold only copies, so no cell there is a starting point.
        first_cell = row * num_columns + 1
        end_cell = first_cell + num_columns - 2
        for cell in range(first_cell, end_cell):
            # Cells of a row follow one another, so those of the next cell and of the three cells
            # of the row above lie in one piece each.
            next_stop = cell_start[cell + 2]
            above = cell + num_columns
            above_start = cell_start[above - 1]
            above_stop = cell_start[above + 2]
            for i in range(cell_start[cell], cell_start[cell + 1]):
                for start, stop in ((i + 1, next_stop), (above_start, above_stop)):
                    for j in range(start, stop):
                        delta_eta = eta[i] - eta[j]
                        dphi = phi[i] - phi[j]
                        if delta_eta**2 + dphi**2 < cone**2:
                            sums[source[i], species[j]] += pt[j]
                            sums[source[j], species[i]] += pt[i]
    divide_by_pt(sums, candidates, as_published)
    return sums


@compiled
def divide_by_pt(sums: Floats, candidates: Candidates, as_published: bool) -> None:
    """Make the sums of pT around each candidate, (num_candidates, 3), relative to its own pT.

    As published, each candidate counts in its own cone, and 1 is subtracted from the isolation from
    tracks.
    """
    for index in range(candidates.pt.size):
        pt = candidates.pt[index]
        if as_published:
            sums[index, candidates.species[index]] += pt
        for column in range(3):
            sums[index, column] /= pt
        if as_published:
            sums[index, TRACK] -= 1.0


@compiled
def grid_cells(
    candidates: Candidates, cone: float, as_published: bool
) -> tuple[Indices, Indices, Floats, int, int]:
    """Assign candidates to cells in eta (rows) and phi (columns), at least as wide as the cone.

    The first and the last column hold copies of the candidates at the other end of phi, shifted by
    2 pi, so that no cone (of less than pi) leaves the grid. As published they are empty.

    Returns:
        Cell = row * num_columns + column, index in the event, and azimuth of every candidate and
        copy; numbers of rows and columns.
    """
    num_candidates = candidates.pt.size
    cell_width = cone * _MARGIN
    # As many cells around the beam as are at least as wide as the cone, and two for the copies.
    cells_around = int(_TWO_PI / cell_width)
    num_phi_cells = max(1, min(_MAX_CELLS, cells_around))
    num_columns = num_phi_cells + 2
    min_eta, max_eta = eta_range(candidates.eta)
    eta_width = max_eta - min_eta
    num_rows = min(_MAX_CELLS, int(eta_width / cell_width) + 1)
    row_height = max(cell_width, eta_width / num_rows)

    # A candidate has at most two copies, one at each end of phi.
    cells = np.empty(3 * num_candidates, np.int64)
    source = np.empty(3 * num_candidates, np.int64)
    phi = np.empty(3 * num_candidates)
    filled = 0
    for index in range(num_candidates):
        azimuth = candidates.phi[index]
        if not as_published:
            azimuth = delta_phi(azimuth, 0.0)
        eta_position = (candidates.eta[index] - min_eta) / row_height
        phi_position = (azimuth / _TWO_PI + 0.5) * num_phi_cells
        row = nearest_cell(eta_position, num_rows)
        column = nearest_cell(phi_position, num_phi_cells) + 1
        for shift, copy_column in (
            (0.0, column),
            (_TWO_PI, column + num_phi_cells),
            (-_TWO_PI, column - num_phi_cells),
        ):
            is_original = copy_column == column
            is_in_grid = 0 <= copy_column < num_columns
            if is_original or (is_in_grid and not as_published):
                cells[filled] = row * num_columns + copy_column
                source[filled] = index
                phi[filled] = azimuth + shift
                filled += 1
    return cells[:filled], source[:filled], phi[:filled], num_rows, num_columns


@compiled
def eta_range(eta: Floats) -> tuple[float, float]:
    """Lowest and highest eta of candidates, at most `_MAX_ETA` away from 0; 0 without any."""
    if eta.size == 0:
        return 0.0, 0.0
    min_eta = max(min(eta.min(), _MAX_ETA), -_MAX_ETA)
    max_eta = max(min(eta.max(), _MAX_ETA), -_MAX_ETA)
    return min_eta, max_eta


@compiled
def nearest_cell(position: float, num_cells: int) -> int:
    """The cell at a position in units of cells, or the first or the last cell."""
    return int(min(max(position, 0.0), num_cells - 1.0))


@compiled
def bucket_order(buckets: Indices, num_buckets: int) -> tuple[Indices, Indices]:
    """Sort items by the number of their bucket, by counting (a stable counting sort).

    `buckets` (num_items,) is the bucket of each item, from 0 to num_buckets - 1.

    Returns:
        (num_buckets + 1,) position at which each bucket begins in the order, and the (num_items,)
        indices of the items in order.
    """
    starts = np.zeros(num_buckets + 1, dtype=np.int64)
    for bucket in buckets:
        starts[bucket + 1] += 1
    for bucket in range(num_buckets):
        starts[bucket + 1] += starts[bucket]
    next_position = starts.copy()
    order = np.empty(buckets.size, dtype=np.int64)
    for index, bucket in enumerate(buckets):
        order[next_position[bucket]] = index
        next_position[bucket] += 1
    return starts, order
