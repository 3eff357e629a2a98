"""An exported file is run as it was exported, or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from networks import small_network, small_spec

from hep_core.integrity import DamagedOutputError
from models.errors import DamagedModelError, SavedModelError
from models.export.onnx_classifier import OneEventClassifier, OnnxClassifier
from models.export.onnx_export import export_one_event, export_onnx

NUM_EVENTS = 7


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    export_onnx(small_network("hlf"), small_spec("hlf"), path)
    return path


def probabilities(path: Path) -> np.ndarray:
    events = np.random.default_rng(seed=6).uniform(1, 50, (NUM_EVENTS, 14)).astype(np.float32)
    return OnnxClassifier.load(path).probabilities({"hlf": events})


def test_each_flipped_bit_is_refused_or_changes_nothing(exported: Path) -> None:
    file_bytes = exported.read_bytes()
    expected = probabilities(exported)
    rng = np.random.default_rng(seed=7)
    for position in rng.choice(len(file_bytes), 150, replace=False).tolist():
        damaged = bytearray(file_bytes)
        damaged[position] ^= 1 << int(rng.integers(8))
        exported.write_bytes(damaged)

        try:
            of_damaged = probabilities(exported)
        except SavedModelError:
            continue
        assert np.array_equal(of_damaged, expected), position


def test_a_changed_number_is_named_with_its_file(exported: Path) -> None:
    model = onnx.load(exported)
    weights = model.graph.initializer[0]
    changed = onnx.numpy_helper.to_array(weights) * 2
    weights.CopyFrom(onnx.numpy_helper.from_array(changed, weights.name))
    onnx.save(model, exported)

    message = r"model\.onnx is not what was written.*changed"
    with pytest.raises(DamagedModelError, match=message) as caught:
        OnnxClassifier.load(exported)

    # A run makes the file of such an error again.
    assert isinstance(caught.value, DamagedOutputError)
    assert caught.value.path == str(exported)


def test_a_file_that_is_read_and_written_unchanged_stays_valid(exported: Path) -> None:
    expected = probabilities(exported)

    onnx.save(onnx.load(exported), exported)

    assert np.array_equal(probabilities(exported), expected)


def test_the_form_for_one_event_is_sealed_too(tmp_path: Path) -> None:
    path = tmp_path / "one_event.onnx"
    export_one_event(small_network("hlf"), small_spec("hlf"), path)
    OneEventClassifier(path)
    file_bytes = bytearray(path.read_bytes())
    file_bytes[len(file_bytes) // 2] ^= 1
    path.write_bytes(file_bytes)

    with pytest.raises(SavedModelError, match=r"one_event\.onnx"):
        OneEventClassifier(path)
