"""Networks as ONNX files, run by onnxruntime as others run them: without this project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    return onnxruntime.InferenceSession(
        onnx_file(name, **settings), providers=["CPUExecutionProvider"]
    )


def output(session: onnxruntime.InferenceSession, events: dict[str, Tensor]) -> np.ndarray:
    """Probabilities of events, of which the file is given what it asks for."""
    feeds = {
        model_input.name: events[model_input.name].numpy() for model_input in session.get_inputs()
    }
    return session.run(["probability"], feeds)[0]


@every_network
def test_inputs_and_output_have_names_types_and_free_lengths(name: ModelName) -> None:
    session = exported(name)
    expected = {
        "hlf": ("tensor(float)", ["batch", len(hlf_names())]),
        "particles": ("tensor(float)", ["batch", "num_rows", 19]),
        "num_particles": ("tensor(int64)", ["batch"]),
    }
    actual = {
        model_input.name: (model_input.type, model_input.shape)
        for model_input in session.get_inputs()
    }
    assert actual == {column: expected[column] for column in NETWORKS[name].inputs}
    assert [(output.name, output.type, output.shape) for output in session.get_outputs()] == [
        ("probability", "tensor(float)", ["batch", 3])
    ]


@every_network
def test_the_metadata_say_what_goes_in_and_comes_out(tmp_path: Path, name: ModelName) -> None:
    spec = small_spec(name)._replace(definitions={"jet_min_pt": 30.0}, reading={"tree": "Events"})
    export_onnx(small_network(spec), spec, tmp_path / "model.onnx", PROVENANCE)
    properties = {
        entry.key: entry.value for entry in onnx.load(tmp_path / "model.onnx").metadata_props
    }
    assert properties.pop("format_version") == str(FORMAT_VERSION)
    assert len(properties.pop("seal")) == 32
    assert properties.pop("run_id") == "train 0001-abcdef01 0123456789abcdef"
    document = {key: json.loads(value) for key, value in properties.items()}
    assert document == {
        "classes": CLASSES,
        "inputs": inputs_json(NETWORKS[name]().inputs),
        "settings": spec.settings.to_json(),
        "definitions": {"jet_min_pt": 30.0},
        "reading": {"tree": "Events"},
        "plugins": [],
        "code": {"train": "commit 1", "export": "commit 2"},
        "digests": {"features": "aa", "network": "bb"},
        "working_points": PROVENANCE.working_points,
    }
    assert list(document["inputs"]) == list(NETWORKS[name].inputs)
    names = {
        "hlf": list(hlf_names()),
        "particles": list(PARTICLE_FEATURE_NAMES),
        "num_particles": ["num_particles"],
    }
    assert {column: input_["names"] for column, input_ in document["inputs"].items()} == {
        column: names[column] for column in NETWORKS[name].inputs
    }


@pytest.mark.slow
@every_network
def test_the_same_model_gives_the_same_bytes_and_another_does_not(
    tmp_path: Path, name: ModelName
) -> None:
    contents = []
    for index, seed in enumerate([1, 1, 2]):
        path = tmp_path / str(index) / "model.onnx"
        path.parent.mkdir()
        export_onnx(small_network(name, seed=seed), small_spec(name), path)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1] != contents[2]
    assert str(tmp_path).encode() not in contents[0]


@every_network
def test_the_model_is_left_as_it_is_and_double_precision_becomes_single(
    tmp_path: Path, name: ModelName
) -> None:
    model = small_network(name, dtype=torch.float64).train()
    state_before = {key: value.clone() for key, value in model.state_dict().items()}
    export_onnx(model, small_spec(name), tmp_path / "model.onnx")
    assert model.training
    assert all(torch.equal(value, state_before[key]) for key, value in model.state_dict().items())
    assert {value.dtype for value in model.state_dict().values()} == {torch.float64}
    kinds = {tensor.data_type for tensor in onnx.load(tmp_path / "model.onnx").graph.initializer}
    assert onnx.TensorProto.FLOAT in kinds
    assert onnx.TensorProto.DOUBLE not in kinds
    session = onnxruntime.InferenceSession(
        tmp_path / "model.onnx", providers=["CPUExecutionProvider"]
    )
    events = random_events([3, 1], dtype=torch.float64)
    expected = torch.softmax(run(model.eval(), events), dim=1).detach().numpy()
    single = {
        column: value.float() if value.is_floating_point() else value
        for column, value in events.items()
    }
    np.testing.assert_allclose(output(session, single), expected, rtol=0, atol=1e-5)


@every_network
def test_the_file_has_the_operators_and_the_format_of_onnxruntime_1_10(name: ModelName) -> None:
    """That release reads operators up to opset 15 and files up to IR version 8."""
    model = onnx.load_from_string(onnx_file(name))
    assert [(operator_set.domain, operator_set.version) for operator_set in model.opset_import] == [
        ("", OPSET)
    ]
    assert (OPSET, model.ir_version) <= (15, 8)


def test_an_export_that_fails_leaves_the_file_of_before_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"before")
    refuse = onnx.checker.ValidationError("no good")

    def check_model(*_: Any, **__: Any) -> None:
        raise refuse

    monkeypatch.setattr(onnx.checker, "check_model", check_model)
    with pytest.raises(onnx.checker.ValidationError, match="no good"):
        export_onnx(small_network("hlf"), small_spec("hlf"), path)
    assert [each.name for each in tmp_path.iterdir()] == ["model.onnx"]
    assert path.read_bytes() == b"before"
