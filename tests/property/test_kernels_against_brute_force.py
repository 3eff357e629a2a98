"""The isolation grid and the bucket sort, against plain ways to the same result."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from features.arrays import Floats
from features.columns import NEUTRAL, PHOTON, TRACK
from features.isolation import Candidates, relative_isolations
from features.kinematics import delta_phi
from features.low_level import sorted_by

EDGE = 1e-6
seeds = st.integers(0, 2**32 - 1)
#: From cones smaller than any distance to cones that leave no three columns.
cones = st.one_of(st.floats(1e-4, 0.05), st.floats(0.05, 1.0), st.floats(1.0, 3.0))


def random_candidates(seed: int, *, spread: float, within_pi: bool) -> Candidates:
    """Up to 80 candidates, a third of them near the seam of phi; `spread` is that of eta."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, 80))
    phi = rng.uniform(-math.pi, math.pi, count)
    near_seam = count // 3
    distance = rng.exponential(0.05, near_seam)
    side = rng.choice([-1, 1], near_seam)
    phi[:near_seam] = np.clip(side * (math.pi - distance), -3, 3.14)
    if not within_pi:
        phi += rng.choice([-2, 0, 2, 4], count) * math.pi
    species = np.sort(rng.integers(0, 3, count))
    pt = rng.uniform(0.5, 50, count)
    eta = rng.normal(0, spread, count)
    return Candidates(species, pt, eta, phi)


def distances(event: Candidates, *, as_published: bool) -> Floats:
    """Delta R of all pairs, (num_candidates, num_candidates); as published without wrapping."""
    _, _, eta, phi = event
    deta = eta[:, None] - eta
    dphi = phi[:, None] - phi
    if not as_published:
        dphi = delta_phi(phi[:, None], phi)
    return np.hypot(deta, dphi)


def isolations(event: Candidates, cone: float, *, as_published: bool) -> Floats:
    """Isolation of every candidate as a plain sum over all pairs."""
    in_cone = distances(event, as_published=as_published) < cone
    if not as_published:
        np.fill_diagonal(in_cone, val=False)
    relative = np.zeros((event.pt.size, 3))
    for species in (TRACK, PHOTON, NEUTRAL):
        is_species = event.species == species
        pt_in_cone = in_cone[:, is_species] @ event.pt[is_species]
        relative[:, species] = pt_in_cone / event.pt
    if as_published:
        relative[:, TRACK] -= 1.0
    return relative


@given(seeds, cones, st.sampled_from([0.3, 2.0, 12.0]), st.booleans())
@settings(max_examples=150)
def test_isolations_are_sums_over_all_pairs(
    seed: int, cone: float, spread: float, as_published: bool
) -> None:
    event = random_candidates(seed, spread=spread, within_pi=as_published)
    expected = isolations(event, cone, as_published=as_published)
    # Rounding decides about pairs at the very edge of the cone.
    distance_to_edge = abs(distances(event, as_published=as_published) - cone)
    is_edge = distance_to_edge < EDGE
    is_clear = ~is_edge.any(axis=1)

    relative = relative_isolations(event, cone, as_published)

    np.testing.assert_allclose(relative[is_clear], expected[is_clear], rtol=1e-9, atol=1e-9)


@given(seeds, st.integers(1, 4))
def test_ties_are_sorted_by_species_pt_eta_and_phi(seed: int, num_values: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, 60))
    # Few different values, so that there are ties of all depths.
    pt, eta, phi = rng.integers(0, num_values, (3, count)).astype(float)
    species = rng.integers(0, 3, count)
    scale = rng.choice([1.0, 1e-6, 1e6])
    keys = scale * rng.integers(-num_values, num_values + 1, count)

    order = sorted_by(keys, np.arange(count), Candidates(species, pt, eta, phi))

    # lexsort begins with the last key.
    expected_order = np.lexsort([phi, eta, -pt, species, keys])
    assert order.tolist() == expected_order.tolist()
