"""An evaluation of all networks, boosted trees and an exported network, on separable classes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from feature_datasets import CLASSES, write_dataset
from matplotlib.figure import Figure
from networks import NAMES, small_network, small_spec

from features.dataset import FeatureDataset
from models.evaluation.boosted_trees import boosted_trees
from models.evaluation.bootstrap import Estimate
from models.evaluation.evaluation import evaluate
from models.evaluation.evaluation_task import EvaluationTask
from models.evaluation.rates import Rates
from models.evaluation.scored_events import within_classes
from models.evaluation.style import PlotLabels, save_figure
from models.export.onnx_classifier import OnnxClassifier
from models.export.onnx_export import export_onnx
from models.prediction import Candidate
from models.prediction_files import probability_branches
from models.saved_model import model_spec

HISTORY = [
    {"epoch": epoch, "train_loss": 1 / (epoch + 1), "val_loss": abs(epoch - 2) + 0.5}
    for epoch in range(5)
]
RATES = {"QCD": 4000.0, "ttbar": 10.0, "W+jets": 300.0}
TASK = EvaluationTask(
    CLASSES,
    [1],
    [0.5, 0.99],
    Rates(
        {name: Estimate(rate, 0.1 * rate) for name, rate in RATES.items()},
        {name: CLASSES.index(name) for name in RATES},
    ),
    PlotLabels("", "technical sample", 13),
    seed=3,
)
#: The only feature that differs between the classes.
SEPARATING_FEATURE = "met"
WITH_HISTORY = ("hlf", "particles")


class Predictions(NamedTuple):
    """Predictions as they were written."""

    labels: np.ndarray
    probabilities: np.ndarray
    weights: np.ndarray
    """Within classes."""


class Evaluated(NamedTuple):
    """An evaluation of all candidates."""

    dataset: FeatureDataset
    candidates: list[Candidate]
    metrics: dict[str, Any]
    folder: Path
    progress: list[tuple[int, int, str]]

    def candidate(self, name: str) -> Candidate:
        return next(candidate for candidate in self.candidates if candidate.name == name)

    def predictions(self, name: str) -> Predictions:
        table = pq.read_table(self.folder / name / "predictions.parquet")
        labels = table["label"].to_numpy()
        columns = [table[branch].to_numpy() for branch in probability_branches(CLASSES)]
        weights = within_classes(labels, table["weight"].to_numpy())
        return Predictions(labels, np.stack(columns, axis=1).astype(float), weights)


def separable_dataset(folder: Path) -> FeatureDataset:
    """Events whose classes differ in one high-level feature."""
    rows = {"train": [90, 60], "val": [5], "test": [150, 100]}
    dataset = write_dataset(folder, rows=rows, separation=0.0, class_weights=(3.0, 1.0, 0.5))
    for file in [*dataset.files("train"), *dataset.files("test")]:
        table = pq.read_table(file)
        labels = table["label"].to_numpy().astype(np.float32)
        shift = np.float32(25) * labels
        shifted = table[SEPARATING_FEATURE].to_numpy() + shift
        column = table.schema.get_field_index(SEPARATING_FEATURE)
        separable = table.set_column(column, SEPARATING_FEATURE, pa.array(shifted))
        pq.write_table(separable, file)
    return dataset


def all_candidates(dataset: FeatureDataset, folder: Path) -> list[Candidate]:
    """All networks, boosted trees, and an exported network.

    The networks scale as fits the events. Otherwise most scores would differ in rounding alone.
    """
    candidates = []
    for name in NAMES:
        spec = model_spec(small_spec(name).settings, dataset)
        history = HISTORY if name in WITH_HISTORY else []
        candidates.append(Candidate(name, small_network(spec, dtype=torch.float32), history))
    candidates.append(boosted_trees(dataset.files("train"), CLASSES, dataset.class_weights, seed=1))
    hlf_spec = model_spec(small_spec("hlf").settings, dataset)
    path = folder / "exported.onnx"
    export_onnx(small_network(hlf_spec, dtype=torch.float32), hlf_spec, path)
    candidates.append(Candidate("exported", OnnxClassifier.load(path)))
    return candidates


def save_exported_only(figure: Figure, stem: Path) -> None:
    """Draw the figures of one model; those of the others stay empty, since drawing takes long."""
    if stem.parent.parent.name == "exported":
        save_figure(figure, stem)
        return
    for suffix in (".png", ".pdf"):
        stem.with_suffix(suffix).touch()


def evaluate_again(
    evaluated: Evaluated, out_dir: Path, candidates: Sequence[Candidate], **changes: Any
) -> dict[str, Any]:
    """Evaluate some models without training events."""
    out_dir.mkdir(exist_ok=True)
    settings: dict[str, Any] = {"task": TASK, **changes}
    return evaluate(
        candidates,
        evaluated.dataset.files("test"),
        train_files=[],
        out_dir=out_dir,
        train_events=5,
        **settings,
    )


def read_strict_json(path: Path) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
