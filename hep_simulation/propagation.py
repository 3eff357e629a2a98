"""Paths of particles in the solenoid, up to the surface of the calorimeter."""

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
_LEAST_PT: Final = 3e-5


class Arrival(NamedTuple):
    """Where particles leave the tracker's volume, seen from its centre."""

    eta: Floats
    phi: Floats
    arrives: NDArray[np.bool_]
    """False for particles that begin outside, or fly along the beam."""


def propagate(particles: StableParticles) -> Arrival:
    """Follow particles on helices (charged) or straight lines (neutral) to the cylinder around the tracker."""
    momenta_and_places = (*particles[2:5], *particles[6:])
    return Arrival(
        *_arrivals(
            particles.charge, *(np.asarray(column, np.float64) for column in momenta_and_places)
        )
    )


@compiled
def _arrivals(
    charges: Integers,
    all_px: Floats,
    all_py: Floats,
    all_pz: Floats,
    all_x: Floats,
    all_y: Floats,
    all_z: Floats,
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Circles in the transverse plane are clockwise for positive charges, in a field along z."""
    number = len(all_px)
    eta, phi, arrives = np.full(number, np.inf), np.zeros(number), np.zeros(number, np.bool_)
    for place in range(number):
        px, py, x, y, z = all_px[place], all_py[place], all_x[place], all_y[place], all_z[place]
        pt = np.sqrt(px**2 + py**2)
        if pt <= _LEAST_PT or abs(z) >= HALF_LENGTH_MM or x**2 + y**2 >= RADIUS_MM**2:
            continue
        ux, uy, slope = px / pt, py / pt, all_pz[place] / pt
        # Transverse path to the end of the volume.
        length = (np.sign(slope) * HALF_LENGTH_MM - z) / slope if slope != 0 else 1e12
        charge = charges[place]
        if charge == 0:
            along = x * ux + y * uy
            length = min(length, np.sqrt(max(along**2 + RADIUS_MM**2 - x**2 - y**2, 0.0)) - along)
            x, y = x + ux * length, y + uy * length
        else:
            sign = 1 if charge > 0 else -1
            radius = pt / (abs(charge) * FIELD_TESLA) * _MM_PER_GEV
            # From the centre of the circle to the particle, and the centre.
            rx, ry = -sign * radius * uy, sign * radius * ux
            cx, cy = x - rx, y - ry
            distance = max(np.sqrt(cx**2 + cy**2), 1e-9)
            cosine = (RADIUS_MM**2 - distance**2 - radius**2) / (2 * distance * radius)
            if abs(cosine) <= 1:
                # The angle at which the particle stands on its circle decreases for positive charges.
                half = np.arccos(cosine)
                toward = sign * np.arctan2(cx * ry - cy * rx, cx * rx + cy * ry)
                ahead, behind = toward + half, toward - half
                ahead += 2 * np.pi * (ahead < 0)
                behind += 2 * np.pi * (behind < 0)
                length = min(length, ahead * radius, behind * radius)
            cos, sin = np.cos(length / radius), -sign * np.sin(length / radius)
            x, y = cx + cos * rx - sin * ry, cy + sin * rx + cos * ry
        eta[place] = np.arcsinh((z + slope * length) / np.sqrt(x**2 + y**2))
        phi[place], arrives[place] = np.arctan2(y, x), True
    return eta, phi, arrives
