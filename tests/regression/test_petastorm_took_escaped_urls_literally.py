"""A run folder with a space in its path could not be read: petastorm takes `%20` in a URL literally."""

from __future__ import annotations

from pathlib import Path

import torch
from feature_datasets import write_dataset

from training.readers.opening import open_reader


def test_a_dataset_below_a_folder_with_a_space_is_read(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "a folder", rows={"train": [5], "val": [4], "test": [3]})
    reader = open_reader(dataset, ["hlf"], kind="petastorm", cache="none", dtype=torch.float32, seed=1)
    batches = reader.val_batches(rank=0, world_size=1)
    assert sum(map(len, batches)) == 4
