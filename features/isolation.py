"""Isolation: the sum of pT close to a particle, relative to its own pT.

For a particle p and the candidates of one kind (tracks, photons or neutral hadrons):

    I(p) = 1 / pT(p) * sum of pT(q) over all q of the kind, q not p, with Delta R(p, q) < cone

Source: CERN's published definition (cerndb/SparkDLTrigger, `PFIso`), corrected: azimuths are wrapped to (-pi, pi], and
no particle counts in its own cone. `as_published` gives the numbers of the published code: azimuths unwrapped, every
candidate in its own cone, and 1 subtracted from the isolation from tracks of all candidates, whatever their kind.
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
#: Width of a cell in units of the cone: above 1, so that rounding never puts neighbours two cells apart.
_MARGIN: Final = 1.0 + 1e-9
_TURN: Final = 2.0 * math.pi


class Candidates(NamedTuple):
    """All tracks, photons and neutral hadrons of one event, in this order; each kind in the order of the file."""

    kind: Indices
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
    """Sums of pT by kind, (3,) [GeV], of the candidates around one lepton, and whether it has an own track.

    Tracks closer than `own_track_dr` are the lepton itself and do not count; as published they do, and azimuths stay
    unwrapped.

    Examples:
        >>> event = Candidates(np.array([0, 1]), np.array([40.0, 4.0]), np.zeros(2), np.array([3.1, -3.1]))
        >>> lepton_sums(event, 0.0, 3.1, 0.3, 1e-4, False)
        (array([0., 4., 0.]), True)
        >>> lepton_sums(event, 0.0, 3.1, 0.3, 1e-4, True)
        (array([40.,  0.,  0.]), True)
    """
    sums, has_own = np.zeros(3), False
    for index in range(candidates.pt.size):
        deta = abs(candidates.eta[index] - eta)
        if deta >= max(cone, own_track_dr):
            continue
        dphi = delta_phi(phi, candidates.phi[index])
        own = candidates.kind[index] == TRACK and deta**2 + dphi**2 < own_track_dr**2
        has_own = has_own or own
        if as_published:
            dphi, own = phi - candidates.phi[index], False
        if deta**2 + dphi**2 < cone**2 and not own:
            sums[candidates.kind[index]] += candidates.pt[index]
    return sums, has_own


@compiled
def relative_isolations(candidates: Candidates, cone: float, as_published: bool) -> Floats:
    """Isolation of every candidate of an event from tracks, photons and neutral hadrons; (num_candidates, 3).

    Only candidates in neighbouring cells of a grid are compared, each pair once: about fifteen instead of all seven
    hundred. A cell is paired with itself and the half of its neighbours that comes later: one of its row, three above.

    Examples:
        >>> event = Candidates(np.array([0, 1]), np.array([2.0, 4.0]), np.zeros(2), np.array([3.1, -3.1]))
        >>> relative_isolations(event, 0.3, False).tolist()
        [[0.0, 2.0, 0.0], [0.5, 0.0, 0.0]]
        >>> relative_isolations(event, 0.3, True).tolist()
        [[0.0, 0.0, 0.0], [-1.0, 1.0, 0.0]]
    """
    count = candidates.pt.size
    cell, source, phi, rows, columns = cells_of(candidates, cone, as_published)
    # One row more, which is empty: every row has one above.
    first, order = by_bucket(cell, (rows + 1) * columns)
    source, phi = source[order], phi[order]
    kind, pt, eta = candidates.kind[source], candidates.pt[source], candidates.eta[source]
    sums = np.zeros((count, 3))
    for row in range(rows):
        for here in range(row * columns + 1, (row + 1) * columns - 1):
            above = here + columns
            for one in range(first[here], first[here + 1]):
                for start, stop in (
                    (one + 1, first[here + 2]),
                    (first[above - 1], first[above + 2]),
                ):
                    for other in range(start, stop):
                        if (eta[one] - eta[other]) ** 2 + (phi[one] - phi[other]) ** 2 < cone**2:
                            sums[source[one], kind[other]] += pt[other]
                            sums[source[other], kind[one]] += pt[one]
    for index in range(count):
        if as_published:
            sums[index, candidates.kind[index]] += candidates.pt[index]
        for kind_of in range(3):
            sums[index, kind_of] /= candidates.pt[index]
        if as_published:
            sums[index, TRACK] -= 1.0
    return sums


@compiled
def cells_of(
    candidates: Candidates, cone: float, as_published: bool
) -> tuple[Indices, Indices, Floats, int, int]:
    """Cells, at least as wide as the cone, of candidates in eta (rows) and phi (columns).

    The first and the last column hold copies of the candidates at the other end of phi, turned by 2 pi, so that no cone
    (of less than pi) leaves the grid; as published they are empty.

    Returns:
        Cell = row * columns + column, index in the event, and azimuth of every candidate and copy; numbers of rows and
        columns.
    """
    count = candidates.pt.size
    inner = max(1, min(_MAX_CELLS, int(_TURN / (cone * _MARGIN))))
    # Candidates beyond |eta| of 10 share the outermost rows.
    lowest = max(min(candidates.eta.min(), 10.0), -10.0) if count else 0.0
    highest = max(min(candidates.eta.max(), 10.0), -10.0) if count else 0.0
    rows = min(_MAX_CELLS, int((highest - lowest) / (cone * _MARGIN)) + 1)
    height = max(cone * _MARGIN, (highest - lowest) / rows)
    cell, source, phi = (
        np.empty(3 * count, np.int64),
        np.empty(3 * count, np.int64),
        np.empty(3 * count),
    )
    filled = 0
    for index in range(count):
        azimuth = candidates.phi[index] if as_published else delta_phi(candidates.phi[index], 0.0)
        row = int(min(max((candidates.eta[index] - lowest) / height, 0.0), rows - 1.0))
        column = int(min(max((azimuth / _TURN + 0.5) * inner, 0.0), inner - 1.0)) + 1
        for turned, place in ((0.0, column), (_TURN, column + inner), (-_TURN, column - inner)):
            if place == column or (0 <= place < inner + 2 and not as_published):
                cell[filled], source[filled], phi[filled] = (
                    row * (inner + 2) + place,
                    index,
                    azimuth + turned,
                )
                filled += 1
    return cell[:filled], source[:filled], phi[:filled], rows, inner + 2


@compiled
def by_bucket(bucket: Indices, num_buckets: int) -> tuple[Indices, Indices]:
    """Counting sort: (num_buckets + 1,) first places of the buckets, and the (num,) indices in their order."""
    first = np.zeros(num_buckets + 1, dtype=np.int64)
    for each in bucket:
        first[each + 1] += 1
    for each in range(num_buckets):
        first[each + 1] += first[each]
    place, order = first.copy(), np.empty(bucket.size, dtype=np.int64)
    for index, each in enumerate(bucket):
        order[place[each]] = index
        place[each] += 1
    return first, order
