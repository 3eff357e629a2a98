"""The parts of the kernels that are fast because they are clever, against plain ways to the same result."""

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


def candidates(seed: int, *, spread: float, within_pi: bool) -> Candidates:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, 80))
    eta = rng.normal(0, spread, count)
    phi = rng.uniform(-math.pi, math.pi, count)
    phi[: count // 3] = np.clip(
        rng.choice([-1, 1], count // 3) * (math.pi - rng.exponential(0.05, count // 3)), -3, 3.14
    )
    if not within_pi:
        phi += rng.choice([-2, 0, 2, 4], count) * math.pi
    return Candidates(np.sort(rng.integers(0, 3, count)), rng.uniform(0.5, 50, count), eta, phi)


def isolations(event: Candidates, cone: float, *, as_published: bool) -> Floats:
    """Isolation of every candidate as a plain sum over all pairs."""
    particle_kind, pt, eta, phi = event
    dphi = phi[:, None] - phi if as_published else delta_phi(phi[:, None], phi)
    inside = np.hypot(eta[:, None] - eta, dphi) < cone
    if not as_published:
        np.fill_diagonal(inside, val=False)
    sums = np.stack(
        [
            inside[:, particle_kind == flavour] @ pt[particle_kind == flavour]
            for flavour in (TRACK, PHOTON, NEUTRAL)
        ],
        axis=1,
    )
    relative: Floats = sums / pt[:, None]
    if as_published:
        relative[:, TRACK] -= 1.0
    return relative


def on_edge(event: Candidates, cone: float, *, as_published: bool) -> np.ndarray:
    """Which particles have another at the very edge of their cone."""
    count = event.pt.size
    actual = np.zeros(count, dtype=bool)
    for first in range(count):
        for second in range(count):
            dphi = event.phi[first] - event.phi[second]
            if not as_published:
                dphi = math.remainder(dphi, 2 * math.pi)
            if abs(math.hypot(event.eta[first] - event.eta[second], dphi) - cone) < EDGE:
                actual[first] = True
    return actual


@given(seeds, cones, st.sampled_from([0.3, 2.0, 12.0]), st.booleans())
@settings(max_examples=150)
def test_isolations_are_those_of_all_pairs(
    seed: int, cone: float, spread: float, as_published: bool
) -> None:
    event = candidates(seed, spread=spread, within_pi=as_published)
    expected = isolations(event, cone, as_published=as_published)
    actual = relative_isolations(event, cone, as_published)
    clear = ~on_edge(event, cone, as_published=as_published)
    np.testing.assert_allclose(actual[clear], expected[clear], rtol=1e-9, atol=1e-9)


@given(seeds, st.integers(1, 4))
def test_sorting_is_that_of_python_with_ties_by_kind_pt_eta_phi(seed: int, digits: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, 60))
    # Few different values, so that there are ties of all depths.
    particle_kind = rng.integers(0, 3, count)
    pt, eta, phi = (rng.integers(0, digits, count).astype(float) for _ in range(3))
    event = Candidates(particle_kind, pt, eta, phi)
    key = rng.integers(-digits, digits + 1, count) * rng.choice([1.0, 1e-6, 1e6])
    selected = np.arange(count)
    expected = sorted(
        range(count), key=lambda i: (key[i], particle_kind[i], -pt[i], eta[i], phi[i], i)
    )
    assert sorted_by(key, selected, event).tolist() == expected
