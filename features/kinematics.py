"""Kinematics of massless particles: compiled functions of scalars and arrays.

Each function of one value is a NumPy ufunc in float64 (numba): kernels' loops and whole arrays
share one formula. Angles in radians, momenta in GeV.
"""

from __future__ import annotations

import math
from typing import Final

from hep_core.compiling import compiled, compiled_ufunc

_TWO_PI: Final = 2.0 * math.pi


@compiled_ufunc
def delta_phi(phi1: float, phi2: float) -> float:
    """Signed difference phi1 - phi2 of two azimuths, wrapped to (-pi, pi]."""
    difference = phi1 - phi2
    if -math.pi < difference <= math.pi:
        # The usual case, without a remainder, which costs ten times a comparison.
        return difference
    # Python's remainder is in [0, 2 pi).
    difference %= _TWO_PI
    if difference > math.pi:
        difference -= _TWO_PI
    return difference


@compiled_ufunc
def delta_r2(eta1: float, phi1: float, eta2: float, phi2: float) -> float:
    """Squared distance in eta and phi: (eta1 - eta2)^2 + delta_phi^2."""
    delta_eta = eta1 - eta2
    dphi = delta_phi(phi1, phi2)
    return float(delta_eta**2 + dphi**2)


@compiled_ufunc
def energy(pt: float, eta: float) -> float:
    """Energy of a massless particle: pT cosh(eta)."""
    return pt * math.cosh(eta)


@compiled
def momentum(pt: float, eta: float, phi: float) -> tuple[float, float, float]:
    """Momentum along x, y and the beam: pT cos(phi), pT sin(phi), pT sinh(eta)."""
    px = pt * math.cos(phi)
    py = pt * math.sin(phi)
    pz = pt * math.sinh(eta)
    return px, py, pz


@compiled_ufunc
def transverse_mass(pt: float, phi: float, met: float, met_phi: float) -> float:
    """Transverse mass of lepton and missing momentum: sqrt(2 pT MET (1 - cos delta_phi))."""
    cosine = math.cos(phi - met_phi)
    return math.sqrt(2.0 * pt * met * (1.0 - cosine))
