"""An evaluation: predictions, numbers and figures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from feature_datasets import CLASSES, write_dataset
from networks import NAMES, made_network, made_spec

from models.errors import ModelError, UndefinedMetricError
from models.evaluate import evaluate, measure
from models.saved_model import save_model
from models.settings import ModelName
from models.style import PlotLabels

HISTORY = [{"epoch": epoch, "train_loss": 1 / (epoch + 1), "val_loss": abs(epoch - 2) + 0.5} for epoch in range(5)]
LABELS = PlotLabels("", "technical sample", 13)


def saved(folder: Path, name: ModelName = "hlf") -> Path:
    save_model(made_network(name, dtype=torch.float32), made_spec(name), folder)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_an_evaluation_writes_predictions_metrics_and_plots(tmp_path: Path, name: ModelName) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [20], "val": [5], "test": [60]})
    out = tmp_path / "out"
    out.mkdir()
    metrics = evaluate(saved(tmp_path / "model", name), dataset.files("test"), CLASSES, HISTORY, LABELS, out)
    assert metrics == json.loads((out / "metrics.json").read_text())
    assert metrics["num_events"] == pq.read_metadata(out / "predictions.parquet").num_rows == 60
    assert {path.name for path in (out / "plots").iterdir()} == {
        f"{plot}.{kind}" for plot in ("roc", "confusion", "scores", "learning_curve") for kind in ("png", "pdf")
    }


def test_an_evaluation_with_other_classes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="was trained for the classes"):
        evaluate(saved(tmp_path / "model"), [], ["ttbar", "QCD", "W+jets"], HISTORY, LABELS, tmp_path)


def test_a_test_split_without_a_class_is_said(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [20], "val": [5], "test": [2]})
    with pytest.raises(UndefinedMetricError):
        evaluate(saved(tmp_path / "model"), dataset.files("test"), CLASSES, HISTORY, LABELS, tmp_path)


def test_numbers_of_an_evaluation_honour_event_weights() -> None:
    scores = np.array([[0.8, 0.2], [0.4, 0.6], [0.3, 0.7], [0.6, 0.4]], dtype=np.float32)
    weights = [1.0, 3.0, 1.0, 5.0]
    table = pa.table({"label": [0, 0, 1, 1], "weight": weights, "probability": list(scores)})
    metrics = measure(table, ["a", "b"])
    assert metrics["accuracy"]["value"] == pytest.approx((1 + 1) / 10)
    assert metrics["confusion"]["by_truth"] == [pytest.approx([1 / 4, 3 / 4]), pytest.approx([5 / 6, 1 / 6])]
    pairs = 1 * 1 + 1 * 5 + 3 * 1  # signal 'a' above background 'b'
    assert metrics["auc"]["a"]["value"] == pytest.approx(pairs / (4 * 6))
