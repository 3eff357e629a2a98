"""`dataset.json` is read and checked; errors name it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from feature_datasets import write_dataset

from features.dataset import FeatureDataset
from features.errors import DatasetError


@pytest.mark.parametrize("key", ["classes", "splits", "version"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    dataset = write_dataset(tmp_path / "set", rows={"train": [5], "val": [4], "test": [3]})
    path = dataset.folder / "dataset.json"
    description = json.loads(path.read_text())
    del description[key]
    path.write_text(json.dumps(description))

    with pytest.raises(DatasetError, match=rf"dataset\.json.*{key}.*Make the features again"):
        FeatureDataset.load(dataset.folder)


@pytest.mark.parametrize("text", ["[]", "{", "null", '{"version": 3, "classes": []}'])
def test_a_file_that_is_no_dataset_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "dataset.json").write_text(text)

    with pytest.raises(DatasetError, match=r"dataset\.json.*Make the features again"):
        FeatureDataset.load(tmp_path)
