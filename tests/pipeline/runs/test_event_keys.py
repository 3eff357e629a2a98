"""The keys by which copies of training events are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ingestion.same_events import STORED
from pipeline.runs.event_keys import read_event_keys


def test_keys_are_in_order_and_those_of_events_without_particles_are_no_keys(
    tmp_path: Path,
) -> None:
    assert read_event_keys(tmp_path).content.tolist() == []
    for name, keys in {"a": [7, 0, 3, 2**64 - 1], "b": [3, 0]}.items():
        np.save(tmp_path / f"{name}-000000000.npy", np.array(keys, np.uint64))

    keys_of_folder = read_event_keys(tmp_path)

    assert keys_of_folder.content.tolist() == [3, 7, 2**64 - 1]
    assert len(keys_of_folder.numbered.events) == 0


def test_ranges_of_a_root_file_are_one_file_of_numbered_events(tmp_path: Path) -> None:
    for index, name in enumerate(["a-b-000000000", "a-b-000000002", "c-000000000"]):
        stored = np.zeros(2, STORED)
        stored["numbers"] = [10 * index, 10 * index + 1]
        np.save(tmp_path / f"{name}.npy", stored)

    numbered = read_event_keys(tmp_path).numbered

    # The number 0 is that of an event without numbers.
    assert numbered.events["numbers"].tolist() == [1, 10, 11, 20, 21]
    assert numbered.files.tolist() == [0, 0, 0, 1, 1]
