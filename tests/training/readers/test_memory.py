"""Rows of a whole split in memory, in the order of the readers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from particle_datasets import write_particle_dataset

from features.columns import hlf_names
from features.dataset import FeatureDataset
from training.readers.memory import MemoryRows
from training.readers.reader import open_reader

ROWS = {"train": [11, 11, 11, 11, 5], "val": [7, 3], "test": [4]}
INPUTS = ("hlf", "particles", "num_particles")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    return write_particle_dataset(tmp_path_factory.mktemp("rows") / "data", rows=ROWS)


def test_the_tensors_hold_the_split_in_order(dataset: FeatureDataset) -> None:
    memory = MemoryRows.load(dataset, "val", INPUTS)
    rows = memory.rows
    batches = list(open_reader(dataset, INPUTS, seed=1).val_batches(rank=0, world_size=1))
    assert len(memory) == 10
    assert [tuple(column.shape) for column in rows.inputs] == [(10, len(hlf_names())), (10, 801, 19), (10,)]
    assert torch.equal(rows.inputs[0], torch.cat([batch.inputs[0] for batch in batches]))
    assert torch.equal(rows.labels, torch.cat([batch.labels for batch in batches]))
    assert torch.equal(rows.weights, torch.cat([batch.weights for batch in batches]))
    assert rows.weights.dtype == torch.float32


def test_they_lie_on_the_device(dataset: FeatureDataset, tmp_path: Path) -> None:
    rows = MemoryRows.load(dataset, "train", INPUTS, device="meta").rows
    assert rows.batch(np.array([3, 1])).inputs[0].shape == (2, len(hlf_names()))
    assert {column.device.type for column in (*rows.inputs, rows.labels, rows.weights)} == {"meta"}
