"""Networks for one event a call: fixed shapes, few operators, the same probabilities."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from networks import NAMES, ROBUST_SCALERS, SCALERS, small_network, small_spec
from torch import nn

from features.columns import MAX_PARTICLES, NUM_PARTICLE_FEATURES, PARTICLE_FEATURE_NAMES, hlf_names
from models.errors import ModelInputError
from models.export.one_event_network import HoldingEncoder, OneEventNetwork, PlainScaling
from models.export.onnx_classifier import OneEventClassifier
from models.export.onnx_export import OPSET, export_one_event
from models.export.parity import PARITY_TOLERANCE, largest_difference
from models.networks.classifier import Classifier
from models.networks.particles import ParticlesClassifier
from models.networks.particles_settings import ParticlesSettings
from models.networks.registry import NETWORKS, ModelName
from models.networks.scaling_layer import Scaler, Standardize

WITH_FORM = [name for name in NAMES if small_network(name).standard_form() is not None]
LENGTHS = [1, 2, 40, 801]
#: Operators that runtimes of fixed shapes know; no Clip, no GatherElements, and nothing about
#: shapes.
PLAIN = {
    "Add",
    "Concat",
    "Constant",
    "Cos",
    "GRU",
    "Gemm",
    "Identity",
    "Log",
    "MatMul",
    "Mul",
    "Neg",
    "ReduceSum",
    "Relu",
    "Sin",
    "Slice",
    "Softmax",
    "Sqrt",
    "Squeeze",
    "Sub",
    "Transpose",
}


@pytest.fixture(scope="module")
def columns() -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    lengths = np.array(LENGTHS)
    num_events = len(lengths)
    mean, std, *_ = SCALERS["particles"]
    particles = rng.normal(mean, std, (num_events, MAX_PARTICLES, NUM_PARTICLE_FEATURES))
    is_flag = [name.startswith("is_") for name in PARTICLE_FEATURE_NAMES]
    (flags,) = np.nonzero(is_flag)
    types = rng.integers(0, len(flags), (num_events, MAX_PARTICLES))
    particles[..., flags] = np.eye(len(flags))[types]
    is_padding = np.arange(MAX_PARTICLES) >= lengths[:, np.newaxis]
    particles[is_padding] = 0.0
    hlf_mean, hlf_std, *_ = SCALERS["hlf"]
    hlf = rng.normal(hlf_mean, hlf_std, (num_events, len(hlf_names())))
    return {
        "hlf": hlf.astype(np.float32),
        "particles": particles.astype(np.float32),
        "num_particles": lengths.astype(np.int32),
    }


def exported(model: Classifier, name: ModelName, folder: Path) -> OneEventClassifier:
    export_one_event(model, small_spec(name), folder / "one_event.onnx")
    return OneEventClassifier(folder / "one_event.onnx")


@pytest.mark.parametrize(
    ("name", "settings"),
    [*((name, {}) for name in WITH_FORM), ("particles", {"read_from": "start"})],
)
def test_it_gives_the_networks_probabilities(
    tmp_path: Path,
    columns: dict[str, np.ndarray[Any, Any]],
    name: ModelName,
    settings: dict[str, Any],
) -> None:
    model = small_network(name, dtype=torch.float32, **settings)

    one_event = exported(model, name, tmp_path)

    probabilities = one_event.probabilities(columns)
    expected = model.probabilities(columns)
    np.testing.assert_allclose(probabilities, expected, rtol=0, atol=2e-6)
    difference = largest_difference(model, one_event, columns, batch_sizes=(4,))
    assert difference <= PARITY_TOLERANCE


@pytest.mark.parametrize("rows", [2, 900])
def test_lists_may_have_other_lengths_than_the_file(
    tmp_path: Path, columns: dict[str, np.ndarray[Any, Any]], rows: int
) -> None:
    """The lists of some events are as long as the longest of them, or padded to more rows."""
    two_events = {name: values[:2] for name, values in columns.items()}
    particles = np.zeros((2, rows, NUM_PARTICLE_FEATURES), np.float32)
    particles[:, :2] = two_events["particles"][:, :2]
    other_lengths = two_events | {"particles": particles}
    model = small_network("particles", dtype=torch.float32)

    one_event = exported(model, "particles", tmp_path)

    probabilities = one_event.probabilities(other_lengths)
    expected = one_event.probabilities(two_events)
    np.testing.assert_array_equal(probabilities, expected)
    difference = largest_difference(model, one_event, other_lengths, batch_sizes=(2,))
    assert difference <= PARITY_TOLERANCE
    if rows > MAX_PARTICLES:
        too_many = other_lengths | {"num_particles": np.array([1, rows])}
        with pytest.raises(ModelInputError, match="more than 801 particles"):
            one_event.probabilities(too_many)


@pytest.mark.parametrize("column", ROBUST_SCALERS)
def test_plain_scaling_is_that_of_the_networks_also_for_heavy_tails(
    columns: dict[str, np.ndarray[Any, Any]], column: str
) -> None:
    scaler = ROBUST_SCALERS[column]
    scaling = Standardize(scaler)
    events = torch.tensor(columns[column])
    factors = torch.tensor([1e-3, 1.0, 1.0, 1e3])
    for index, factor in enumerate(factors):
        events[index] *= factor
    plain_scaling = PlainScaling(scaling)

    scaled = plain_scaling(events)

    expected = scaling(events)
    assert (expected.abs() == scaler.limit).any()
    # Rounding of the logarithm, divided by a standard deviation of 0.1.
    torch.testing.assert_close(scaled, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("scalers", [SCALERS, ROBUST_SCALERS], ids=["linear", "robust"])
@pytest.mark.parametrize("name", WITH_FORM)
def test_all_shapes_are_fixed_and_all_operators_plain(
    tmp_path: Path, name: ModelName, scalers: dict[str, Scaler]
) -> None:
    spec = small_spec(name)
    spec = spec._replace(scalers={column: scalers[column] for column in spec.scalers})
    inputs = [column for column in NETWORKS[name].inputs if column != "num_particles"]

    exported(small_network(spec), name, tmp_path)

    model = onnx.load(tmp_path / "one_event.onnx")
    shapes = {}
    for tensor in [*model.graph.input, *model.graph.output]:
        dimensions = tensor.type.tensor_type.shape.dim
        shapes[tensor.name] = [dimension.dim_value for dimension in dimensions]
    input_shapes = {
        "hlf": [1, len(hlf_names())],
        "particles": [1, MAX_PARTICLES, NUM_PARTICLE_FEATURES],
    }
    expected = {column: input_shapes[column] for column in inputs}
    assert shapes == expected | {"probability": [1, 3]}
    assert {node.op_type for node in model.graph.node} <= PLAIN
    assert model.opset_import[0].version == OPSET
    properties = {entry.key: entry.value for entry in model.metadata_props}
    assert list(json.loads(properties["inputs"])) == inputs


def test_a_scaling_without_a_value_at_0_leaves_padding_without_effect() -> None:
    """As a logarithm of pT."""

    class Logarithm(nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return torch.log(values.abs())

    torch.manual_seed(1)
    mean = [0.0] * NUM_PARTICLE_FEATURES
    std = [1.0] * NUM_PARTICLE_FEATURES
    settings = ParticlesSettings(gru_width=5, frame="detector")
    network = ParticlesClassifier(settings, {"particles": Scaler(mean, std)}, num_classes=3)
    encoder = network.encoder
    encoder.scaling = Logarithm()  # type: ignore[assignment]
    rows = torch.rand(1, 4, NUM_PARTICLE_FEATURES) + 0.5
    # The flags of types: all particles are of the first. A flag of 0 would have no logarithm.
    rows[..., 13:18] = torch.tensor([1.0, 1e-30, 1e-30, 1e-30, 1e-30])
    padding = torch.zeros(1, 3, NUM_PARTICLE_FEATURES)
    padded = torch.cat([rows, padding], dim=1)
    holding_encoder = HoldingEncoder(encoder)

    state = holding_encoder(padded)

    expected = encoder(rows, torch.tensor([4]))
    torch.testing.assert_close(state, expected)


def test_a_network_of_another_form_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParticlesClassifier, "standard_form", Classifier.standard_form)
    network = small_network("particles")

    with pytest.raises(ValueError, match="ParticlesClassifier has no form for one event"):
        OneEventNetwork(network)
