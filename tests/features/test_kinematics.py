"""Kinematics against the `vector` library."""

from __future__ import annotations

import math

import numpy as np
import vector

from features.kinematics import delta_phi, delta_r2, energy, momentum, transverse_mass

RNG = np.random.default_rng(7)
PT = RNG.exponential(20.0, 500)
ETA = RNG.uniform(-5, 5, 500)
PHI = RNG.uniform(-math.pi, math.pi, 500)
PARTICLES = vector.array({"pt": PT, "eta": ETA, "phi": PHI, "mass": np.zeros(500)})


def test_four_momentum_is_that_of_a_massless_vector() -> None:
    px, py, pz = np.vectorize(momentum)(PT, ETA, PHI)

    np.testing.assert_allclose(energy(PT, ETA), PARTICLES.E, rtol=1e-9)
    np.testing.assert_allclose(px, PARTICLES.px, rtol=1e-12)
    np.testing.assert_allclose(py, PARTICLES.py, rtol=1e-12)
    np.testing.assert_allclose(pz, PARTICLES.pz, rtol=1e-12)


def test_distances_equal_those_of_vector() -> None:
    partners = PARTICLES[::-1]
    partner_eta = ETA[::-1]
    partner_phi = PHI[::-1]
    expected_delta_phi = np.asarray(PARTICLES.deltaphi(partners))
    expected_delta_r = np.asarray(PARTICLES.deltaR(partners))

    dphi = delta_phi(PHI, partner_phi)
    distance2 = delta_r2(ETA, PHI, partner_eta, partner_phi)

    np.testing.assert_allclose(np.sqrt(distance2), expected_delta_r, atol=1e-12)
    np.testing.assert_allclose(dphi, expected_delta_phi, atol=1e-12)


def test_transverse_mass_is_that_of_the_transverse_vectors() -> None:
    met = PT[::-1]
    met_phi = PHI[::-1]
    px = PT * np.cos(PHI) + met * np.cos(met_phi)
    py = PT * np.sin(PHI) + met * np.sin(met_phi)
    mass2 = (PT + met) ** 2 - (px**2 + py**2)
    # Rounding may leave a small negative number.
    expected_mass = np.sqrt(np.maximum(mass2, 0))

    mass = transverse_mass(PT, PHI, met, met_phi)

    np.testing.assert_allclose(mass, expected_mass, atol=1e-5)


def test_delta_phi_of_opposite_directions_is_plus_pi() -> None:
    assert float(delta_phi(math.pi, 0.0)) == math.pi
    assert float(delta_phi(0.0, math.pi)) == math.pi
    assert float(delta_phi(-math.pi, 0.0)) == math.pi
