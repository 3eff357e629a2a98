"""The layer that turns events so that their lepton points the same way."""

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

NUMBERS = [7, 1, 12]
HLF_LEPTON = [hlf_names().index(name) for name in ("met_phi", "lepton_eta", "lepton_phi")]
signs = st.sampled_from([1.0, -1.0])
angles = st.floats(-3.2, 3.2)


def wrapped(angle: Any) -> Any:
    """An azimuth within -pi to pi."""
    return np.arctan2(np.sin(angle), np.cos(angle))


def events(*, turned_by: float = 0.0, beam: float = 1.0) -> dict[str, Tensor]:
    """Events, perhaps turned and mirrored: all features follow from what the particles are."""
    rng, results = np.random.default_rng(3), []
    for number in NUMBERS:
        pt, x, y, z, still = rng.exponential(5.0, number), *rng.normal(0, 1, (4, number))
        phi = wrapped(rng.uniform(-np.pi, np.pi, number) + turned_by)
        eta = beam * rng.normal(0, 2, number)
        options = {
            "pt": pt,
            "energy": pt * np.cosh(eta),
            "eta": eta,
            "phi": phi,
            "px": pt * np.cos(phi),
            "py": pt * np.sin(phi),
            "pz": pt * np.sinh(eta),
            "vertex_x": x * np.cos(turned_by) - y * np.sin(turned_by),
            "vertex_y": x * np.sin(turned_by) + y * np.cos(turned_by),
            "vertex_z": beam * z,
        }
        rows = np.column_stack([options.get(name, still) for name in PARTICLE_FEATURE_NAMES])
        results.append(np.pad(rows, ((0, max(NUMBERS) - number), (0, 0))))
    particles, hlf = np.array(results), rng.normal(0, 1, (len(NUMBERS), len(hlf_names())))
    lepton = particles[:, 0, [PARTICLE_FEATURE_NAMES.index(name) for name in ("eta", "phi")]]
    met_phi = wrapped(hlf[:, HLF_LEPTON[0]] + turned_by)
    hlf[:, HLF_LEPTON] = np.column_stack([met_phi, lepton])
    return {
        "hlf": torch.tensor(hlf),
        "particles": torch.tensor(particles),
        "num_particles": torch.tensor(NUMBERS),
    }


def network(name: ModelName, **settings: Any) -> Classifier:
    """A network whose scaling leaves room for all values."""
    spec = small_spec(name, **settings)
    scalers = {
        column: Scaler([0.0] * len(scaler.mean), [5.0] * len(scaler.mean))
        for column, scaler in spec.scalers.items()
    }
    return small_network(spec._replace(scalers=scalers))


@pytest.mark.parametrize("name", ON_PARTICLES)
@given(turned_by=angles, beam=signs)
@settings(max_examples=10)
def test_turned_and_mirrored_events_are_the_same_to_the_networks(
    name: Any, turned_by: float, beam: float
) -> None:
    model, second = network(name), events(turned_by=turned_by, beam=beam)
    torch.testing.assert_close(run(model, second), run(model, events()), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ON_PARTICLES)
def test_networks_in_the_frame_of_the_detector_see_the_difference(name: Any) -> None:
    model = network(name, frame="detector")
    for second in (events(turned_by=1.0), events(beam=-1.0)):
        assert not torch.allclose(run(model, second), run(model, events()), atol=1e-3)


@given(turned_by=angles, beam=signs)
@settings(max_examples=10)
def test_the_lepton_gets_azimuth_0_and_relations_stay(turned_by: float, beam: float) -> None:
    raw = events(turned_by=turned_by, beam=beam)
    columns = {name: number for number, name in enumerate(PARTICLE_FEATURE_NAMES)}
    actual = LeptonFrame("particles").double()(raw["particles"])
    for event, rows, number in zip(actual.numpy(), raw["particles"].numpy(), NUMBERS, strict=True):
        new, old = (
            {name: particles[:number, at] for name, at in columns.items()}
            for particles in (event, rows)
        )
        assert new["phi"][0] == 0
        assert new["eta"][0] > 0
        sign = np.sign(old["eta"][0])
        np.testing.assert_allclose(new["phi"], wrapped(old["phi"] - old["phi"][0]), atol=1e-9)
        np.testing.assert_allclose(new["px"], new["pt"] * np.cos(new["phi"]), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(new["py"], new["pt"] * np.sin(new["phi"]), rtol=1e-9, atol=1e-9)
        for beam_like in ("eta", "pz", "vertex_z"):
            np.testing.assert_allclose(new[beam_like], sign * old[beam_like], rtol=1e-9)
        distances = [
            np.hypot(particles["vertex_x"], particles["vertex_y"]) for particles in (new, old)
        ]
        np.testing.assert_allclose(*distances, rtol=1e-9)
        along = new["vertex_x"] * new["px"] + new["vertex_y"] * new["py"]
        state_before = old["vertex_x"] * old["px"] + old["vertex_y"] * old["py"]
        np.testing.assert_allclose(along, state_before, rtol=1e-9, atol=1e-9)
        for scalar in set(columns) - {
            "phi",
            "px",
            "py",
            "eta",
            "pz",
            "vertex_x",
            "vertex_y",
            "vertex_z",
        }:
            assert np.array_equal(new[scalar], old[scalar])


def test_azimuths_stay_within_pi() -> None:
    """The azimuth of a detector may be float32(pi), which is above pi."""
    edge = float(np.float32(np.pi))
    hlf = torch.zeros(4, len(hlf_names()))
    hlf[:, HLF_LEPTON[0]] = torch.tensor([edge, -edge, edge, -edge])
    hlf[:, HLF_LEPTON[2]] = torch.tensor([-edge, edge, 0.0, 0.0])
    actual = LeptonFrame("hlf")(hlf)[:, HLF_LEPTON[0]]
    assert float(actual.abs().max()) <= edge
    torch.testing.assert_close(actual[:2], torch.zeros(2), rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [np.inf, -np.inf, np.nan])
def test_one_number_that_is_not_finite_spoiled_all_others(size: float) -> None:
    """Products with constant matrices multiplied it by 0, so an infinite isolation made an event's output NaN."""
    scalars = [
        position
        for position, turning in enumerate(INPUT_COLUMNS["particles"].features)
        if turning.rotation == "none"
    ]
    raw = events()["particles"]
    expected = LeptonFrame("particles")(raw)
    for position in scalars:
        spoiled = raw.clone()
        spoiled[..., position] = size
        expected_here = expected.clone()
        expected_here[..., position] = size
        torch.testing.assert_close(
            LeptonFrame("particles")(spoiled), expected_here, rtol=0, atol=0, equal_nan=True
        )


def test_every_vector_of_the_table_has_both_components() -> None:
    """`RotationBehaviour.X` is followed by its `RotationBehaviour.Y`, so that each pair turns together."""
    for column in INPUT_COLUMNS.values():
        results = [feature.rotation for feature in column.features]
        for position, turning in enumerate(results):
            if turning is RotationBehaviour.X:
                assert results[position + 1] is RotationBehaviour.Y
        assert results.count(RotationBehaviour.X) == results.count(RotationBehaviour.Y)
