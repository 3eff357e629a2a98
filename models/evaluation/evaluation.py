"""Evaluates one or more models on the same events: predictions, numbers and figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from models.evaluation import figures as plots
from models.evaluation.boosted_trees import BoostedTrees
from models.evaluation.comparison_figures import plot_background_efficiency, plot_rejection
from models.evaluation.curves import EfficiencyCurve, background_curve, likelihood_ratio
from models.evaluation.measurements import Rates, ScoredEvents, importance, measure
from models.evaluation.metrics import roc_one_vs_rest
from models.evaluation.style import PlotLabels, save_figure
from models.prediction import Predictor, predict
from models.prediction_files import write_root

#: Highest number of events for the feature importance, which shuffles and predicts them 70 times.
_IMPORTANCE_EVENTS: Final = 20_000
ALL_BACKGROUNDS: Final = "all backgrounds"


class Candidate(NamedTuple):
    """A model to evaluate."""

    name: str
    """Letters, digits, `-` and `_`, since it is also the name of a folder."""
    model: Predictor
    history: Sequence[Mapping[str, Any]] = ()
    """Records of its training, one per epoch; empty if there are none."""


class EvaluationTask(NamedTuple):
    """What an evaluation computes."""

    classes: Sequence[str]
    signal: int
    """The class that working points keep."""
    working_points: Sequence[float]
    """Wanted signal efficiencies."""
    rates: Rates | None
    """Rates before the classifier; None if cross-sections are unknown."""
    labels: PlotLabels
    seed: int


class Predicted(NamedTuple):
    """Predictions of one model."""

    candidate: Candidate
    test: ScoredEvents
    train: ScoredEvents | None


def evaluate(
    candidates: Sequence[Candidate],
    test_files: Sequence[Path],
    train_files: Sequence[Path],
    task: EvaluationTask,
    out_dir: Path,
    *,
    train_events: int,
    on_progress: Callable[[int, int, str], None] | None = None,
) -> dict[str, Any]:
    """Evaluate models side by side.

    Writes `metrics.json`, `plots/*.png, *.pdf`, and in a folder of each model's name `predictions.parquet`,
    `predictions.root` and `plots/`.

    Args:
        candidates: The models, in the order of the report.
        test_files: Features Parquet files to evaluate on.
        train_files: Features Parquet files of the training split, to compare the scores with; may be empty.
        task: What to compute.
        out_dir: An existing folder.
        train_events: Highest number of training events to predict.
        on_progress: Called with the events predicted so far, their total, and what is predicted.

    Returns:
        The content of `metrics.json`.

    Raises:
        InputError: A model takes other features than the files hold.
        UndefinedMetricError: A class has no events, or its weights add up to 0 or less.
    """
    predicted = []
    runs: dict[str, Any] = {}
    num_each = _num_rows(test_files) + min(train_events, _num_rows(train_files))
    num_done = 0

    def show(words: str, events: int = 0) -> None:
        nonlocal num_done
        num_done += events
        if on_progress:
            on_progress(num_done, num_each * len(candidates), words)

    for candidate in candidates:
        folder = out_dir / candidate.name
        folder.mkdir()
        count = partial(show, f"predicting with {candidate.name}")
        predictions = predict(candidate.model, test_files, also=["hlf"], on_events=count)
        write_predictions(predictions, task.classes, folder)
        train = None
        if train_files:
            train = ScoredEvents.of(
                predict(candidate.model, train_files, also=["hlf"], at_most=train_events, on_events=count)
            )
        found = Predicted(candidate, ScoredEvents.of(predictions), train)
        show(f"measuring {candidate.name}")
        runs[candidate.name] = _measure(found, task)
        show(f"drawing {candidate.name}")
        _plot(found, runs[candidate.name], task, folder / "plots")
        predicted.append(found)
    metrics = {
        "classes": list(task.classes),
        "signal": task.classes[task.signal],
        "num_events": runs[candidates[0].name]["num_events"],
        "rates_before": task.rates.before() if task.rates else None,
        "runs": runs,
    }
    (out_dir / "metrics.json").write_text(json.dumps(metrics, indent=1), encoding="utf-8")
    show("drawing all")
    _plot_side_by_side(predicted, runs, task, out_dir / "plots")
    return metrics


def _num_rows(files: Sequence[Path]) -> int:
    return sum(pq.read_metadata(file).num_rows for file in files)


def write_predictions(predictions: pa.Table, classes: Sequence[str], folder: Path, *, has_truth: bool = True) -> None:
    """Write `predictions.parquet` and `predictions.root`, without the label if true classes are unknown."""
    kept = predictions.drop_columns(["hlf"] if has_truth else ["hlf", "label"])
    pq.write_table(kept, folder / "predictions.parquet", compression="zstd")
    write_root(kept, classes, folder / "predictions.root")


def boosted_trees(
    files: Sequence[Path], classes: Sequence[str], class_weights: Sequence[float], *, seed: int
) -> Candidate:
    """The reference: gradient-boosted trees on the high-level features, fitted to the training split."""
    table = pa.concat_tables([pq.read_table(file, columns=["hlf", "label", "weight"]) for file in files])
    labels = table["label"].to_numpy()
    weights = table["weight"].to_numpy().astype(np.float64) * np.asarray(class_weights)[labels]
    hlf = np.stack(table["hlf"].to_numpy())
    return Candidate("boosted-trees", BoostedTrees.fit(hlf, labels, weights, classes=list(classes), seed=seed))


def _measure(found: Predicted, task: EvaluationTask) -> dict[str, Any]:
    numbers = measure(
        found.test,
        found.train,
        task.classes,
        signal=task.signal,
        working_points=task.working_points,
        rates=task.rates,
    )
    if tuple(found.candidate.model.inputs) == ("hlf",):
        events = found.test.first(_IMPORTANCE_EVENTS)
        generator = np.random.default_rng(task.seed)
        numbers["importance"] = importance(found.candidate.model, events, signal=task.signal, generator=generator)
    return numbers


def _plot(found: Predicted, numbers: Mapping[str, Any], task: EvaluationTask, folder: Path) -> None:
    """Figures of one model."""
    test, classes, labels = found.test, task.classes, task.labels
    folder.mkdir()
    curves = {
        f"{name} vs rest (AUC {numbers['auc'][name]['value']:.3f} ± {numbers['auc'][name]['error']:.3f})": (
            roc_one_vs_rest(test.labels, test.probabilities[:, index], test.weights, signal=index)
        )
        for index, name in enumerate(classes)
    }
    figures = {
        "roc": plots.plot_roc(curves, labels),
        "confusion": plots.plot_confusion(np.array(numbers["confusion"]["by_truth"]), classes, labels),
        "scores": plots.plot_scores(test, found.train, numbers["train_against_test"], classes, labels),
        "calibration": plots.plot_calibration(numbers["calibration"], labels),
    }
    if task.working_points:
        signal, point = classes[task.signal], task.working_points[0]
        figures["efficiencies"] = plots.plot_efficiencies(numbers["efficiency_against"], signal, point, labels)
    if found.candidate.history:
        figures["learning_curve"] = plots.plot_learning_curve(found.candidate.history, labels)
    for name, figure in figures.items():
        save_figure(figure, folder / name)


def _plot_side_by_side(
    predicted: Sequence[Predicted], runs: Mapping[str, Any], task: EvaluationTask, folder: Path
) -> None:
    """Figures of all models together."""
    folder.mkdir()
    signal = task.classes[task.signal]
    curves: dict[str, dict[str, EfficiencyCurve]] = {ALL_BACKGROUNDS: {}}
    for candidate, test, _ in predicted:
        labels, scores, weights = test.labels, test.probabilities, test.weights
        curves[ALL_BACKGROUNDS][candidate.name] = background_curve(
            labels, scores[:, task.signal], weights, signal=task.signal
        )
        for index, name in enumerate(task.classes):
            if index != task.signal:
                ratio = likelihood_ratio(scores, signal=task.signal, background=index)
                curve = background_curve(labels, ratio, weights, signal=task.signal, background=[index])
                curves.setdefault(name, {})[candidate.name] = curve
    save_figure(plot_background_efficiency(curves, signal, task.labels), folder / "background_efficiency")
    save_figure(plot_rejection(curves, signal, task.labels), folder / "rejection")
    important = {name: each["importance"] for name, each in runs.items() if "importance" in each}
    if important:
        save_figure(plots.plot_importance(important, signal, task.labels), folder / "importance")
