"""The times of the networks of a search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feature_datasets import write_dataset

from training.gridsearch import latencies as module
from training.gridsearch.latencies import measure_latencies


def test_each_architecture_is_measured_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write_dataset(tmp_path / "set", rows={"train": [20], "val": [5], "test": [5]})
    measured: list[list[int]] = []
    measure_latency = module.measure_latency

    def measure_and_note(network: Any, columns: Any, **options: Any) -> Any:
        measured.append(network.settings.hidden)
        return measure_latency(network, columns, **options)

    monkeypatch.setattr(module, "measure_latency", measure_and_note)
    architectures = [(8, 4), (5,), (8, 4), (3, 3, 3), (5,)]

    latencies = measure_latencies(architectures, dataset, generator=np.random.default_rng(1))

    assert measured == [[3, 3, 3], [5], [8, 4]] * 5
    assert latencies.keys() == set(architectures)
    for latency in latencies.values():
        assert latency.value > 0
        assert latency.error >= 0
