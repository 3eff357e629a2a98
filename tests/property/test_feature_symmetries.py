"""Rotating, mirroring or shuffling an event changes its features as physics demands."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
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

seeds = st.integers(0, 2**32 - 1)
angles = st.floats(-math.pi, math.pi)


def random_event(seed: int) -> Row:
    """An event with one hard electron, and candidates in every cone."""
    rng = np.random.default_rng(seed)

    def vectors(min_pt: float, max_pt: float, count: int) -> list[list[float]]:
        """Random pT, eta and phi."""
        low, high = [min_pt, -1, -math.pi], [max_pt, 1, math.pi]
        vectors: list[list[float]] = rng.uniform(low, high, (count, 3)).tolist()
        return vectors

    num_tracks = rng.integers(5, 60)
    num_photons, num_neutral_hadrons = rng.integers(0, 30, 2)
    electrons = [lepton(*vector) for vector in vectors(300, 300, 1)]
    tracks = [track(*vector) for vector in vectors(0.6, 5, num_tracks)]
    photons = [tower(*vector) for vector in vectors(1.1, 5, num_photons)]
    neutral_hadrons = [tower(*vector) for vector in vectors(1.1, 5, num_neutral_hadrons)]
    jets = []
    for vector in vectors(5, 90, 6):
        btag = int(rng.integers(0, 8))
        jets.append(jet(*vector, btag=btag))
    met, met_phi = rng.uniform([1, -3], [100, 3]).tolist()
    return event_row(
        electrons=electrons,
        tracks=tracks,
        photons=photons,
        neutral_hadrons=neutral_hadrons,
        jets=jets,
        met=met,
        met_phi=met_phi,
    )


def transform(event: Row, *, angle: float = 0.0, eta_sign: int = 1) -> Row:
    """The event rotated around the beam, or with another sign of eta."""

    def rotate(phi: float) -> float:
        return math.remainder(phi + angle, 2 * math.pi)

    def move(particle: Row) -> Row:
        eta = eta_sign * particle["eta"]
        return {**particle, "eta": eta, "phi": rotate(particle["phi"])}

    transformed = {**event, "met_phi": rotate(event["met_phi"])}
    for name in ("tracks", "photons", "neutral_hadrons", "electrons", "muons", "jets"):
        transformed[name] = [move(particle) for particle in event[name]]
    return transformed


def is_far_from_edges(event: Row) -> bool:
    """Whether no particle is at the edge of a cone, and no two are equally far from the lepton."""
    particles = []
    for name in ("electrons", "tracks", "photons", "neutral_hadrons"):
        particles += event[name]
    eta = np.array([particle["eta"] for particle in particles])
    phi = np.array([particle["phi"] for particle in particles])
    distances = np.sqrt(delta_r2(eta[:, None], phi[:, None], eta, phi))
    # The electron is the first particle.
    lepton_distances = np.sort(distances[0, 1:])
    is_on_edge = abs(distances - SETTINGS.isolation_cone) < EDGE
    is_tied = np.diff(lepton_distances) <= EDGE
    return not is_on_edge.any() and not is_tied.any()


def features(event: Row) -> FeatureBlock:
    """The features of an event; examples without an isolated lepton do not count."""
    block = build_features(events_table([event]), SETTINGS)
    assume(len(block.selected) == 1)
    return block


def assert_equal_except(
    first: FeatureBlock, second: FeatureBlock, particle_names: list[str], hlf: list[str]
) -> None:
    """Compare all features without those of these names."""
    equal_columns = [COLUMN[name] for name in COLUMN if name not in particle_names]
    first_particles = particles_of(first)[:, equal_columns]
    second_particles = particles_of(second)[:, equal_columns]
    np.testing.assert_allclose(first_particles, second_particles, rtol=1e-5, atol=1e-5)
    equal_hlf = [index for index, name in enumerate(hlf_names()) if name not in hlf]
    first_hlf = first.hlf[:, equal_hlf]
    second_hlf = second.hlf[:, equal_hlf]
    np.testing.assert_allclose(first_hlf, second_hlf, rtol=1e-5, atol=1e-4)


def particle_column(block: FeatureBlock, name: str) -> np.ndarray:
    """(num_particles,) in double precision."""
    return particles_of(block)[:, COLUMN[name]].astype(np.float64)


@given(seeds, angles)
def test_a_rotation_around_the_beam_changes_only_azimuths(seed: int, angle: float) -> None:
    event = random_event(seed)
    assume(is_far_from_edges(event))

    original = features(event)
    rotated = features(transform(event, angle=angle))

    assert_equal_except(rotated, original, ["phi", "px", "py"], ["met_phi", "lepton_phi"])
    original_phi = particle_column(original, "phi")
    rotated_phi = particle_column(rotated, "phi")
    turn = delta_phi(rotated_phi, original_phi)
    np.testing.assert_allclose(delta_phi(turn, angle), 0, atol=1e-5)


@given(seeds)
def test_mirroring_in_eta_changes_only_the_signs_along_the_beam(seed: int) -> None:
    event = random_event(seed)
    assume(is_far_from_edges(event))

    original = features(event)
    mirrored = features(transform(event, eta_sign=-1))

    assert_equal_except(mirrored, original, ["eta", "pz"], ["lepton_eta"])
    for name in ("eta", "pz"):
        expected_column = -particle_column(original, name)
        np.testing.assert_array_equal(particle_column(mirrored, name), expected_column)


@given(seeds)
def test_shuffling_the_candidates_changes_nothing(seed: int) -> None:
    event = random_event(seed)
    shuffled_event = {**event}
    for name in ("tracks", "photons", "neutral_hadrons", "jets"):
        candidates = list(event[name])
        random.Random(seed).shuffle(candidates)
        shuffled_event[name] = candidates

    original = features(event)
    shuffled = features(shuffled_event)

    np.testing.assert_allclose(particles_of(original), particles_of(shuffled), rtol=1e-6)
    np.testing.assert_allclose(original.hlf, shuffled.hlf, rtol=1e-6)


@given(st.floats(-50, 50), st.floats(-50, 50))
def test_delta_phi_is_wrapped_and_antisymmetric_and_ignores_full_turns(
    phi1: float, phi2: float
) -> None:
    wrapped = float(delta_phi(phi1, phi2))

    assert -math.pi < wrapped <= math.pi
    # Both are the same angle.
    unwrapped = phi1 - phi2
    assert math.cos(wrapped) == pytest.approx(math.cos(unwrapped), abs=1e-9)
    assert math.sin(wrapped) == pytest.approx(math.sin(unwrapped), abs=1e-9)
    # Near pi, rounding decides about the sign.
    if abs(wrapped) < 3.1415:
        reverse = float(delta_phi(phi2, phi1))
        after_a_turn = float(delta_phi(phi1 + 2 * math.pi, phi2))
        assert reverse == pytest.approx(-wrapped, abs=1e-9)
        assert after_a_turn == pytest.approx(wrapped, abs=1e-9)
