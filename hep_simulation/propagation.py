"""Computes the paths of particles in the solenoid, up to the surface of the calorimeter."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hep_simulation.particles import Floats, Integers, StableParticles, compiled

#: Magnetic field [T], radius and half length of the tracker's volume [mm], as of CMS.
FIELD_TESLA: Final = 3.8
RADIUS_MM: Final = 1290.0
HALF_LENGTH_MM: Final = 3000.0
#: Radius of curvature of 1 GeV in 1 T [mm].
_MM_PER_GEV: Final = 1e3 / 0.299792458
#: Particles of lower transverse momentum [GeV] count as flying along the beam.
_MIN_PT: Final = 3e-5
#: Longer than any path in the tracker [mm].
_ENDLESS_MM: Final = 1e12

#: Components along x, y and z.
Vector = tuple[float, float, float]


class Arrival(NamedTuple):
    """Where particles leave the tracker's volume, a cylinder, seen from its centre; all (n,)."""

    eta: Floats
    """Infinite for particles that do not arrive."""
    phi: Floats
    arrives: NDArray[np.bool_]
    """False for particles that begin outside, or fly along the beam."""


def propagate(particles: StableParticles) -> Arrival:
    """Follow particles to the surface of the tracker's volume.

    Charged ones fly on helices around the beam's direction, neutral ones on straight lines.
    """
    px = particles.px.astype(np.float64)
    py = particles.py.astype(np.float64)
    pz = particles.pz.astype(np.float64)
    x = particles.x.astype(np.float64)
    y = particles.y.astype(np.float64)
    z = particles.z.astype(np.float64)
    eta, phi, arrives = _arrivals(particles.charge, px, py, pz, x, y, z)
    return Arrival(eta, phi, arrives)


@compiled
def _arrivals(
    charge: Integers, px: Floats, py: Floats, pz: Floats, x: Floats, y: Floats, z: Floats
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """The fields of `Arrival`, from charge [e], momentum [GeV] and vertex [mm]; all (n,)."""
    num_particles = len(px)
    eta = np.full(num_particles, np.inf)
    phi = np.zeros(num_particles)
    arrives = np.zeros(num_particles, np.bool_)
    for i in range(num_particles):
        momentum = (px[i], py[i], pz[i])
        vertex = (x[i], y[i], z[i])
        # For particles that do not arrive, eta stays infinite.
        arrives[i] = _can_arrive(momentum, vertex)
        if arrives[i]:
            eta[i], phi[i] = _arrival(charge[i], momentum, vertex)
    return eta, phi, arrives


@compiled
def _can_arrive(momentum: Vector, vertex: Vector) -> bool:
    """Whether a particle begins in the tracker's volume, and does not fly along the beam."""
    px, py, _ = momentum
    x, y, z = vertex
    pt = np.sqrt(px**2 + py**2)
    is_along_beam = pt <= _MIN_PT
    is_beyond_end_cap = abs(z) >= HALF_LENGTH_MM
    is_beyond_radius = x**2 + y**2 >= RADIUS_MM**2
    return not (is_along_beam or is_beyond_end_cap or is_beyond_radius)


@compiled
def _arrival(charge: int, momentum: Vector, vertex: Vector) -> tuple[float, float]:
    """Pseudorapidity and azimuth of the end of a particle's path.

    A path ends at the end cap or at the radius of the cylinder, whichever comes first. Along the
    beam it is straight, so the transverse length of the path gives z at its end.
    """
    px, py, pz = momentum
    x, y, z = vertex
    pt = np.sqrt(px**2 + py**2)
    slope = pz / pt
    # The transverse length [mm] after which the particle reaches the end cap.
    length_to_end = _ENDLESS_MM
    if slope != 0:
        z_of_end_cap = np.sign(slope) * HALF_LENGTH_MM
        length_to_end = (z_of_end_cap - z) / slope
    # Paths in the transverse plane: lines, or circles with a radius in proportion to pT.
    ux = px / pt
    uy = py / pt
    if charge == 0:
        length, end_x, end_y = _straight_path(ux, uy, x, y, length_to_end)
    else:
        sign = 1 if charge > 0 else -1
        radius = pt / (abs(charge) * FIELD_TESLA) * _MM_PER_GEV
        length, end_x, end_y = _circular_path(ux, uy, x, y, length_to_end, sign, radius)
    end_z = z + slope * length
    end_radius = np.sqrt(end_x**2 + end_y**2)
    return np.arcsinh(end_z / end_radius), np.arctan2(end_y, end_x)


@compiled
def _straight_path(
    ux: float, uy: float, x: float, y: float, length_to_end: float
) -> tuple[float, float, float]:
    """Transverse length and end point [mm] of a straight path from (x, y), direction (ux, uy).

    It ends at the radius of the tracker, or after `length_to_end`.
    """
    along = x * ux + y * uy
    discriminant = max(along**2 + RADIUS_MM**2 - x**2 - y**2, 0.0)
    length_to_radius = np.sqrt(discriminant) - along
    length = min(length_to_end, length_to_radius)
    end_x = x + ux * length
    end_y = y + uy * length
    return length, end_x, end_y


@compiled
def _circular_path(
    ux: float, uy: float, x: float, y: float, length_to_end: float, sign: int, radius: float
) -> tuple[float, float, float]:
    """Transverse length and end point [mm] of a circular path from (x, y), direction (ux, uy).

    It ends at the radius of the tracker, or after `length_to_end`. In a field along z, circles are
    clockwise for positive charges; `sign` is the sign of the charge, `radius` that of the circle.
    """
    # (rx, ry) is the vector from the centre of the circle to the particle.
    rx = -sign * radius * uy
    ry = sign * radius * ux
    centre_x = x - rx
    centre_y = y - ry
    length_to_radius = _length_to_tracker(centre_x, centre_y, rx, ry, sign, radius)
    length = min(length_to_end, length_to_radius)

    # This vector is rotated by the angle of the path.
    angle = length / radius
    cos = np.cos(angle)
    sin = -sign * np.sin(angle)
    end_x = centre_x + cos * rx - sin * ry
    end_y = centre_y + sin * rx + cos * ry
    return length, end_x, end_y


@compiled
def _length_to_tracker(
    centre_x: float, centre_y: float, rx: float, ry: float, sign: int, radius: float
) -> float:
    """Length [mm] of a circular path to the radius of the tracker; endless if it stays inside.

    The circle crosses the radius of the tracker twice, at equal angles from the line between the
    centres. The path ends at the crossing that the particle meets first on its way, which is
    clockwise for positive charges.

    `centre_x`, `centre_y`: centre of the circle. `rx`, `ry`: vector from there to the particle.
    """
    distance = max(np.sqrt(centre_x**2 + centre_y**2), 1e-9)
    difference = RADIUS_MM**2 - distance**2 - radius**2
    cosine = difference / (2 * distance * radius)
    if abs(cosine) > 1:
        return _ENDLESS_MM
    half_angle = np.arccos(cosine)
    cross_product = centre_x * ry - centre_y * rx
    scalar_product = centre_x * rx + centre_y * ry
    angle_to_line = sign * np.arctan2(cross_product, scalar_product)
    first_angle = angle_to_line + half_angle
    second_angle = angle_to_line - half_angle
    if first_angle < 0:
        first_angle += 2 * np.pi
    if second_angle < 0:
        second_angle += 2 * np.pi
    length: float = min(first_angle, second_angle) * radius
    return length
