"""One evaluation: predictions, numbers and figures of a model on a set of events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from models.errors import ModelError
from models.metrics import accuracy, auc_one_vs_rest, confusion_matrix, effective_size, roc_one_vs_rest
from models.plots import plot_confusion, plot_learning_curve, plot_roc, plot_scores
from models.predict import predict
from models.saved_model import load_model
from models.style import PlotLabels, save_figure


def evaluate(
    model_dir: Path,
    files: Sequence[Path],
    classes: Sequence[str],
    history: Sequence[dict[str, Any]],
    labels: PlotLabels,
    out_dir: Path,
) -> dict[str, Any]:
    """Evaluate a model; writes `predictions.parquet`, `metrics.json` and `plots/*.png, *.pdf`.

    Args:
        model_dir: Folder of the model.
        files: Features Parquet files of the events to evaluate on.
        classes: Names of the classes that the labels in the files mean.
        history: Metrics records of the training epochs, for the learning curve.
        labels: Words on the plots.
        out_dir: An existing folder.

    Returns:
        The content of `metrics.json`.

    Raises:
        SavedModelError: The model is damaged.
        ModelError: The model was made for other classes.
        UndefinedMetricError: A class has no events.
    """
    model, spec = load_model(model_dir)
    if list(classes) != spec.classes:
        raise ModelError(
            f"{model_dir} was trained for the classes {spec.classes}, the events have {list(classes)}. Train again."
        )
    predictions = predict(model, files)
    pq.write_table(predictions, out_dir / "predictions.parquet", compression="zstd")
    metrics = measure(predictions, classes)
    (out_dir / "metrics.json").write_text(json.dumps(metrics, indent=1), encoding="utf-8")
    _plot(predictions, metrics, classes, history, labels, out_dir / "plots")
    return metrics


def measure(predictions: pa.Table, classes: Sequence[str]) -> dict[str, Any]:
    """All numbers of an evaluation, ready for JSON; class weights do not enter, event weights do."""
    truth, scores, weights = _arrays(predictions)
    return {
        "num_events": predictions.num_rows,
        "num_events_effective": effective_size(weights),
        "events_per_class": dict(zip(classes, np.bincount(truth, minlength=len(classes)).tolist(), strict=True)),
        "accuracy": accuracy(truth, scores, weights)._asdict(),
        "auc": {
            name: auc_one_vs_rest(truth, scores[:, index], weights, signal=index)._asdict()
            for index, name in enumerate(classes)
        },
        "confusion": {
            "classes": list(classes),
            "by_truth": confusion_matrix(truth, scores, weights).tolist(),
        },
    }


def _plot(
    predictions: pa.Table,
    metrics: dict[str, Any],
    classes: Sequence[str],
    history: Sequence[dict[str, Any]],
    labels: PlotLabels,
    folder: Path,
) -> None:
    truth, scores, weights = _arrays(predictions)
    curves = {
        f"{name} vs rest (AUC {metrics['auc'][name]['value']:.3f} ± {metrics['auc'][name]['error']:.3f})": (
            roc_one_vs_rest(truth, scores[:, index], weights, signal=index)
        )
        for index, name in enumerate(classes)
    }
    folder.mkdir()
    save_figure(plot_roc(curves, labels), folder / "roc")
    save_figure(plot_confusion(np.array(metrics["confusion"]["by_truth"]), classes, labels), folder / "confusion")
    save_figure(plot_scores(truth, scores, weights, classes, labels), folder / "scores")
    save_figure(plot_learning_curve(history, labels), folder / "learning_curve")


def _arrays(predictions: pa.Table) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Truth (num_events,), probabilities (num_events, num_classes) and weights (num_events,)."""
    scores = np.stack(predictions["probability"].to_numpy()).astype(np.float64)
    return predictions["label"].to_numpy(), scores, predictions["weight"].to_numpy().astype(np.float64)
