"""A run folder with a space, `#` or `?` in its path could not be read: to petastorm it is a URL without escapes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from feature_datasets import write_dataset

from training.readers.opening import open_reader


@pytest.mark.parametrize("name", ["a folder", "a#b", "a?b", "a%20b", "a\nb", "~", "file:"])
def test_a_dataset_below_a_folder_of_any_name_is_read(tmp_path: Path, name: str) -> None:
    dataset = write_dataset(tmp_path / name, rows={"train": [5], "val": [4], "test": [3]})
    reader = open_reader(dataset, ["hlf"], kind="petastorm", cache="none", dtype=torch.float32, seed=1)
    batches = reader.val_batches(rank=0, world_size=1)
    assert sum(map(len, batches)) == 4
