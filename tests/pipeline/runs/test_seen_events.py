"""The search for events that a training has seen."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feature_datasets import write_dataset
from numpy.typing import NDArray

from hep_core.checked_parquet import read_parquet
from ingestion.same_events import STORED
from pipeline.runs.counters import IngestedPart
from pipeline.runs.event_keys import NO_KEYS, CopyKeys
from pipeline.runs.seen_events import _events_with_keys, count_seen_of_files


def ingest_parts(monkeypatch: pytest.MonkeyPatch, content: NDArray[np.uint64]) -> Any:
    """A version of `ingest` with parts of two events, whose contents are (num_parts, 2)."""
    parts = []
    for index, content_of_part in enumerate(content):
        stored = np.zeros(2, STORED)
        stored["content"] = content_of_part
        part = IngestedPart(sample="a", file_uuid="u", start=2 * index, name="a")
        parts.append((part, stored))
    monkeypatch.setattr("pipeline.runs.seen_events._stored_keys_of_parts", lambda _: parts)
    return None


def test_seen_events_are_named_by_their_entry_in_the_root_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = np.array([[5, 6], [0, 8], [9, 5]], np.uint64)
    ingested = ingest_parts(monkeypatch, content)
    wanted = NO_KEYS._replace(content=np.array([5, 8, 100], np.uint64))

    assert _events_with_keys(ingested, wanted) == ["u:0", "u:3", "u:5"]


def test_the_search_takes_no_longer_if_the_events_lie_in_many_ranges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new = np.zeros(200_000, STORED)
    random = np.random.default_rng(1)
    new["content"] = random.integers(1, 2**63, len(new))
    new["numbers"] = random.integers(1, 2**63, len(new))
    numbered = NO_KEYS.numbered._replace(events=new, files=np.zeros(len(new), np.int64))
    keys = CopyKeys(np.unique(new["content"]), numbered)
    seconds = []
    for num_parts in (2, 100):
        ingested = ingest_parts(monkeypatch, np.ones((num_parts, 2), np.uint64))
        start = time.process_time()
        _events_with_keys(ingested, keys)
        seconds.append(time.process_time() - start)

    # A sort of the new events for each range would make it 50.
    assert seconds[1] < 10 * seconds[0]


def test_counts_of_a_dataset_are_read_once(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [5, 3], "val": [4], "test": [6]})
    # All events of this dataset are of one ROOT file.
    (path, *_) = dataset.files("train")
    uuid = read_parquet(path, ["file_uuid"])["file_uuid"][0].as_py()

    assert count_seen_of_files(dataset, [uuid, uuid]) == 12
    shutil.rmtree(dataset.data / "train")
    assert count_seen_of_files(dataset, [uuid]) == 12
    assert count_seen_of_files(dataset, ["other"]) == 0
