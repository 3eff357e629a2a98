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
    rng, num_events = np.random.default_rng(1), 40
    magnitudes = np.geomspace(1e3, 1e-2, len(hlf_names()))
    hlf = magnitudes * rng.exponential(1.0, (num_events, len(hlf_names())))
    lengths = rng.integers(1, MAX_PARTICLES + 1, num_events)
    lengths[:2] = 0, MAX_PARTICLES
    return {
        "hlf": hlf.astype(np.float32),
        "particles": random_particles(rng, rng.integers(0, 3, num_events), lengths),
        "num_particles": lengths.astype(np.int32),
    }


def network_with_scalers(name: ModelName, columns: Columns) -> tuple[Classifier, ModelSpec]:
    """A network of the published size, with the scalers of the events."""
    is_particle = np.arange(MAX_PARTICLES) < columns["num_particles"][:, None]
    particles = columns["particles"].reshape(*is_particle.shape, -1)[is_particle]
    scalers = {}
    for column, rows in {"hlf": columns["hlf"], "particles": particles}.items():
        if column in NETWORKS[name].inputs:
            scalers[column] = Scaler(rows.mean(axis=0).tolist(), rows.std(axis=0).tolist())
    spec = ModelSpec(NETWORKS[name](), CLASSES, scalers)
    return small_network(spec, dtype=torch.float32), spec


@pytest.mark.parametrize("name", NAMES)
def test_changed_weights_are_noticed(tmp_path: Path, columns: Columns, name: ModelName) -> None:
    model, spec = network_with_scalers(name, columns)
    export_onnx(model, spec, tmp_path / "model.onnx")
    exported = OnnxClassifier.load(tmp_path / "model.onnx")
    with torch.no_grad():
        list(model.parameters())[-1][0] += 1e-3

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


def test_every_batch_size_and_number_of_particles_is_tried(columns: Columns) -> None:
    model, _ = network_with_scalers("inclusive", columns)
    exported: Any = RecordingNetwork(model, 0.25)
    events = {name: values[2:5] for name, values in columns.items()}

    difference = largest_difference(
        model, exported, events, batch_sizes=(1, 7), particle_counts=(2, MAX_PARTICLES)
    )

    assert difference == pytest.approx(0.25, abs=1e-6)
    sizes = [
        (len(batch["hlf"]), set(batch["num_particles"].tolist())) for batch in exported.batches
    ]
    unchanged = (3, set(events["num_particles"].tolist()))
    counted = [(1, {2}), (7, {2}), (1, {MAX_PARTICLES}), (7, {MAX_PARTICLES})]
    # Then events with invalid features, with invalid particles, and no events.
    assert sizes == [*counted, unchanged, unchanged, (0, set())]
    lists = exported.batches[3]["particles"].reshape(7, MAX_PARTICLES, NUM_PARTICLE_FEATURES)
    for index, rows in enumerate(lists):
        length = events["num_particles"][index % 3]
        particles = events["particles"][index % 3].reshape(MAX_PARTICLES, -1)[:length]
        assert np.array_equal(rows, np.resize(particles, rows.shape))
    assert not exported.batches[0]["particles"].reshape(MAX_PARTICLES, -1)[2:].any()


def test_no_batch_has_more_rows_than_64_of_the_longest_events(columns: Columns) -> None:
    model, _ = network_with_scalers("inclusive", columns)
    exported: Any = RecordingNetwork(model, 0.0)
    events = {name: values[2:5] for name, values in columns.items()}

    largest_difference(
        model, exported, events, batch_sizes=(64, 65), particle_counts=(2, MAX_PARTICLES)
    )

    sizes = [
        (len(batch["hlf"]), int(batch["num_particles"].max(initial=0)))
        for batch in exported.batches
    ]
    assert sizes[:3] == [(64, 2), (65, 2), (64, MAX_PARTICLES)]
    assert (65, MAX_PARTICLES) not in sizes


def test_a_probability_that_is_nan_is_no_parity(columns: Columns) -> None:
    model, _ = network_with_scalers("hlf", columns)
    exported: Any = RecordingNetwork(model, np.nan)

    assert np.isnan(largest_difference(model, exported, columns, batch_sizes=(1, 2, 3)))


@pytest.mark.parametrize("name", ["hlf", "particles"])
def test_a_file_that_drops_nan_is_no_parity(columns: Columns, name: ModelName) -> None:
    """As onnxruntime's GRU does."""
    model, _ = network_with_scalers(name, columns)

    class DroppingNetwork:
        def probabilities(self, columns: Columns) -> np.ndarray[Any, Any]:
            return np.nan_to_num(model.probabilities(columns), nan=0.3)

    events = {column: values[:20] for column, values in columns.items()}
    exported: Any = DroppingNetwork()

    difference = largest_difference(
        model, exported, events, batch_sizes=(20,), particle_counts=(1,)
    )

    assert np.isnan(difference)
