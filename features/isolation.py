"""Isolation: the sum of pT close to a particle, relative to its own pT.

For a particle p and the candidates of one kind (tracks, photons or neutral hadrons):

    I(p) = 1 / pT(p) * sum of pT(q) over all q of the kind, q not p, with Delta R(p, q) < cone

Source: CERN's published definition (cerndb/SparkDLTrigger, `PFIso`), corrected: azimuths are wrapped to (-pi, pi], and
no particle counts in its own cone. `as_published` gives the numbers of the published code: azimuths unwrapped, every
candidate in its own cone, and 1 subtracted from the isolation from tracks of all candidates, whatever their kind.
`features.isolation_grid` computes those of all candidates.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from features.arrays import Floats, Indices
from features.columns import TRACK
from features.compiling import compiled
from features.kinematics import delta_phi


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
    candidates: Candidates, eta: float, phi: float, cone: float, own_track_dr: float, as_published: bool
) -> Floats:
    """Sums of pT by kind, (3,) [GeV], of the candidates around one lepton.

    Args:
        candidates: All candidates of the event.
        eta: Pseudorapidity of the lepton.
        phi: Azimuth of the lepton [rad].
        cone: Candidates with Delta R < cone count.
        own_track_dr: Tracks closer than this are the lepton itself and do not count.
        as_published: Count the lepton's own tracks, and leave azimuths unwrapped.

    Examples:
        >>> event = Candidates(np.array([0, 1]), np.array([40.0, 4.0]), np.zeros(2), np.array([3.1, -3.1]))
        >>> lepton_sums(event, 0.0, 3.1, 0.3, 1e-4, False).tolist()
        [0.0, 4.0, 0.0]
        >>> lepton_sums(event, 0.0, 3.1, 0.3, 1e-4, True).tolist()
        [40.0, 0.0, 0.0]
    """
    sums = np.zeros(3)
    for index in range(candidates.pt.size):
        if abs(candidates.eta[index] - eta) >= cone:
            continue
        dphi = phi - candidates.phi[index] if as_published else delta_phi(phi, candidates.phi[index])
        distance2 = (eta - candidates.eta[index]) ** 2 + dphi**2
        own = candidates.kind[index] == TRACK and distance2 < own_track_dr**2 and not as_published
        if distance2 < cone**2 and not own:
            sums[candidates.kind[index]] += candidates.pt[index]
    return sums
