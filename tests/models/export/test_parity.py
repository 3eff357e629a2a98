"""Whether exported networks give what the networks themselves give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from feature_datasets import CLASSES, random_particles
from networks import NAMES, small_network

from features.columns import MAX_PARTICLES, NUM_PARTICLE_FEATURES, hlf_names
from models.export.onnx_classifier import OnnxClassifier
from models.export.onnx_export import export_onnx
from models.export.parity import PARITY_TOLERANCE, largest_difference
from models.networks.classifier import Classifier
from models.networks.registry import NETWORKS, ModelName
from models.networks.scaling_layer import Scaler
from models.saved_model import ModelSpec

Columns = dict[str, np.ndarray[Any, Any]]
every_network = pytest.mark.parametrize("name", NAMES)


def physics(num_events: int) -> Columns:
    """Events as they lie in the features Parquet: hundreds of GeV beside radians and flags, 0 to 801 particles."""
    rng = np.random.default_rng(1)
    magnitudes = np.geomspace(1e3, 1e-2, len(hlf_names()))
    lengths = rng.integers(1, MAX_PARTICLES + 1, num_events)
    lengths[:2] = 0, MAX_PARTICLES
    return {
        "hlf": (magnitudes * rng.exponential(1.0, (num_events, len(hlf_names())))).astype(
            np.float32
        ),
        "particles": random_particles(rng, rng.integers(0, 3, num_events), lengths),
        "num_particles": lengths.astype(np.int32),
    }


def spec_for(name: ModelName, columns: Columns, **settings: Any) -> ModelSpec:
    """A spec of the published sizes, with the scalers that belong to these events."""
    valid = np.arange(MAX_PARTICLES) < columns["num_particles"][:, None]
    rows = {
        "hlf": columns["hlf"],
        "particles": columns["particles"].reshape(*valid.shape, -1)[valid],
    }
    scalers = {
        column: Scaler(values.mean(axis=0).tolist(), values.std(axis=0).tolist())
        for column, values in rows.items()
        if column in NETWORKS[name].inputs
    }
    return ModelSpec(NETWORKS[name](**settings), CLASSES, scalers)


def exported(model: Classifier, spec: ModelSpec, folder: Path) -> OnnxClassifier:
    export_onnx(model, spec, folder / "model.onnx")
    return OnnxClassifier.load(folder / "model.onnx")


@pytest.fixture(scope="module")
def columns() -> Columns:
    return physics(40)


@every_network
def test_changed_weights_are_noticed(tmp_path: Path, columns: Columns, name: ModelName) -> None:
    spec = spec_for(name, columns)
    model = small_network(spec, dtype=torch.float32)
    second = exported(model, spec, tmp_path)
    with torch.no_grad():
        list(model.parameters())[-1][0] += 1e-3
    difference = largest_difference(
        model, second, columns, batch_sizes=(1, 3), particle_counts=(1, 5)
    )
    assert PARITY_TOLERANCE < difference < 1e-3


class Recorder:
    """Stands for an exported network: notes what it is asked, and answers as the network does, but for one event."""

    def __init__(self, model: Classifier, wrong: float) -> None:
        self.model = model
        self.asked: list[Columns] = []
        self.wrong = wrong

    def probabilities(self, columns: Columns) -> np.ndarray[Any, Any]:
        self.asked.append(columns)
        actual = self.model.probabilities(columns)
        if len(self.asked) == 2:
            actual[-1, 1] += self.wrong
        return actual


def test_every_batch_size_and_number_of_particles_is_tried(columns: Columns) -> None:
    model = small_network(spec_for("inclusive", columns), dtype=torch.float32)
    recorder: Any = Recorder(model, 0.25)
    few = {name: values[2:5] for name, values in columns.items()}
    actual = largest_difference(
        model, recorder, few, batch_sizes=(1, 7), particle_counts=(2, MAX_PARTICLES)
    )
    assert actual == pytest.approx(0.25, abs=1e-6)
    shapes = [(len(asked["hlf"]), set(asked["num_particles"].tolist())) for asked in recorder.asked]
    own_value, few_counts = (3, set(few["num_particles"].tolist())), set()
    counted = [(1, {2}), (7, {2}), (1, {MAX_PARTICLES}), (7, {MAX_PARTICLES})]
    # Then the events with spoiled features and with spoiled particles, and none.
    assert shapes == [*counted, own_value, own_value, (0, few_counts)]
    lists = recorder.asked[3]["particles"].reshape(7, MAX_PARTICLES, NUM_PARTICLE_FEATURES)
    for event, rows in enumerate(lists):
        real = few["particles"][event % 3].reshape(MAX_PARTICLES, -1)[
            : few["num_particles"][event % 3]
        ]
        assert np.array_equal(rows, np.resize(real, rows.shape))
    assert not recorder.asked[0]["particles"].reshape(MAX_PARTICLES, -1)[2:].any()


def test_a_probability_that_is_no_number_is_no_parity(columns: Columns) -> None:
    model = small_network(spec_for("hlf", columns), dtype=torch.float32)
    recorder: Any = Recorder(model, np.nan)
    assert np.isnan(largest_difference(model, recorder, columns, batch_sizes=(1, 2, 3)))


@pytest.mark.parametrize("name", ["hlf", "particles"])
def test_a_file_that_drops_nan_is_no_parity(columns: Columns, name: ModelName) -> None:
    """As onnxruntime's GRU does."""
    model = small_network(spec_for(name, columns), dtype=torch.float32)

    class Dropping:
        def probabilities(self, columns: Columns) -> np.ndarray[Any, Any]:
            return np.nan_to_num(model.probabilities(columns), nan=0.3)

    few: Any = {column: values[:20] for column, values in columns.items()}
    dropping: Any = Dropping()
    assert np.isnan(
        largest_difference(model, dropping, few, batch_sizes=(20,), particle_counts=(1,))
    )
