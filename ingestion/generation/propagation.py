"""Paths of particles in the solenoid, up to the surface of the calorimeter."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ingestion.generation.particles import Floats, StableParticles

#: Magnetic field [T], radius and half length of the tracker's volume [mm], as of CMS.
FIELD_TESLA: Final = 3.8
RADIUS_MM: Final = 1290.0
HALF_LENGTH_MM: Final = 3000.0
#: Radius of curvature of 1 GeV in 1 T [mm].
_MM_PER_GEV: Final = 1e3 / 0.299792458
_LEAST_PT: Final = 3e-5


class Arrival(NamedTuple):
    """Where particles leave the tracker's volume, seen from its centre."""

    eta: Floats
    phi: Floats
    arrives: NDArray[np.bool_]
    """False for particles that begin outside, or fly along the beam."""


def propagate(particles: StableParticles) -> Arrival:
    """Follow particles on helices (charged) or straight lines (neutral) to the cylinder around the tracker."""
    pt = particles.pt
    inside = (np.hypot(particles.x, particles.y) < RADIUS_MM) & (np.abs(particles.z) < HALF_LENGTH_MM)
    arrives = inside & (pt > _LEAST_PT)
    charge = particles.charge
    x, y, z = (np.full(len(pt), np.nan) for _ in range(3))
    bent = np.flatnonzero(arrives & (charge != 0))
    straight = np.flatnonzero(arrives & (charge == 0))
    x[bent], y[bent], z[bent] = _helix(particles, bent, pt[bent], charge[bent])
    x[straight], y[straight], z[straight] = _line(particles, straight, pt[straight])
    with np.errstate(invalid="ignore", divide="ignore"):
        eta = np.arcsinh(z / np.hypot(x, y))
    return Arrival(np.where(arrives, eta, np.inf), np.where(arrives, np.arctan2(y, x), 0.0), arrives)


def _line(particles: StableParticles, chosen: NDArray[np.int64], pt: Floats) -> tuple[Floats, Floats, Floats]:
    x, y, z = particles.x[chosen], particles.y[chosen], particles.z[chosen]
    ux, uy, slope = particles.px[chosen] / pt, particles.py[chosen] / pt, particles.pz[chosen] / pt
    along = x * ux + y * uy
    length = -along + np.sqrt(np.maximum(along**2 + RADIUS_MM**2 - x**2 - y**2, 0))
    length = np.minimum(length, _to_the_end(z, slope))
    return x + ux * length, y + uy * length, z + slope * length


def _helix(
    particles: StableParticles, chosen: NDArray[np.int64], pt: Floats, charge: Floats
) -> tuple[Floats, Floats, Floats]:
    """Circles in the transverse plane: clockwise for positive charges, in a field along z."""
    x, y, z = particles.x[chosen], particles.y[chosen], particles.z[chosen]
    phi, slope = np.arctan2(particles.py[chosen], particles.px[chosen]), particles.pz[chosen] / pt
    sign = np.sign(charge)
    radius = pt / (np.abs(charge) * FIELD_TESLA) * _MM_PER_GEV
    center_x, center_y = x + sign * radius * np.sin(phi), y - sign * radius * np.cos(phi)
    distance = np.maximum(np.hypot(center_x, center_y), 1e-9)
    # The angle at which the particle stands on its circle decreases for positive charges.
    start = phi + sign * np.pi / 2
    cosine = (RADIUS_MM**2 - distance**2 - radius**2) / (2 * distance * radius)
    crosses = np.abs(cosine) <= 1
    half = np.arccos(np.clip(cosine, -1, 1))
    toward = sign * (start - np.arctan2(center_y, center_x))
    turn = np.minimum((toward + half) % (2 * np.pi), (toward - half) % (2 * np.pi))
    length = np.where(crosses, turn * radius, np.inf)
    length = np.minimum(length, _to_the_end(z, slope))
    angle = start - sign * length / radius
    return center_x + radius * np.cos(angle), center_y + radius * np.sin(angle), z + slope * length


def _to_the_end(z: Floats, slope: Floats) -> Floats:
    """Transverse path to the end of the volume."""
    with np.errstate(divide="ignore", invalid="ignore"):
        length: Floats = (np.sign(slope) * HALF_LENGTH_MM - z) / slope
    return np.where(slope == 0, 1e12, length)
