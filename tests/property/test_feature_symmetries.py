"""What physics demands of the features: turning, mirroring or shuffling an event changes nothing that it must not."""

from __future__ import annotations

import math

import numpy as np
from event_rows import Row, event_row, events_table, jet, lepton, tower, track
from extracted_features import particles_of
from hypothesis import assume, given
from hypothesis import strategies as st

from features.columns import PARTICLE_FEATURE_NAMES, hlf_names
from features.kernels import FeatureBlock, build_features
from features.kinematics import delta_phi, delta_r2
from features.settings import FeatureSettings

SETTINGS = FeatureSettings()
EDGE = 1e-5
COLUMN = {name: index for index, name in enumerate(PARTICLE_FEATURE_NAMES)}
HLF = {name: index for index, name in enumerate(hlf_names())}
PHI_HLF = [HLF["met_phi"], HLF["lepton_phi"]]

seeds = st.integers(0, 2**32 - 1)
angles = st.floats(-math.pi, math.pi)


def random_event(seed: int) -> Row:
    """An event with one hard electron and candidates of all kinds, dense enough that cones are never empty."""
    rng = np.random.default_rng(seed)

    def directions(count: int) -> np.ndarray:
        return np.stack([rng.uniform(-1, 1, count), rng.uniform(-math.pi, math.pi, count)], axis=1)

    return event_row(
        electrons=[lepton(300.0, *directions(1)[0])],
        tracks=[track(float(rng.uniform(0.6, 5)), *d) for d in directions(rng.integers(5, 60))],
        photons=[tower(float(rng.uniform(1.1, 5)), *d) for d in directions(rng.integers(0, 30))],
        neutral_hadrons=[
            tower(float(rng.uniform(1.1, 5)), *d) for d in directions(rng.integers(0, 30))
        ],
        jets=[
            jet(float(rng.uniform(5, 90)), *d, btag=int(rng.integers(0, 8))) for d in directions(6)
        ],
        met=float(rng.uniform(1, 100)),
        met_phi=float(rng.uniform(-3, 3)),
    )


def transformed(event: Row, *, phi: float = 0.0, mirror: bool = False) -> Row:
    def turn(angle: float) -> float:
        return math.remainder(angle + phi, 2 * math.pi)

    sign = -1.0 if mirror else 1.0
    changed = {
        name: [
            {**particle, "eta": sign * particle["eta"], "phi": turn(particle["phi"])}
            for particle in event[name]
        ]
        for name in ("tracks", "photons", "neutral_hadrons", "electrons", "muons", "jets")
    }
    return {**event, **changed, "met_phi": turn(event["met_phi"])}


def far_from_every_edge(event: Row) -> bool:
    """No two particles at the edge of a cone, and no two at the same distance from the lepton."""
    particles = [
        *event["electrons"],
        *event["tracks"],
        *event["photons"],
        *event["neutral_hadrons"],
    ]
    eta = np.array([particle["eta"] for particle in particles])
    phi = np.array([particle["phi"] for particle in particles])
    distances = np.sqrt(delta_r2(eta[:, None], phi[:, None], eta, phi))
    from_lepton = np.sort(distances[0, 1:])
    on_edge = (abs(distances - SETTINGS.isolation_cone) < EDGE).any()
    return not on_edge and bool((np.diff(from_lepton) > EDGE).all())


def features(event: Row) -> FeatureBlock:
    block = build_features(events_table([event]), SETTINGS)
    assume(len(block.selected) == 1)
    return block


def assert_same_but(
    changed: FeatureBlock, original: FeatureBlock, columns: list[str], hlf: list[int]
) -> None:
    retained = [index for name, index in COLUMN.items() if name not in columns]
    np.testing.assert_allclose(
        particles_of(changed)[:, retained],
        particles_of(original)[:, retained],
        rtol=1e-5,
        atol=1e-5,
    )
    remaining = [index for index in range(len(hlf_names())) if index not in hlf]
    np.testing.assert_allclose(
        changed.hlf[:, remaining], original.hlf[:, remaining], rtol=1e-5, atol=1e-4
    )


@given(seeds, angles)
def test_turning_the_event_in_phi_changes_nothing_but_azimuths(seed: int, angle: float) -> None:
    event = random_event(seed)
    assume(far_from_every_edge(event))
    turned = features(transformed(event, phi=angle))
    original = features(event)
    assert_same_but(turned, original, ["phi", "px", "py"], PHI_HLF)
    shift = delta_phi(
        particles_of(turned)[:, COLUMN["phi"]].astype(float),
        particles_of(original)[:, COLUMN["phi"]].astype(float),
    )
    np.testing.assert_allclose(delta_phi(shift, angle), 0, atol=1e-5)


@given(seeds)
def test_mirroring_the_event_in_eta_changes_only_the_signs_along_the_beam(seed: int) -> None:
    event = random_event(seed)
    assume(far_from_every_edge(event))
    mirrored, original = features(transformed(event, mirror=True)), features(event)
    assert_same_but(mirrored, original, ["eta", "pz"], [HLF["lepton_eta"]])
    for name in ("eta", "pz"):
        np.testing.assert_array_equal(
            particles_of(mirrored)[:, COLUMN[name]], -particles_of(original)[:, COLUMN[name]]
        )


@given(seeds, st.randoms(use_true_random=False))
def test_shuffling_the_candidates_changes_nothing(seed: int, shuffler: object) -> None:
    event = random_event(seed)
    shuffled = {**event}
    for name in ("tracks", "photons", "neutral_hadrons", "jets"):
        shuffled[name] = [*event[name]]
        shuffler.shuffle(shuffled[name])  # type: ignore[attr-defined]
    first, second = features(event), features(shuffled)
    np.testing.assert_allclose(particles_of(first), particles_of(second), rtol=1e-6)
    np.testing.assert_allclose(first.hlf, second.hlf, rtol=1e-6)


@given(st.floats(-50, 50), st.floats(-50, 50))
def test_delta_phi_is_wrapped_and_antisymmetric_and_ignores_full_turns(
    phi1: float, phi2: float
) -> None:
    difference = float(delta_phi(phi1, phi2))
    assert -math.pi < difference <= math.pi
    assert math.isclose(math.cos(difference), math.cos(phi1 - phi2), abs_tol=1e-9)
    assert math.isclose(math.sin(difference), math.sin(phi1 - phi2), abs_tol=1e-9)
    if abs(difference) < 3.1415:
        assert math.isclose(float(delta_phi(phi2, phi1)), -difference, abs_tol=1e-9)
        assert math.isclose(float(delta_phi(phi1 + 2 * math.pi, phi2)), difference, abs_tol=1e-9)
