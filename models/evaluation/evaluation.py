"""Evaluates one or more models on the same events: predictions, numbers and figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from features.schema import OTHER_WEIGHTS
from hep_core.checked_parquet import num_rows, read_parquet
from models.errors import UndefinedMetricError
from models.evaluation import figures as plots
from models.evaluation.bootstrap import estimate
from models.evaluation.curves import EfficiencyCurve
from models.evaluation.data_comparison import (
    DataEvents,
    ScoreAxis,
    data_labels,
    overlays,
    plot_overlays,
)
from models.evaluation.importance import chosen_events, importance, num_predicted
from models.evaluation.intervals import Floats
from models.evaluation.measurements import (
    ALL_BACKGROUNDS,
    EvaluationTask,
    expected_events,
    measurable,
    measure,
    only_finite,
    replicas_of,
)
from models.evaluation.own_figures import OWN_FIGURES
from models.evaluation.scored_events import ScoredEvents, mixing_factors
from models.evaluation.style import Save, saving_in_processes
from models.evaluation.variations import Varied, envelope, variations, with_weights
from models.prediction import Candidate, inputs_of, predict, rows_of
from models.prediction_files import write_parquet, write_root


class Predicted(NamedTuple):
    """Predictions of one model."""

    candidate: Candidate
    test: ScoredEvents
    """All test events."""
    counted: ScoredEvents
    """Those of the classes that can be measured."""
    numbers: dict[str, Any]
    curves: dict[str, EfficiencyCurve]
    """Background efficiencies by name of the background."""
    area: Floats
    """(1 + num_replicas,) area under the curve against the mixture."""


def evaluate(
    candidates: Sequence[Candidate],
    test_files: Sequence[Path],
    train_files: Sequence[Path],
    task: EvaluationTask,
    out_dir: Path,
    *,
    train_events: int,
    on_progress: Callable[[int, int, str], None] | None = None,
    shifted: Mapping[str, NDArray[np.float32]] | None = None,
    data: Mapping[str, DataEvents] | None = None,
) -> dict[str, Any]:
    """Evaluate models side by side; returns the content of `metrics.json`.

    Writes `metrics.json`, `curves.json`, `working_points.json`, `plots/*.png, *.pdf`, and in a folder of each model's
    name `predictions.parquet`, `predictions.root` and `plots/`.

    Args:
        candidates: The models, in the order of the report.
        test_files: Features Parquet files to evaluate on.
        train_files: Features Parquet files of the training split, to compare the scores with; may be empty.
        task: What to compute.
        out_dir: An existing folder.
        train_events: Highest number of training events to predict.
        on_progress: Called with the events predicted so far, their total, and what is predicted.
        shifted: By name of a systematic uncertainty, the shifted high-level features of all test events, (num_events,
            NUM_HLF), NaN for an event that the selection then rejects.
        data: By name of a model, the selected events of data without labels, with its probabilities.
    """
    predicted: list[Predicted] = []
    labels = np.concatenate(
        [read_parquet(file, ["label"])["label"].to_numpy() for file in test_files]
    )
    num_train = sum(map(num_rows, train_files))
    num_each = len(labels) + min(train_events, num_train)
    num_all = sum(
        num_each + len(each.further) * len(labels) + num_predicted(each.model.inputs, labels)
        for each in candidates
    )
    num_done = 0

    def show(words: str, events: int = 0) -> None:
        nonlocal num_done
        num_done += events
        if on_progress:
            on_progress(num_done, num_all, words)

    replicas = None
    unmeasured: list[str] = []
    with saving_in_processes() as save:
        for candidate in candidates:
            folder = out_dir / candidate.name
            folder.mkdir()
            count = partial(show, f"predicting with {candidate.name}")
            predictions = predict(candidate.model, test_files, also=["hlf"], on_events=count)
            for write, name in (
                (write_parquet, "predictions.parquet"),
                (write_root, "predictions.root"),
            ):
                write(predictions.drop_columns(["hlf"]), task.classes, folder / name)
            train = None
            if train_files:
                table = predict(
                    candidate.model,
                    train_files,
                    also=["hlf"],
                    at_most=train_events,
                    on_events=count,
                )
                train = task.scored(table)
            show(f"measuring {candidate.name}")
            test = task.scored(predictions)
            counted, task, sentences = measurable(test, task)
            replicas = replicas or replicas_of(counted, task)
            found = Predicted(candidate, test, counted, *measure(counted, train, replicas, task))
            found.numbers["num_events"] = len(test.labels)
            unmeasured += [sentence for sentence in sentences if sentence not in unmeasured]
            found.numbers["not_measurable"] = [*unmeasured, *found.numbers["not_measurable"]]
            count = partial(show, f"shuffling inputs of {candidate.name}")
            found.numbers.update(_importance(found, test_files, task, count))
            count = partial(show, f"predicting with other trainings of {candidate.name}")
            found.numbers.update(_trainings(found, test_files, task, count))
            found.numbers.update(_variations(found, predictions, shifted or {}, test_files, task))
            show(f"drawing {candidate.name}")
            _plot(found, train, task, folder / "plots", save)
            predicted.append(found)
        if data:
            _add_data(predicted, data, task, out_dir, save)
        metrics = only_finite(_metrics(predicted, task))
        (out_dir / "metrics.json").write_text(
            json.dumps(metrics, indent=1, allow_nan=False), encoding="utf-8"
        )
        (out_dir / "curves.json").write_text(
            json.dumps(only_finite(_curves(predicted)), allow_nan=False), encoding="utf-8"
        )
        (out_dir / "working_points.json").write_text(
            json.dumps(_decisions(metrics), indent=1), encoding="utf-8"
        )
        show("drawing all")
        _plot_side_by_side(predicted, metrics, task, out_dir / "plots", save)
    return metrics


def _metrics(predicted: Sequence[Predicted], task: EvaluationTask) -> dict[str, Any]:
    best = max(predicted, key=lambda each: each.area[0])
    rates = task.rates_of_measured
    before = rates.of_classes(task.classes) if rates else None
    return {
        "classes": list(task.classes),
        "signal": task.signal.words,
        "signals": {task.classes[label]: each for label, each in task.signal.fractions.items()},
        "mixture": {
            "fractions": {
                task.classes[label]: each for label, each in task.mixture.fractions.items()
            },
            "words": task.mixture.words,
        },
        "num_events": predicted[0].numbers["num_events"],
        "rates_before": before if rates and not rates.are_events else None,
        "events_before": before if rates and rates.are_events else None,
        "luminosity": None
        if task.labels_of_expected.luminosity == ""
        else task.labels_of_expected.luminosity,
        "best": best.candidate.name,
        "behind_best": {
            each.candidate.name: estimate(best.area - each.area)._asdict() for each in predicted
        },
        "runs": {each.candidate.name: each.numbers for each in predicted},
    }


def _curves(predicted: Sequence[Predicted]) -> dict[str, Any]:
    """Background efficiencies by background and model, for JSON."""
    fields = ("signal_efficiency", "background_efficiency", "low", "high")
    return {
        background: {
            each.candidate.name: {
                name: np.round(getattr(each.curves[background], name), 6).tolist()
                for name in fields
            }
            for each in predicted
        }
        for background in predicted[0].curves
    }


def _decisions(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """By model: how a trigger decides at each working point, with the score of `models.evaluation.discriminant`."""
    of_all = {
        "signal": metrics["signal"],
        "signals": metrics["signals"],
        "fractions": metrics["mixture"]["fractions"],
    }
    return {
        name: {
            **of_all,
            "points": [
                {
                    "signal_efficiency": each["wanted"],
                    "threshold": each["threshold"],
                    "measurable": each["measurable"],
                }
                for each in numbers["working_points"]
            ],
            "background_points": [
                {"background_efficiency": each["wanted"]}
                | {key: each[key] for key in ("threshold", "measurable")}
                for each in numbers["background_points"]
            ],
        }
        for name, numbers in metrics["runs"].items()
    }


def _variations(
    found: Predicted,
    predictions: pa.Table,
    shifted: Mapping[str, NDArray[np.float32]],
    files: Sequence[Path],
    task: EvaluationTask,
) -> dict[str, Any]:
    test, model = found.test, found.candidate.model
    thresholds = [point["threshold"] for point in found.numbers["working_points"]]
    mixed = mixing_factors(
        test.labels,
        test.samples,
        predictions["weight"].to_numpy(),
        task.rates and task.rates.values,
    )
    weights = {
        name.removeprefix(OTHER_WEIGHTS): with_weights(
            test, mixed * predictions[name].to_numpy().astype(np.float64)
        )
        for name in predictions.column_names
        if name.startswith(OTHER_WEIGHTS)
    }
    scores = {}
    # Particles are not shifted, so a model that takes them would seem to depend on the scale too little.
    for name, hlf in shifted.items() if tuple(model.inputs) == ("hlf",) else ():
        is_selected = ~np.isnan(hlf[:, 0])
        table = predict(
            model, files, instead={"hlf": np.where(is_selected[:, None], hlf, test.hlf)}
        )
        scores[name] = Varied(
            test.weights, rows_of(table, "probability").astype(np.float64), is_selected
        )
    of_weights = variations(test, weights, task, thresholds)
    several = {"weights_envelope": envelope(list(of_weights.values()))} if len(weights) > 1 else {}
    return {
        "weights": of_weights,
        **several,
        "systematics": variations(test, scores, task, thresholds),
    }


def _importance(
    found: Predicted, files: Sequence[Path], task: EvaluationTask, on_events: Callable[[int], None]
) -> dict[str, Any]:
    model = found.candidate.model
    rows = chosen_events(model.inputs, found.test.labels)
    rows = rows[np.isin(found.test.labels[rows], task.measured)]
    if not len(rows):
        return {}
    columns, events = inputs_of(model, files, rows), found.test.chosen(rows)
    try:
        losses = importance(
            model, columns, events, signal=task.signals, seed=task.seed, on_events=on_events
        )
    except UndefinedMetricError as error:
        sentence = (
            f"the importance of the inputs, of a part of the events, is not measured: {error}"
        )
        return {"not_measurable": [*found.numbers["not_measurable"], sentence]}
    name = "importance_of_kinds" if "particles" in model.inputs else "importance"
    return {name: {part: loss._asdict() for part, loss in losses.items()}}


def _trainings(
    found: Predicted, files: Sequence[Path], task: EvaluationTask, on_events: Callable[[int], None]
) -> dict[str, Any]:
    """Mean and spread over the trainings of a network, if there are several.

    The spread is the standard deviation over the trainings. All of them are measured on the same events, so the
    statistical error of these events comes on top, and is common to all.
    """
    runs = [first := found.numbers]
    for model in found.candidate.further:
        events, _, _ = measurable(
            task.scored(predict(model, files, also=["hlf"], on_events=on_events)), task
        )
        # Only the values count: the fewest replicas that give errors at all.
        runs.append(measure(events, None, replicas_of(events, task, num=2), task).numbers)
    if len(runs) == 1:
        return {}
    areas = {
        name: {key: _spread(run[name][key] for run in runs) for key in first[name]}
        for name in ("auc", "auc_against")
    }
    points = [
        {
            "wanted": point["wanted"],
            **_spread(run["working_points"][place]["all_backgrounds"] for run in runs),
        }
        for place, point in enumerate(first["working_points"])
    ]
    accuracy = _spread(run["accuracy"] for run in runs)
    return {
        "trainings": {"count": len(runs), "accuracy": accuracy, **areas, "working_points": points}
    }


def _spread(numbers: Iterable[Mapping[str, float]]) -> dict[str, float]:
    values = np.array([each["value"] for each in numbers])
    return {"mean": float(values.mean()), "spread": float(values.std(ddof=1))}


def _measurable(found: Predicted) -> list[float]:
    """Signal efficiencies of the working points that can be measured."""
    return [point["wanted"] for point in found.numbers["working_points"] if point["measurable"]]


def _plot(
    found: Predicted, train: ScoredEvents | None, task: EvaluationTask, folder: Path, save: Save
) -> None:
    test, numbers, classes = found.counted, found.numbers, task.classes
    labels = task.labels._replace(model=found.candidate.name)
    folder.mkdir()
    figures = {
        "confusion": plots.plot_confusion(numbers["confusion"], labels),
        "scores": plots.plot_scores(
            test, train, numbers["train_against_test"], classes, task.outputs, labels
        ),
        "discriminant": plots.plot_discriminant(
            test,
            task.score(test.probabilities),
            expected_events(test, task),
            list(task.signals),
            classes,
            numbers["significance"],
            task.labels_of_expected._replace(model=found.candidate.name),
        ),
        "calibration": plots.plot_calibration(numbers["calibration"], labels),
    }
    if points := _measurable(found):
        against = numbers["efficiency_against"]
        figures["efficiencies"] = plots.plot_efficiencies(
            against, task.signal.words, points[0], labels
        )
    if found.candidate.history:
        figures["learning_curve"] = plots.plot_learning_curve(found.candidate.history, labels)
    figures |= {name: own.draw(test, classes) for name, own in OWN_FIGURES.items()}
    for name, figure in figures.items():
        save(figure, folder / name)


def _add_data(
    predicted: Sequence[Predicted],
    data: Mapping[str, DataEvents],
    task: EvaluationTask,
    out_dir: Path,
    save: Save,
) -> None:
    scores = {
        each.candidate.name: ScoreAxis.of(each.counted, data[each.candidate.name], task)
        for each in predicted
    }
    for found in predicted:
        model = found.candidate.name
        others = [each for name, each in scores.items() if name != model]
        drawn, numbers = overlays(found.counted, data[model], task, others)
        found.numbers["data"] = numbers
        labels = data_labels(task.labels_of_expected._replace(model=model), numbers)
        inputs = {name: each for name, each in drawn.items() if name != "score"}
        for name, some in (("data_score", {"score": drawn["score"]}), ("data_inputs", inputs)):
            # If all events are blinded, no input is left to show.
            if some:
                save(plot_overlays(some, numbers, task, labels), out_dir / model / "plots" / name)


def _plot_side_by_side(
    predicted: Sequence[Predicted],
    metrics: Mapping[str, Any],
    task: EvaluationTask,
    folder: Path,
    save: Save,
) -> None:
    folder.mkdir()
    signal = task.signal.words
    curves = {
        name: {each.candidate.name: each.curves[name] for each in predicted}
        for name in predicted[0].curves
    }
    words = {ALL_BACKGROUNDS: task.mixture.words}
    points, end = _measurable(predicted[0]), predicted[0].numbers["measurable_to"]
    for name, rejection in (("background_efficiency", False), ("rejection", True)):
        figure = plots.plot_curves(
            curves, signal, words, points, end, task.labels, rejection=rejection
        )
        save(figure, folder / name)
    important = {
        name: each["importance"] for name, each in metrics["runs"].items() if "importance" in each
    }
    if important:
        save(plots.plot_importance(important, signal, task.labels), folder / "importance")
