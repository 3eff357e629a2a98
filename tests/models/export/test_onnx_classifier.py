"""Exported networks, run by onnxruntime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from feature_datasets import CLASSES, made_particles
from networks import NAMES, made_network, made_spec, onnx_file

from features.columns import NUM_HLF, NUM_PARTICLE_FEATURES
from models.errors import InputError, SavedModelError
from models.export.metadata import FORMAT_VERSION
from models.export.onnx_classifier import OnnxClassifier
from models.export.onnx_export import export_one_event, export_onnx
from models.networks.registry import NETWORKS, ModelName

Columns = dict[str, np.ndarray[Any, Any]]
every_network = pytest.mark.parametrize("name", NAMES)


def columns_of(lengths: list[int]) -> Columns:
    """Events as they lie in the features Parquet."""
    rng = np.random.default_rng(1)
    particles = made_particles(rng, np.zeros(len(lengths), dtype=int), np.array(lengths, dtype=int))
    return {
        "hlf": rng.normal(100, 50, (len(lengths), NUM_HLF)).astype(np.float32),
        "particles": particles,
        "num_particles": np.array(lengths, dtype=np.int32),
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An exported network that takes all inputs."""
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_file("inclusive"))
    return path


def change_metadata(path: Path, **values: str | None) -> None:
    """Give entries other values, or take them away."""
    model = onnx.load(path)
    properties = {each.key: each.value for each in model.metadata_props} | values
    onnx.helper.set_model_props(model, {key: value for key, value in properties.items() if value is not None})
    onnx.save(model, path)


@every_network
def test_an_exported_network_gives_the_networks_probabilities(tmp_path: Path, name: ModelName) -> None:
    model = made_network(name, dtype=torch.float32)
    export_onnx(model, made_spec(name)._replace(definitions={"jet_min_pt": 30.0}), tmp_path / "model.onnx")
    exported = OnnxClassifier.load(tmp_path / "model.onnx")
    assert exported.inputs == NETWORKS[name].inputs
    assert exported.classes == CLASSES
    assert exported.settings == made_spec(name).settings
    assert exported.definitions == {"jet_min_pt": 30.0}
    columns = columns_of([3, 0, 801, 12])
    found = exported.probabilities(columns)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, model.probabilities(columns), rtol=0, atol=1e-5)


@every_network
def test_no_events_give_no_probabilities(tmp_path: Path, name: ModelName) -> None:
    (tmp_path / "model.onnx").write_bytes(onnx_file(name))
    found = OnnxClassifier.load(tmp_path / "model.onnx").probabilities(columns_of([]))
    assert (found.shape, found.dtype) == ((0, 3), np.float32)


def test_lists_are_cut_to_the_longest_event(path: Path) -> None:
    feeds = OnnxClassifier.load(path).prepare(columns_of([3, 7]))
    assert {name: (values.shape, values.dtype) for name, values in feeds.items()} == {
        "hlf": ((2, NUM_HLF), np.float32),
        "particles": ((2, 7, NUM_PARTICLE_FEATURES), np.float32),
        "num_particles": ((2,), np.int64),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_particles": np.array([802, 1])}, "num_particles goes from 0 to 802"),
        ({"hlf": np.zeros((2, 13), np.float32)}, r"hlf has events of shape \(13,\)"),
    ],
)
def test_columns_of_another_shape_are_refused(path: Path, change: Columns, message: str) -> None:
    with pytest.raises(InputError, match=message):
        OnnxClassifier.load(path).probabilities(columns_of([2, 3]) | change)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SavedModelError, match=r"model\.onnx cannot be read .*Give a model that was exported"):
        OnnxClassifier.load(tmp_path / "model.onnx")
    with pytest.raises(SavedModelError, match="cannot be read"):
        OnnxClassifier.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff\xfe\x00", b"{}", b"\x08\x08"])
def test_files_that_are_no_onnx_are_refused(path: Path, content: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    path.write_bytes(content)
    with pytest.raises(SavedModelError, match=r"model\.onnx cannot be run as an ONNX model .*Export the model again"):
        OnnxClassifier.load(path)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("share", [0.01, 0.3, 0.7, 0.95])
def test_files_that_were_cut_off_are_refused(path: Path, share: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(SavedModelError, match="Export the model again"):
        OnnxClassifier.load(path)


def test_files_of_others_are_refused(path: Path) -> None:
    change_metadata(path, format_version=None)
    with pytest.raises(SavedModelError, match="is an ONNX file of another project"):
        OnnxClassifier.load(path)


def test_another_version_is_refused(path: Path) -> None:
    change_metadata(path, format_version=str(FORMAT_VERSION + 1))
    with pytest.raises(SavedModelError, match=f"version {FORMAT_VERSION + 1}; this code reads {FORMAT_VERSION}"):
        OnnxClassifier.load(path)


@pytest.mark.parametrize("key", ["classes", "inputs", "settings", "definitions"])
@pytest.mark.parametrize("value", [None, "garbage"])
def test_damaged_metadata_are_refused(path: Path, key: str, value: str | None) -> None:
    change_metadata(path, **{key: value})
    with pytest.raises(SavedModelError, match="damaged metadata"):
        OnnxClassifier.load(path)


@pytest.mark.parametrize("settings", ['{"name": "other"}', '{"size": 5}', "5", "[]", '{"gru_width": 0}'])
def test_settings_that_are_none_are_refused(path: Path, settings: str) -> None:
    change_metadata(path, settings=settings)
    with pytest.raises(SavedModelError, match=r"damaged metadata|other features"):
        OnnxClassifier.load(path)


@pytest.mark.parametrize("column", ["hlf", "particles"])
@pytest.mark.parametrize("what", ["names", "units"])
def test_other_features_or_units_are_refused(path: Path, column: str, what: str) -> None:
    properties = {each.key: each.value for each in onnx.load(path).metadata_props}
    inputs = json.loads(properties["inputs"])
    inputs[column][what][0] = "something else"
    change_metadata(path, inputs=json.dumps(inputs))
    with pytest.raises(SavedModelError, match="other features than this code computes"):
        OnnxClassifier.load(path)


def test_metadata_of_another_network_are_refused(path: Path) -> None:
    change_metadata(path, **{each.key: each.value for each in onnx.load_from_string(onnx_file("hlf")).metadata_props})
    with pytest.raises(SavedModelError, match="but its metadata describe a network 'hlf'"):
        OnnxClassifier.load(path)


@pytest.mark.parametrize("classes", [["QCD", "ttbar"], 3, {"QCD": 0, "ttbar": 1, "W+jets": 2}])
def test_classes_that_do_not_fit_the_output_are_refused(path: Path, classes: Any) -> None:
    change_metadata(path, classes=json.dumps(classes))
    with pytest.raises(SavedModelError, match="with the classes"):
        OnnxClassifier.load(path)


@pytest.mark.parametrize("name", ["hlf", "particles", "inclusive"])
def test_a_file_for_one_event_is_refused_where_batches_are_needed(tmp_path: Path, name: ModelName) -> None:
    export_one_event(made_network(name), made_spec(name), tmp_path / "one_event.onnx")
    with pytest.raises(SavedModelError, match=r"one_event\.onnx takes one event a call\. Give `model\.onnx`"):
        OnnxClassifier.load(tmp_path / "one_event.onnx")
