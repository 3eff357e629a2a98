"""The time of one event through each network of a search."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from feature_datasets import write_dataset

from features.dataset import FeatureDataset
from models.export.onnx_classifier import OnnxClassifier
from training.gridsearch import results
from training.gridsearch.results import latencies


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    return write_dataset(tmp_path_factory.mktemp("data") / "set", rows={"train": [20], "val": [5], "test": [5]})


def test_each_architecture_is_measured_in_turn(dataset: FeatureDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[list[int]] = []
    measure = results.measure_latency

    def noted(exported: OnnxClassifier, columns: Any, **chosen: Any) -> Any:
        measured.append(vars(exported.settings)["hidden"])
        assert exported.classes == dataset.classes
        return measure(exported, columns, **chosen)

    monkeypatch.setattr(results, "measure_latency", noted)
    asked = [(8, 4), (5,), (8, 4), (3, 3, 3), (5,)]
    found = latencies(iter(asked), dataset, generator=np.random.default_rng(1))
    # In turns.
    assert measured == [[3, 3, 3], [5], [8, 4]] * 5
    assert found.keys() == set(asked)
    assert all(each.value > 0 and each.error >= 0 for each in found.values())
