"""Networks as ONNX files, run by onnxruntime as others run them: without this project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from feature_datasets import CLASSES
from networks import (
    NAMES,
    ON_PARTICLES,
    onnx_file,
    random_events,
    run,
    small_network,
    small_spec,
)
from torch import Tensor

from features.columns import PARTICLE_FEATURE_NAMES, hlf_names
from models.export.onnx_classifier import FORMAT_VERSION
from models.export.onnx_export import OPSET, Provenance, export_onnx
from models.inputs import inputs_json
from models.networks.registry import NETWORKS, ModelName

PROVENANCE = Provenance(
    "train 0001-abcdef01 0123456789abcdef",
    {"train": "commit 1", "export": "commit 2"},
    {"features": "aa", "network": "bb"},
    {"signal": "ttbar", "fractions": {"QCD": 0.9, "W+jets": 0.1}, "points": [{"threshold": 0.25}]},
)
every_network = pytest.mark.parametrize("name", NAMES)
with_particles = pytest.mark.parametrize("name", ON_PARTICLES)


def exported(name: ModelName, **settings: Any) -> onnxruntime.InferenceSession:
    """The file of a network with weights from seed 1, opened."""
    onnx_bytes = onnx_file(name, **settings)
    return onnxruntime.InferenceSession(onnx_bytes, providers=["CPUExecutionProvider"])


def output(session: onnxruntime.InferenceSession, events: dict[str, Tensor]) -> np.ndarray:
    """The probabilities of events."""
    names = [model_input.name for model_input in session.get_inputs()]
    feeds = {name: events[name].numpy() for name in names}
    (probabilities,) = session.run(["probability"], feeds)
    return probabilities


def types_and_shapes(tensors: list[Any]) -> dict[str, tuple[str, list[Any]]]:
    """Type and shape of each input or output, by its name."""
    return {tensor.name: (tensor.type, tensor.shape) for tensor in tensors}


@every_network
def test_inputs_and_output_have_names_types_and_free_lengths(name: ModelName) -> None:
    session = exported(name)
    expected = {
        "hlf": ("tensor(float)", ["batch", len(hlf_names())]),
        "particles": ("tensor(float)", ["batch", "num_rows", 19]),
        "num_particles": ("tensor(int64)", ["batch"]),
    }

    inputs = types_and_shapes(session.get_inputs())
    outputs = types_and_shapes(session.get_outputs())

    assert inputs == {column: expected[column] for column in NETWORKS[name].inputs}
    assert outputs == {"probability": ("tensor(float)", ["batch", 3])}


@every_network
def test_the_metadata_describe_inputs_outputs_and_origin(tmp_path: Path, name: ModelName) -> None:
    definitions = {"jet_min_pt": 30.0}
    reading = {"tree": "Events"}
    plugin_code = {"feature own": "a digest"}
    spec = small_spec(name)._replace(
        definitions=definitions, reading=reading, plugin_code=plugin_code
    )

    export_onnx(small_network(spec), spec, tmp_path / "model.onnx", PROVENANCE)

    model = onnx.load(tmp_path / "model.onnx")
    properties = {entry.key: entry.value for entry in model.metadata_props}
    assert properties.pop("format_version") == str(FORMAT_VERSION)
    assert len(properties.pop("seal")) == 32
    assert properties.pop("run_id") == "train 0001-abcdef01 0123456789abcdef"
    metadata = {key: json.loads(value) for key, value in properties.items()}
    assert metadata == {
        "classes": CLASSES,
        "inputs": inputs_json(NETWORKS[name]().inputs),
        "settings": spec.settings.to_json(),
        "definitions": definitions,
        "reading": reading,
        "plugins": [],
        "plugin_code": plugin_code,
        "code": {"train": "commit 1", "export": "commit 2"},
        "digests": {"features": "aa", "network": "bb"},
        "working_points": PROVENANCE.working_points,
    }
    names = {
        "hlf": list(hlf_names()),
        "particles": list(PARTICLE_FEATURE_NAMES),
        "num_particles": ["num_particles"],
    }
    assert list(metadata["inputs"]) == list(NETWORKS[name].inputs)
    for column, description in metadata["inputs"].items():
        assert description["names"] == names[column]


@pytest.mark.slow
@every_network
def test_the_same_model_gives_the_same_bytes_and_another_does_not(
    tmp_path: Path, name: ModelName
) -> None:

    def exported_bytes(folder: str, seed: int) -> bytes:
        path = tmp_path / folder / "model.onnx"
        path.parent.mkdir()
        export_onnx(small_network(name, seed=seed), small_spec(name), path)
        return path.read_bytes()

    first = exported_bytes("first", seed=1)
    repeated = exported_bytes("repeated", seed=1)
    another = exported_bytes("another", seed=2)

    assert repeated == first
    assert another != first
    assert str(tmp_path).encode() not in first


@every_network
def test_the_model_is_left_as_it_is_and_double_precision_becomes_single(
    tmp_path: Path, name: ModelName
) -> None:
    model = small_network(name, dtype=torch.float64).train()
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    path = tmp_path / "model.onnx"

    export_onnx(model, small_spec(name), path)

    assert model.training
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights[key])
        assert tensor.dtype == torch.float64
    data_types = {tensor.data_type for tensor in onnx.load(path).graph.initializer}
    assert onnx.TensorProto.FLOAT in data_types
    assert onnx.TensorProto.DOUBLE not in data_types
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    events_in_single = random_events([3, 1], dtype=torch.float32)
    probabilities = output(session, events_in_single)
    events_in_double = random_events([3, 1], dtype=torch.float64)
    logits = run(model.eval(), events_in_double)
    expected = torch.softmax(logits, dim=1).detach().numpy()
    np.testing.assert_allclose(probabilities, expected, rtol=0, atol=1e-5)


@every_network
def test_the_file_has_the_operators_and_the_format_of_onnxruntime_1_10(name: ModelName) -> None:
    """That release reads operators up to opset 15 and files up to IR version 8."""
    model = onnx.load_from_string(onnx_file(name))

    (operator_set,) = model.opset_import
    assert operator_set.domain == ""
    assert operator_set.version == OPSET
    assert OPSET <= 15
    assert model.ir_version <= 8


def test_an_export_that_fails_leaves_only_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")
    check_model = Mock(side_effect=onnx.checker.ValidationError("no good"))
    monkeypatch.setattr(onnx.checker, "check_model", check_model)

    with pytest.raises(onnx.checker.ValidationError, match="no good"):
        export_onnx(small_network("hlf"), small_spec("hlf"), path)

    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"old"
