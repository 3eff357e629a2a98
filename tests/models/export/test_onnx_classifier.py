"""Exported networks, run by onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from feature_datasets import CLASSES
from networks import NAMES, onnx_file, random_columns, small_network, small_spec

from models.errors import SavedModelError
from models.export.onnx_classifier import FORMAT_VERSION, OnnxClassifier, seal_onnx
from models.export.onnx_export import export_one_event, export_onnx
from models.networks.registry import NETWORKS, ModelName

Columns = dict[str, np.ndarray[Any, Any]]
every_network = pytest.mark.parametrize("name", NAMES)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An exported network that takes all inputs."""
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_file("inclusive"))
    return path


def change_metadata(path: Path, **values: str | None) -> None:
    """Give entries other values, or take them away, as if the file had been exported so."""
    model = onnx.load(path)
    properties = (
        {entry.key: entry.value for entry in model.metadata_props} | values | {"seal": None}
    )
    onnx.helper.set_model_props(
        model, {key: value for key, value in properties.items() if value is not None}
    )
    path.write_bytes(seal_onnx(model.SerializeToString()))


@every_network
def test_an_exported_network_gives_the_networks_probabilities(
    tmp_path: Path, name: ModelName
) -> None:
    model = small_network(name, dtype=torch.float32)
    export_onnx(
        model, small_spec(name)._replace(definitions={"jet_min_pt": 30.0}), tmp_path / "model.onnx"
    )
    exported = OnnxClassifier.load(tmp_path / "model.onnx")
    assert exported.inputs == NETWORKS[name].inputs
    assert exported.classes == CLASSES
    assert exported.settings == small_spec(name).settings
    assert exported.definitions == {"jet_min_pt": 30.0}
    columns = random_columns([3, 0, 801, 12])
    probabilities = exported.probabilities(columns)
    assert probabilities.dtype == np.float32
    np.testing.assert_allclose(probabilities, model.probabilities(columns), rtol=0, atol=1e-5)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SavedModelError, match=r"model\.onnx cannot be read .*Give a model that was exported"
    ):
        OnnxClassifier.load(tmp_path / "model.onnx")


@pytest.mark.parametrize("share", [0, 0.01, 0.3, 0.7, 0.95])
def test_files_that_are_no_onnx_are_refused(
    path: Path, share: float, capfd: pytest.CaptureFixture[str]
) -> None:
    file_bytes = path.read_bytes()
    path.write_bytes(file_bytes[: int(share * len(file_bytes))])
    with pytest.raises(
        SavedModelError, match=r"model\.onnx c.* Export the model again|another project"
    ):
        OnnxClassifier.load(path)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format_version", None, "is an ONNX file of another project"),
        (
            "format_version",
            str(FORMAT_VERSION + 1),
            f"version {FORMAT_VERSION + 1}; this code reads {FORMAT_VERSION}",
        ),
        *(
            (key, None, "damaged metadata")
            for key in ("classes", "inputs", "settings", "definitions")
        ),
        ("classes", "garbage", "damaged metadata"),
        ("settings", '{"name": "other"}', "the network 'other'"),
        ("inputs", "{}", "other features than this code computes"),
    ],
)
def test_metadata_of_other_code_are_refused(
    path: Path, key: str, value: str | None, message: str
) -> None:
    change_metadata(path, **{key: value})
    with pytest.raises(SavedModelError, match=message):
        OnnxClassifier.load(path)


@pytest.mark.parametrize("name", ["hlf", "particles", "inclusive"])
def test_a_file_for_one_event_is_refused_where_batches_are_needed(
    tmp_path: Path, name: ModelName
) -> None:
    export_one_event(small_network(name), small_spec(name), tmp_path / "one_event.onnx")
    with pytest.raises(
        SavedModelError, match=r"one_event\.onnx takes one event a call\. Give `model\.onnx`"
    ):
        OnnxClassifier.load(tmp_path / "one_event.onnx")
