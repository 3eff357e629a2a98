"""Petastorm's pool took itself for done while its other thread handed out the last file: a run ended as damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from feature_datasets import write_dataset

from training.errors import DamagedDatasetError
from training.readers.petastorm_source import PetastormSource


def end_early(monkeypatch: pytest.MonkeyPatch, calls: set[int]) -> None:
    """These calls for a result find the pool done."""
    # Behind the source, which makes petastorm importable.
    from petastorm.workers_pool import EmptyResultError
    from petastorm.workers_pool.thread_pool import ThreadPool

    wait, count = ThreadPool.get_results, iter(range(1000))

    def get_results(self: Any) -> Any:
        if next(count) in calls:
            raise EmptyResultError
        return wait(self)

    monkeypatch.setattr(ThreadPool, "get_results", get_results)


def test_all_row_groups_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [5, 6, 7, 8], "val": [1], "test": [1]})
    end_early(monkeypatch, {0, 3, 4})
    found = [len(columns["label"]) for columns in PetastormSource(dataset, ["label"]).row_groups("train", [2, 0, 3, 1])]
    assert found == [7, 5, 8, 6]


def test_a_file_that_never_comes_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [5, 6], "val": [1], "test": [1]})
    end_early(monkeypatch, set(range(1, 1000)))
    with pytest.raises(DamagedDatasetError, match="it has 0 rows"):
        list(PetastormSource(dataset, ["label"]).row_groups("train", [0, 1]))
