"""The layer that rotates events so that their lepton points the same way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import ON_PARTICLES, run, small_network, small_spec
from torch import Tensor

from features.columns import INPUT_COLUMNS, PARTICLE_FEATURE_NAMES, RotationBehaviour, hlf_names
from models.networks.classifier import Classifier
from models.networks.lepton_frame import LeptonFrame
from models.networks.registry import ModelName
from models.networks.scaling_layer import Scaler

LENGTHS = [7, 1, 12]
MET_PHI = hlf_names().index("met_phi")
LEPTON_ETA = hlf_names().index("lepton_eta")
LEPTON_PHI = hlf_names().index("lepton_phi")
beam_directions = st.sampled_from([1.0, -1.0])
angles = st.floats(-3.2, 3.2)


def wrap(angle: Any) -> Any:
    """Bring an azimuth into -pi to pi."""
    return np.arctan2(np.sin(angle), np.cos(angle))


def rotated_particles(
    rng: np.random.Generator, num_particles: int, *, angle: float, beam: float
) -> dict[str, np.ndarray]:
    """Random features of the particles of one event, rotated and mirrored."""
    pt = rng.exponential(5.0, num_particles)
    phi = rng.uniform(-np.pi, np.pi, num_particles)
    x, y, z, eta, scalar = rng.normal(0, 1, (5, num_particles))
    phi = wrap(phi + angle)
    eta = 2 * beam * eta
    features = dict.fromkeys(PARTICLE_FEATURE_NAMES, scalar)
    moved = {
        "pt": pt,
        "energy": pt * np.cosh(eta),
        "eta": eta,
        "phi": phi,
        "px": pt * np.cos(phi),
        "py": pt * np.sin(phi),
        "pz": pt * np.sinh(eta),
        "vertex_x": x * np.cos(angle) - y * np.sin(angle),
        "vertex_y": x * np.sin(angle) + y * np.cos(angle),
        "vertex_z": beam * z,
    }
    return {**features, **moved}


def events(*, angle: float = 0.0, beam: float = 1.0) -> dict[str, Tensor]:
    """The same events, rotated around the beam by an angle, and mirrored if the beam is -1."""
    rng = np.random.default_rng(3)
    num_events, num_hlf = len(LENGTHS), len(hlf_names())
    hlf = rng.normal(0, 1, (num_events, num_hlf))
    hlf[:, MET_PHI] = wrap(hlf[:, MET_PHI] + angle)
    particles = np.zeros((num_events, max(LENGTHS), len(PARTICLE_FEATURE_NAMES)))
    for event, length in enumerate(LENGTHS):
        features = rotated_particles(rng, length, angle=angle, beam=beam)
        columns = [features[name] for name in PARTICLE_FEATURE_NAMES]
        particles[event, :length] = np.column_stack(columns)
        # The first particle is the lepton.
        hlf[event, LEPTON_ETA] = features["eta"][0]
        hlf[event, LEPTON_PHI] = features["phi"][0]
    return {
        "hlf": torch.tensor(hlf),
        "particles": torch.tensor(particles),
        "num_particles": torch.tensor(LENGTHS),
    }


def unlimited_network(name: ModelName, **settings: Any) -> Classifier:
    """A network whose scaling leaves room for all values."""
    spec = small_spec(name, **settings)
    scalers = {}
    for column, scaler in spec.scalers.items():
        num_features = len(scaler.mean)
        scalers[column] = Scaler([0.0] * num_features, [5.0] * num_features)
    return small_network(spec._replace(scalers=scalers))


@pytest.mark.parametrize("name", ON_PARTICLES)
@given(angle=angles, beam=beam_directions)
@settings(max_examples=10)
def test_rotated_and_mirrored_events_have_the_same_logits(
    name: ModelName, angle: float, beam: float
) -> None:
    model = unlimited_network(name)

    logits = run(model, events(angle=angle, beam=beam))

    torch.testing.assert_close(logits, run(model, events()), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ON_PARTICLES)
@pytest.mark.parametrize("change", [{"angle": 1.0}, {"beam": -1.0}])
def test_networks_in_the_frame_of_the_detector_see_the_rotation(
    name: ModelName, change: dict[str, float]
) -> None:
    model = unlimited_network(name, frame="detector")

    logits = run(model, events(**change))

    assert not torch.allclose(logits, run(model, events()), atol=1e-3)


def features_by_name(particles: Tensor) -> dict[str, np.ndarray]:
    columns = particles.T.numpy()
    return dict(zip(PARTICLE_FEATURE_NAMES, columns, strict=True))


def assert_lepton_points_the_same_way(
    old: dict[str, np.ndarray], new: dict[str, np.ndarray]
) -> None:
    """The lepton, the first particle, has azimuth 0 and a positive pseudorapidity."""
    assert new["phi"][0] == 0
    assert new["eta"][0] > 0
    azimuth_from_lepton = wrap(old["phi"] - old["phi"][0])
    np.testing.assert_allclose(new["phi"], azimuth_from_lepton, atol=1e-9)
    side_of_lepton = np.sign(old["eta"][0])
    for name in ("eta", "pz", "vertex_z"):
        np.testing.assert_allclose(new[name], side_of_lepton * old[name], rtol=1e-9)


def vertex_distance(particles: dict[str, np.ndarray]) -> np.ndarray:
    return np.hypot(particles["vertex_x"], particles["vertex_y"])


def vertex_times_momentum(particles: dict[str, np.ndarray]) -> np.ndarray:
    """The scalar product in the transverse plane."""
    x_term = particles["vertex_x"] * particles["px"]
    y_term = particles["vertex_y"] * particles["py"]
    return x_term + y_term


def assert_relations_stay(old: dict[str, np.ndarray], new: dict[str, np.ndarray]) -> None:
    """Momenta fit their azimuths, and vertices keep their distances and angles to momenta."""
    close = {"rtol": 1e-9, "atol": 1e-9}
    px = new["pt"] * np.cos(new["phi"])
    py = new["pt"] * np.sin(new["phi"])
    np.testing.assert_allclose(new["px"], px, **close)
    np.testing.assert_allclose(new["py"], py, **close)
    np.testing.assert_allclose(vertex_distance(new), vertex_distance(old), **close)
    np.testing.assert_allclose(vertex_times_momentum(new), vertex_times_momentum(old), **close)


@given(angle=angles, beam=beam_directions)
@settings(max_examples=10)
def test_the_lepton_gets_azimuth_0_and_relations_stay(angle: float, beam: float) -> None:
    particles = events(angle=angle, beam=beam)["particles"]

    rotated = LeptonFrame("particles").double()(particles)

    for event, length in enumerate(LENGTHS):
        old = features_by_name(particles[event, :length])
        new = features_by_name(rotated[event, :length])
        assert_lepton_points_the_same_way(old, new)
        assert_relations_stay(old, new)
        for feature in INPUT_COLUMNS["particles"].features:
            if feature.rotation == "none":
                assert np.array_equal(new[feature.name], old[feature.name])


def test_azimuths_stay_within_pi() -> None:
    """The azimuth of a detector may be float32(pi), which is above pi."""
    pi = float(np.float32(np.pi))
    hlf = torch.zeros(4, len(hlf_names()))
    hlf[:, MET_PHI] = torch.tensor([pi, -pi, pi, -pi])
    hlf[:, LEPTON_PHI] = torch.tensor([-pi, pi, 0.0, 0.0])

    rotated = LeptonFrame("hlf")(hlf)

    met_phi = rotated[:, MET_PHI]
    largest_azimuth = float(met_phi.abs().max())
    assert largest_azimuth <= pi
    torch.testing.assert_close(met_phi[:2], torch.zeros(2), rtol=0, atol=1e-6)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_number_that_is_not_finite_stays_alone(value: float) -> None:
    """A product with a constant matrix would make all numbers of the event NaN."""
    particles = events()["particles"]
    frame = LeptonFrame("particles")
    for index, feature in enumerate(INPUT_COLUMNS["particles"].features):
        if feature.rotation == "none":
            changed, expected = particles.clone(), frame(particles)
            changed[..., index] = value
            expected[..., index] = value

            rotated = frame(changed)

            torch.testing.assert_close(rotated, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["hlf", "particles"])
def test_every_x_of_the_table_is_followed_by_its_y(name: str) -> None:
    rotations = [feature.rotation for feature in INPUT_COLUMNS[name].features]

    for index, rotation in enumerate(rotations):
        if rotation is RotationBehaviour.X:
            assert rotations[index + 1] is RotationBehaviour.Y
    assert rotations.count(RotationBehaviour.X) == rotations.count(RotationBehaviour.Y)
