"""Isolation: how much momentum flies close to a particle, relative to its own.

Source: CERN's published definition (cerndb/SparkDLTrigger, `PFIso`) with azimuths wrapped to (-pi, pi] and no particle
counted in its own cone. The candidates of an event are sorted in eta once, so that a cone is a short run of them.
"""

from __future__ import annotations

import numpy as np

from features.arrays import Floats, Indices
from features.compiling import compiled
from features.kinematics import delta_r2


@compiled
def relative_isolation(
    kept: Indices,
    same_kind: bool,
    pt: Floats,
    eta: Floats,
    phi: Floats,
    candidate_pt: Floats,
    candidate_eta: Floats,
    candidate_phi: Floats,
    cone: float,
) -> Floats:
    """Isolation of some particles of one event from all candidates of one kind: cone sum over their own pT.

    Args:
        kept: (num_kept,) indices of the particles to compute it for.
        same_kind: True if the particles are these candidates, so that particle i must not count candidate i.
        pt: (num_particles,) [GeV].
        eta: (num_particles,).
        phi: (num_particles,) [rad].
        candidate_pt: (num_candidates,) pT or ET [GeV].
        candidate_eta: (num_candidates,).
        candidate_phi: (num_candidates,) [rad].
        cone: Radius; candidates with Delta R < cone count.

    Returns:
        (num_kept,) isolations.

    Examples:
        >>> pt, zero = np.array([2.0, 4.0]), np.zeros(2)
        >>> relative_isolation(np.array([0, 1]), True, pt, zero, zero, pt, zero, zero, 0.3).tolist()
        [2.0, 0.5]
    """
    order = np.argsort(candidate_eta, kind="mergesort")
    sorted_eta, sorted_phi, sorted_pt = candidate_eta[order], candidate_phi[order], candidate_pt[order]
    isolation = np.empty(kept.size)
    for row, index in enumerate(kept):
        total = 0.0
        for position in range(np.searchsorted(sorted_eta, eta[index] - cone), sorted_eta.size):
            if sorted_eta[position] > eta[index] + cone:
                break
            if same_kind and order[position] == index:
                continue
            if delta_r2(eta[index], phi[index], sorted_eta[position], sorted_phi[position]) < cone * cone:
                total += sorted_pt[position]
        isolation[row] = total / pt[index]
    return isolation


@compiled
def lepton_isolation(
    pt: float,
    eta: float,
    phi: float,
    candidate_pt: Floats,
    candidate_eta: Floats,
    candidate_phi: Floats,
    cone: float,
    own_dr: float,
) -> float:
    """Isolation of one lepton from the candidates of one kind; those closer than `own_dr` are the lepton itself.

    Args:
        pt: Its pT [GeV].
        eta: Its pseudorapidity.
        phi: Its azimuth [rad].
        candidate_pt: (num_candidates,) pT or ET [GeV].
        candidate_eta: (num_candidates,).
        candidate_phi: (num_candidates,) [rad].
        cone: Radius; candidates with own_dr <= Delta R < cone count.
        own_dr: 1e-4 for tracks, 0 for kinds that a lepton is never one of.

    Returns:
        Cone sum over pT.

    Examples:
        >>> one = np.array([0.1])
        >>> lepton_isolation(10.0, 0.0, 3.1, np.array([5.0]), one, np.array([-3.1]), 0.3, 0.0)
        0.5
    """
    total = 0.0
    for index in range(candidate_pt.size):
        distance2 = delta_r2(eta, phi, candidate_eta[index], candidate_phi[index])
        if own_dr * own_dr <= distance2 < cone * cone:
            total += candidate_pt[index]
    return total / pt
