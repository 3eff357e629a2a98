"""All isolations of an event, as `features.isolation` defines them, from pairs of neighbouring cells only.

An event's candidates are sorted into a grid. Its cells are at least as wide as the cone, so that a cone touches three
by three cells: about fifteen candidates instead of all seven hundred. Every pair is computed once.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from features.arrays import Floats, Indices
from features.columns import TRACK
from features.compiling import compiled
from features.isolation import Candidates
from features.kinematics import delta_phi

#: Highest number of rows and of columns; for a tiny cone, more would cost memory and save no time.
_MAX_CELLS: Final = 128
#: Width of a cell in units of the cone: above 1, so that rounding never puts neighbours two cells apart.
_MARGIN: Final = 1.0 + 1e-9


class CandidateGrid(NamedTuple):
    """Candidates sorted by cell = row * columns + column; a cell holds `[first[cell]:first[cell + 1]]`."""

    first: Indices
    """(rows * columns + 1,) index of the first candidate of each cell."""
    source: Indices
    """(num_candidates,) index of each candidate in the event."""
    kind: Indices
    pt: Floats
    eta: Floats
    phi: Floats
    """Between -pi and pi."""
    rows: int
    columns: int


@compiled
def relative_isolations(candidates: Candidates, cone: float, as_published: bool) -> Floats:
    """Isolation of every candidate of an event from tracks, photons and neutral hadrons; (num_candidates, 3).

    Examples:
        >>> event = Candidates(np.array([0, 1]), np.array([2.0, 4.0]), np.zeros(2), np.array([3.1, -3.1]))
        >>> relative_isolations(event, 0.3, False).tolist()
        [[0.0, 2.0, 0.0], [0.5, 0.0, 0.0]]
        >>> relative_isolations(event, 0.3, True).tolist()
        [[0.0, 0.0, 0.0], [-1.0, 1.0, 0.0]]
    """
    grid = grid_of(candidates, cone, as_published)
    sums = cone_sums(grid, cone, as_published)
    relative = np.empty_like(sums)
    for position, index in enumerate(grid.source):
        if as_published:
            sums[position, grid.kind[position]] += grid.pt[position]
        for kind in range(3):
            relative[index, kind] = sums[position, kind] / grid.pt[position]
        if as_published:
            relative[index, TRACK] -= 1.0
    return relative


@compiled
def grid_of(candidates: Candidates, cone: float, as_published: bool) -> CandidateGrid:
    """Sort candidates into cells at least as wide as the cone (a counting sort)."""
    count = candidates.pt.size
    columns = min(_MAX_CELLS, int(2.0 * math.pi / (cone * _MARGIN)))
    columns = columns if columns >= 3 else 1
    # Candidates beyond |eta| of 10 share the outermost rows.
    lowest = max(min(candidates.eta.min(), 10.0), -10.0) if count else 0.0
    highest = max(min(candidates.eta.max(), 10.0), -10.0) if count else 0.0
    rows = min(_MAX_CELLS, int((highest - lowest) / (cone * _MARGIN)) + 1)
    height = max(cone * _MARGIN, (highest - lowest) / rows)
    phi = candidates.phi if as_published else delta_phi(candidates.phi, 0.0)
    cell = np.empty(count, dtype=np.int64)
    first = np.zeros(rows * columns + 1, dtype=np.int64)
    for index in range(count):
        row = int(min(max((candidates.eta[index] - lowest) / height, 0.0), rows - 1.0))
        turn = (phi[index] / math.pi + 1.0) / 2.0
        column = int(min(max(turn * columns, 0.0), columns - 1.0))
        cell[index] = row * columns + column
        first[cell[index] + 1] += 1
    for index in range(rows * columns):
        first[index + 1] += first[index]
    place = first[:-1].copy()
    source = np.empty(count, dtype=np.int64)
    for index in range(count):
        source[place[cell[index]]] = index
        place[cell[index]] += 1
    return CandidateGrid(
        first,
        source,
        candidates.kind[source],
        candidates.pt[source],
        candidates.eta[source],
        phi[source],
        rows,
        columns,
    )


@compiled
def cone_sums(grid: CandidateGrid, cone: float, as_published: bool) -> Floats:
    """Sums of pT by kind over the others in each candidate's cone, in the order of the grid.

    Each cell is paired with itself and with the half of its neighbours that come later: the next cell of its row, and
    three of the next row. Columns are periodic, except as published.

    Returns:
        (num_candidates, 3) [GeV].
    """
    sums = np.zeros((grid.pt.size, 3))
    columns = grid.columns
    goes_around = columns > 1 and not as_published
    for row in range(grid.rows):
        for column in range(columns):
            cell = row * columns + column
            left, right = max(column - 1, 0), min(column + 1, columns - 1)
            above = cell + columns - column
            for one in range(grid.first[cell], grid.first[cell + 1]):
                add_pairs(grid, one, one + 1, grid.first[cell - column + right + 1], cone, as_published, sums)
                if goes_around and column == columns - 1:
                    add_pairs(grid, one, grid.first[row * columns], grid.first[row * columns + 1], cone, False, sums)
                if row + 1 == grid.rows:
                    continue
                add_pairs(grid, one, grid.first[above + left], grid.first[above + right + 1], cone, as_published, sums)
                if goes_around and column == columns - 1:
                    add_pairs(grid, one, grid.first[above], grid.first[above + 1], cone, False, sums)
                if goes_around and column == 0:
                    last = above + columns - 1
                    add_pairs(grid, one, grid.first[last], grid.first[last + 1], cone, False, sums)
    return sums


@compiled
def add_pairs(
    grid: CandidateGrid, one: int, start: int, stop: int, cone: float, as_published: bool, sums: Floats
) -> None:
    """Add one candidate and those at `start` to `stop` to each other's sums where they lie within the cone."""
    pt, eta, phi, kind = grid.pt[one], grid.eta[one], grid.phi[one], grid.kind[one]
    for other in range(start, stop):
        deta = eta - grid.eta[other]
        # The published code wraps only differences beyond 2 pi, which azimuths between -pi and pi never reach.
        dphi = phi - grid.phi[other] if as_published else delta_phi(phi, grid.phi[other])
        if deta * deta + dphi * dphi < cone * cone:
            sums[one, grid.kind[other]] += grid.pt[other]
            sums[other, kind] += pt
