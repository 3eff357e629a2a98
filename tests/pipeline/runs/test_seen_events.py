"""The keys by which copies of training events are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipeline.runs.seen_events import distinct_keys


def test_keys_are_in_order_and_those_of_events_without_particles_are_no_keys(
    tmp_path: Path,
) -> None:
    assert distinct_keys(tmp_path).tolist() == []
    for name, keys in {"a": [7, 0, 3, 2**64 - 1], "b": [3, 0]}.items():
        np.save(tmp_path / f"{name}.npy", np.array(keys, np.uint64))
    assert distinct_keys(tmp_path).tolist() == [3, 7, 2**64 - 1]
