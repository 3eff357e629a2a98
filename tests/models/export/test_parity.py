"""The check that an exported network gives the probabilities of the network itself."""

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


@pytest.fixture(scope="module")
def columns() -> Columns:
    """Events as in the features Parquet: GeV beside radians and flags, 0 to 801 particles."""
    rng = np.random.default_rng(1)
    num_events = 40
    num_features = len(hlf_names())
    magnitudes = np.geomspace(1e3, 1e-2, num_features)
    hlf = magnitudes * rng.exponential(1.0, (num_events, num_features))
    lengths = rng.integers(1, MAX_PARTICLES + 1, num_events)
    lengths[:2] = 0, MAX_PARTICLES
    labels = rng.integers(0, 3, num_events)
    return {
        "hlf": hlf.astype(np.float32),
        "particles": random_particles(rng, labels, lengths),
        "num_particles": lengths.astype(np.int32),
    }


def network_with_scalers(name: ModelName, columns: Columns) -> tuple[Classifier, ModelSpec]:
    """A network of the published size, with the scalers of the events."""
    lengths = columns["num_particles"]
    padded = columns["particles"].reshape(len(lengths), MAX_PARTICLES, NUM_PARTICLE_FEATURES)
    is_particle = np.arange(MAX_PARTICLES) < lengths[:, np.newaxis]
    rows_of_columns = {"hlf": columns["hlf"], "particles": padded[is_particle]}
    scalers = {}
    for column, rows in rows_of_columns.items():
        if column in NETWORKS[name].inputs:
            mean = rows.mean(axis=0)
            std = rows.std(axis=0)
            scalers[column] = Scaler(mean.tolist(), std.tolist())
    spec = ModelSpec(NETWORKS[name](), CLASSES, scalers)
    model = small_network(spec, dtype=torch.float32)
    return model, spec


@pytest.mark.parametrize("name", NAMES)
def test_changed_weights_are_noticed(tmp_path: Path, columns: Columns, name: ModelName) -> None:
    model, spec = network_with_scalers(name, columns)
    export_onnx(model, spec, tmp_path / "model.onnx")
    exported = OnnxClassifier.load(tmp_path / "model.onnx")
    *_, last_bias = model.parameters()
    with torch.no_grad():
        last_bias[0] += 1e-3

    difference = largest_difference(
        model, exported, columns, batch_sizes=(1, 3), particle_counts=(1, 5)
    )

    assert PARITY_TOLERANCE < difference < 1e-3


class RecordingNetwork:
    """Records its inputs, and answers as a network, except for an error in its second answer."""

    def __init__(self, model: Classifier, error: float) -> None:
        self.model = model
        self.error = error
        self.batches: list[Columns] = []

    def probabilities(self, columns: Columns) -> np.ndarray[Any, Any]:
        self.batches.append(columns)
        probabilities = self.model.probabilities(columns)
        if len(self.batches) == 2:
            probabilities[-1, 1] += self.error
        return probabilities


def sizes_of(batch: Columns) -> tuple[int, set[int]]:
    """Number of events, and their numbers of particles."""
    return len(batch["hlf"]), set(batch["num_particles"].tolist())


def test_every_batch_size_and_number_of_particles_is_tried(columns: Columns) -> None:
    model, _ = network_with_scalers("inclusive", columns)
    exported: Any = RecordingNetwork(model, 0.25)
    events = {name: values[2:5] for name, values in columns.items()}

    difference = largest_difference(
        model, exported, events, batch_sizes=(1, 7), particle_counts=(2, MAX_PARTICLES)
    )

    assert difference == pytest.approx(0.25, abs=1e-6)
    sizes = [sizes_of(batch) for batch in exported.batches]
    unchanged = sizes_of(events)
    counted = [(1, {2}), (7, {2}), (1, {MAX_PARTICLES}), (7, {MAX_PARTICLES})]
    # Then events with invalid features, with invalid particles, and no events.
    assert sizes == [*counted, unchanged, unchanged, (0, set())]
    # Seven events repeat the three, and each list its particles.
    batch_of_7 = exported.batches[3]
    lists = batch_of_7["particles"].reshape(7, MAX_PARTICLES, NUM_PARTICLE_FEATURES)
    for index, rows in enumerate(lists):
        length = events["num_particles"][index % 3]
        event = events["particles"][index % 3].reshape(MAX_PARTICLES, NUM_PARTICLE_FEATURES)
        repeated = np.resize(event[:length], rows.shape)
        assert np.array_equal(rows, repeated)
    batch_of_1 = exported.batches[0]
    rows_of_event = batch_of_1["particles"].reshape(MAX_PARTICLES, NUM_PARTICLE_FEATURES)
    assert not rows_of_event[2:].any()


def test_no_batch_has_more_rows_than_64_of_the_longest_events(columns: Columns) -> None:
    model, _ = network_with_scalers("inclusive", columns)
    exported: Any = RecordingNetwork(model, 0.0)
    events = {name: values[2:5] for name, values in columns.items()}

    largest_difference(
        model, exported, events, batch_sizes=(64, 65), particle_counts=(2, MAX_PARTICLES)
    )

    sizes = []
    for batch in exported.batches:
        most_particles = int(batch["num_particles"].max(initial=0))
        sizes.append((len(batch["hlf"]), most_particles))
    assert sizes[:3] == [(64, 2), (65, 2), (64, MAX_PARTICLES)]
    assert (65, MAX_PARTICLES) not in sizes


def test_a_probability_that_is_nan_is_no_parity(columns: Columns) -> None:
    model, _ = network_with_scalers("hlf", columns)
    exported: Any = RecordingNetwork(model, np.nan)

    difference = largest_difference(model, exported, columns, batch_sizes=(1, 2, 3))

    assert np.isnan(difference)


@pytest.mark.parametrize("name", ["hlf", "particles"])
def test_a_file_that_drops_nan_is_no_parity(columns: Columns, name: ModelName) -> None:
    """As onnxruntime's GRU does."""
    model, _ = network_with_scalers(name, columns)

    class DroppingNetwork:
        def probabilities(self, columns: Columns) -> np.ndarray[Any, Any]:
            probabilities = model.probabilities(columns)
            return np.nan_to_num(probabilities, nan=0.3)

    events = {column: values[:20] for column, values in columns.items()}
    exported: Any = DroppingNetwork()

    difference = largest_difference(
        model, exported, events, batch_sizes=(20,), particle_counts=(1,)
    )

    assert np.isnan(difference)
