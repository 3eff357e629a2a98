"""Predictions on features files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from feature_datasets import write_dataset
from networks import NAMES, small_network
from torch import Tensor

from features.columns import hlf_names
from features.dataset import FeatureDataset
from features.errors import DatasetError
from features.matrices import model_inputs
from models import prediction
from models.errors import ModelInputError
from models.networks.registry import ModelName
from models.prediction import inputs_of_rows, predict

every_network = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    return write_dataset(
        tmp_path_factory.mktemp("data") / "set", rows={"train": [20], "val": [5], "test": [30, 17]}
    )


@every_network
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_predictions_are_those_of_the_network_event_by_event(
    dataset: FeatureDataset, name: ModelName, dtype: torch.dtype
) -> None:
    model = small_network(name, dtype=dtype)
    events = pa.concat_tables([pq.read_table(file) for file in dataset.files("test")])
    inputs = model_inputs(events, ["hlf", "particles"])

    predictions = predict(model, dataset.files("test"), batch_size=8)

    assert predictions.num_rows == events.num_rows == 47
    for column in ("file_uuid", "entry", "label", "weight"):
        assert predictions[column].to_pylist() == events[column].to_pylist()
    for index, probabilities in enumerate(predictions["probability"].to_pylist()):
        length = events["num_particles"][index].as_py()
        event = {
            "hlf": torch.tensor(inputs["hlf"][None, index], dtype=dtype),
            "particles": torch.tensor(inputs["particles"][None, index, :length], dtype=dtype),
            "num_particles": torch.tensor([length]),
        }
        logits = model(*[event[column] for column in model.inputs])
        expected = torch.softmax(logits, dim=1)[0].tolist()
        assert probabilities == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_batches_are_no_larger_than_asked_and_cut_to_their_longest_event(
    dataset: FeatureDataset,
) -> None:
    model = small_network("particles", dtype=torch.float32)
    batch_sizes = []

    def record_batch(_: torch.nn.Module, inputs: tuple[Tensor, Tensor]) -> None:
        particles, num_particles = inputs
        assert particles.shape[1] == num_particles.max()
        batch_sizes.append(len(particles))

    model.register_forward_pre_hook(record_batch)
    predict(model, dataset.files("test"), batch_size=8)

    assert batch_sizes == [8, 8, 8, 6, 8, 8, 1]


@pytest.mark.parametrize(
    ("name", "most"), [("hlf", [30, 17]), ("particles", [8, 8, 8, 6, 8, 8, 1])]
)
def test_only_events_with_particle_lists_are_predicted_in_small_batches(
    dataset: FeatureDataset, monkeypatch: pytest.MonkeyPatch, name: ModelName, most: list[int]
) -> None:
    monkeypatch.setattr(prediction, "_BATCH_SIZE_PARTICLES", 8)
    batch_sizes: list[int] = []

    predict(small_network(name), dataset.files("test"), on_events=batch_sizes.append)

    assert batch_sizes == most


def test_inputs_of_rows_are_read_across_batches_and_files(
    dataset: FeatureDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "BATCH_SIZE", 8)
    model = small_network("inclusive")
    rows = np.array([0, 7, 8, 29, 30, 46])

    inputs = inputs_of_rows(model, dataset.files("test"), rows)

    events = pa.concat_tables([pq.read_table(file) for file in dataset.files("test")])
    expected = model_inputs(events.take(pa.array(rows)), model.inputs, max_particles=None)
    assert tuple(inputs) == model.inputs
    for name, values in inputs.items():
        np.testing.assert_array_equal(values, expected[name])


def test_the_network_is_put_into_evaluation_mode_and_gets_no_gradient(
    dataset: FeatureDataset,
) -> None:
    model = small_network("inclusive", dtype=torch.float32).train()

    predict(model, dataset.files("test"))

    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_features_that_are_not_finite_are_named(dataset: FeatureDataset) -> None:
    model = small_network("hlf", dtype=torch.float32)
    hlf = np.zeros((47, len(hlf_names())), np.float32)
    hlf[[3, 20], [1, 2]] = np.nan, np.inf

    message = r"gives 2 of 30 events no finite .* entry 28 of the input file \S+: its hlf are not"
    with pytest.raises(ModelInputError, match=message):
        predict(model, dataset.files("test"), instead={"hlf": hlf})


def test_a_model_without_finite_probabilities_is_called_damaged(dataset: FeatureDataset) -> None:
    """The index of the largest of three NaN is 0: the events would be of the first class."""
    model = small_network("hlf", dtype=torch.float32)
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    hlf = np.zeros((47, len(hlf_names())), np.float32)

    message = r"gives 30 of 30 events no .* entry 25 of .*: its features are finite, so the model"
    with pytest.raises(ModelInputError, match=message):
        predict(model, dataset.files("test"), instead={"hlf": hlf})


def test_no_events_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelInputError, match="no events to predict"):
        predict(small_network("hlf"), [])
    empty = write_dataset(tmp_path / "data", rows={"train": [5], "val": [5], "test": [0]})
    with pytest.raises(ModelInputError, match="no events to predict"):
        predict(small_network("hlf"), empty.files("test"))


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        (
            "mt",
            pa.array([1.0, None], pa.float32()),
            "column 'mt' of the features has 1 empty values",
        ),
        ("num_particles", pa.array([1, 802], pa.int32()), "differ from num_particles in length"),
        (
            "particle_pt",
            pa.array([[1.0] * 802, [1.0]], pa.list_(pa.float32())),
            "differ from num_particles in length",
        ),
    ],
)
def test_damaged_features_are_an_error(
    dataset: FeatureDataset, tmp_path: Path, column: str, values: pa.Array, message: str
) -> None:
    first_file, *_ = dataset.files("test")
    table = pq.read_table(first_file).slice(0, 2)
    index = table.schema.get_field_index(column)
    damaged = table.set_column(index, column, values)
    path = tmp_path / "a.parquet"
    pq.write_table(damaged, path)
    network = small_network("inclusive")

    with pytest.raises(DatasetError, match=message):
        predict(network, [path])


def test_features_of_earlier_code_are_an_error(tmp_path: Path) -> None:
    features = pa.table({"hlf": [[0.0] * len(hlf_names())]})
    pq.write_table(features, tmp_path / "a.parquet")

    with pytest.raises(
        ModelInputError, match=r"no column \[.*'entry', .*'ht'.* Make the features again"
    ):
        predict(small_network("hlf"), [tmp_path / "a.parquet"])
