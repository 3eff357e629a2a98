"""Evaluates one or more models on the same events: predictions, numbers and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from features.schema import OTHER_WEIGHTS
from hep_core.checked_parquet import num_rows, read_parquet
from models.errors import UndefinedMetricError
from models.evaluation.bootstrap import Replicas
from models.evaluation.data_comparison import DataEvents, ScoreAxis, overlays
from models.evaluation.drawing import plot_data, plot_model, plot_models
from models.evaluation.evaluated_model import EvaluatedModel
from models.evaluation.evaluation_json import (
    curves_document,
    metrics_document,
    trigger_decisions,
    write_json,
)
from models.evaluation.evaluation_task import EvaluationTask
from models.evaluation.importance import importance, num_predicted, sampled_events
from models.evaluation.independence import (
    ScoreCut,
    columns_beside,
    measure_independence,
)
from models.evaluation.measurements import measurable_events, measure, only_finite, replicas_of
from models.evaluation.rates import unmeasured_rates
from models.evaluation.scored_events import ScoredEvents, mixing_factors
from models.evaluation.style import Save, saving_in_processes
from models.evaluation.training_spread import spread_of_trainings
from models.evaluation.variations import EventVariation, envelope, variations, with_weights
from models.prediction import Candidate, column_array, inputs_of_rows, predict
from models.prediction_files import write_parquet, write_root


class EvaluationProgress:
    """Counts the events that an evaluation has predicted, and reports them to a callback.

    The callback `on_progress` gets the number of events so far, their total, and a text about the
    present activity. Without it nothing is shown.
    """

    def __init__(
        self, num_events: int, on_progress: Callable[[int, int, str], None] | None
    ) -> None:
        self._num_events = num_events
        """Total number of events to predict."""
        self._num_done = 0
        """Number of events predicted so far."""
        self._on_progress = on_progress

    def show(self, activity: str, num_events: int = 0) -> None:
        """Add some events to the count, and report the count with the present activity."""
        self._num_done += num_events
        if self._on_progress:
            self._on_progress(self._num_done, self._num_events, activity)

    def counter(self, activity: str) -> Callable[[int], None]:
        """Return a function that takes a number of events, and adds it to the count.

        It reports the count under the name of this activity.
        """
        return partial(self.show, activity)


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

    Writes `metrics.json`, `curves.json`, `working_points.json`, `plots/*.png, *.pdf`, and in a
    folder of each model's name `predictions.parquet`, `predictions.root` and `plots/`.

    Args:
        candidates: The models, in the order of the report.
        test_files: Features Parquet files to evaluate on.
        train_files: Features Parquet files of the training split, to compare the scores with; may
            be empty.
        task: What to compute.
        out_dir: An existing folder.
        train_events: Highest number of training events to predict.
        on_progress: Called with the events predicted so far, their total, and what is predicted.
        shifted: By name of a systematic uncertainty, the shifted high-level features of all test
            events, (num_events, NUM_HLF), NaN for an event that the selection then rejects.
        data: By name of a model, the selected events of data without labels, with its
            probabilities.
    """
    num_events = _num_predictions(candidates, test_files, train_files, train_events)
    progress = EvaluationProgress(num_events, on_progress)
    models: list[EvaluatedModel] = []
    # The first model makes the bootstrap replicas; all models share them, so differences are
    # paired.
    replicas = None
    unmeasured = [*task.reasons_without_rates, *unmeasured_rates(task.rates)]
    with saving_in_processes() as save:
        for candidate in candidates:
            folder = out_dir / candidate.name
            folder.mkdir()
            predictions = _predict_test(candidate, test_files, task, folder, progress)
            # Training events only serve to compare their scores with those of the test events.
            train = None
            if train_files:
                train = _predict_train(candidate, train_files, task, train_events, progress)
            progress.show(f"measuring {candidate.name}")
            test = task.scored(predictions)
            # A class whose test events measure nothing is taken out of events and task; a sentence
            # says so.
            measured, task, sentences = measurable_events(test, task)
            replicas = replicas or replicas_of(measured, task)
            measurements = measure(measured, train, replicas, task)
            model = EvaluatedModel(candidate, test, measured, *measurements)
            # Every model lists them all, also the classes that an earlier model took out.
            unmeasured += [sentence for sentence in sentences if sentence not in unmeasured]
            model.numbers["num_events"] = len(test.labels)
            model.numbers["not_measurable"] = [*unmeasured, *model.numbers["not_measurable"]]
            model.numbers.update(_importance(model, test_files, task, progress))
            model.numbers.update(_trainings(model, test_files, task, progress))
            model.numbers.update(_independence(model, predictions, replicas, task))
            model.numbers.update(_variations(model, predictions, shifted or {}, test_files, task))
            progress.show(f"drawing {candidate.name}")
            plot_model(model, train, task, folder / "plots", save)
            models.append(model)
        # The data are compared last, since a score of any model may blind an event.
        if data:
            _add_data(models, data, task, out_dir, save)
        # JSON has no NaN or infinity; such numbers become null.
        metrics = only_finite(metrics_document(models, task))
        write_json(out_dir / "metrics.json", metrics, indent=1)
        write_json(out_dir / "curves.json", only_finite(curves_document(models)))
        write_json(out_dir / "working_points.json", trigger_decisions(metrics), indent=1)
        progress.show("drawing all")
        plot_models(models, metrics, task, out_dir / "plots", save)
    return metrics


def _num_predictions(
    candidates: Sequence[Candidate],
    test_files: Sequence[Path],
    train_files: Sequence[Path],
    train_events: int,
) -> int:
    """Count the predictions of all models, as the total of the progress display.

    Each model predicts the test events once for each of its trainings, and some training events
    once. For the importance of its inputs it predicts a sample of test events several times.
    """
    label_columns = [read_parquet(file, ["label"])["label"].to_numpy() for file in test_files]
    labels = np.concatenate(label_columns)
    num_available = sum(num_rows(file) for file in train_files)
    # Only the main training of each model predicts training events.
    num_train = min(train_events, num_available)
    total = 0
    for candidate in candidates:
        num_trainings = 1 + len(candidate.further)
        total += num_trainings * len(labels) + num_train
        total += num_predicted(candidate.model.inputs, labels)
    return total


def _predict_test(
    candidate: Candidate,
    files: Sequence[Path],
    task: EvaluationTask,
    folder: Path,
    progress: EvaluationProgress,
) -> pa.Table:
    """Predict the test events, and write the predictions into the folder of the model.

    The returned table also holds the high-level features (`hlf`), and what the measurements need
    besides, which the files leave out.
    """
    on_events = progress.counter(f"predicting with {candidate.name}")
    measured_inputs = ["hlf", *columns_beside(task)]
    predictions = predict(candidate.model, files, also=measured_inputs, on_events=on_events)
    # The features are needed for the measurements, not in the files.
    written = predictions.drop_columns(measured_inputs)
    write_parquet(written, task.classes, folder / "predictions.parquet")
    write_root(written, task.classes, folder / "predictions.root")
    return predictions


def _predict_train(
    candidate: Candidate,
    files: Sequence[Path],
    task: EvaluationTask,
    train_events: int,
    progress: EvaluationProgress,
) -> ScoredEvents:
    """Predict at most `train_events` events of the training split; no file is written."""
    on_events = progress.counter(f"predicting with {candidate.name}")
    predictions = predict(
        candidate.model, files, also=["hlf"], at_most=train_events, on_events=on_events
    )
    return task.scored(predictions)


def _variations(
    model: EvaluatedModel,
    predictions: pa.Table,
    shifted: Mapping[str, NDArray[np.float32]],
    files: Sequence[Path],
    task: EvaluationTask,
) -> dict[str, Any]:
    """Measure how the numbers of a model change with other event weights and with shifted inputs.

    The other weights are columns of the predictions, such as those of other renormalisation scales.
    The shifted inputs are high-level features after a systematic uncertainty. Thresholds stay those
    of the nominal working points.
    """
    test = model.test
    thresholds = [point["threshold"] for point in model.numbers["working_points"]]
    nominal_weights = predictions["weight"].to_numpy()
    # These factors mix the samples of a class by their rates, as in the nominal weights.
    factors = mixing_factors(test.labels, test.samples, nominal_weights, task.sample_rates)
    reweighted = {}
    for column in predictions.column_names:
        if column.startswith(OTHER_WEIGHTS):
            weights = predictions[column].to_numpy().astype(np.float64)
            name = column.removeprefix(OTHER_WEIGHTS)
            reweighted[name] = with_weights(test, factors * weights)
    # Particles are not shifted, so a model that takes them would seem too little dependent on the
    # scale.
    rescored = {}
    if tuple(model.candidate.model.inputs) == ("hlf",):
        for name, hlf in shifted.items():
            rescored[name] = _with_shifted_inputs(model, hlf, files)
    weight_shifts = variations(test, reweighted, task, thresholds)
    numbers: dict[str, Any] = {"weights": weight_shifts}
    # The envelope is the largest shift of several weights; of a single weight it says nothing new.
    if len(reweighted) > 1:
        numbers["weights_envelope"] = envelope(list(weight_shifts.values()))
    numbers["systematics"] = variations(test, rescored, task, thresholds)
    return numbers


def _with_shifted_inputs(
    model: EvaluatedModel, hlf: NDArray[np.float32], files: Sequence[Path]
) -> EventVariation:
    """Predict the test events again with shifted high-level features.

    An event that the selection rejects after the shift has NaN features. It keeps its nominal ones
    for the prediction, but is marked as not selected, so that it passes no threshold.
    """
    is_selected = ~np.isnan(hlf[:, 0])
    inputs = np.where(is_selected[:, None], hlf, model.test.hlf)
    predictions = predict(model.candidate.model, files, instead={"hlf": inputs})
    probabilities = column_array(predictions, "probability").astype(np.float64)
    return EventVariation(model.test.weights, probabilities, is_selected)


def _independence(
    model: EvaluatedModel, predictions: pa.Table, replicas: Replicas, task: EvaluationTask
) -> dict[str, Any]:
    """Measure whether the score depends on the columns of the task; see `measure_independence`.

    The result is part of the numbers of the model, with a sentence about each number that is not
    measured; it is empty if the task names no columns.
    """
    if not task.independent_of:
        return {}
    cuts = [
        ScoreCut(point["wanted"], point["threshold"])
        for point in model.numbers["working_points"]
        if point["measurable"]
    ]
    measured = measure_independence(predictions, model.measured, replicas, task, cuts)
    return {
        "independence": measured.numbers,
        "not_measurable": [*model.numbers["not_measurable"], *measured.sentences],
    }


def _importance(
    model: EvaluatedModel, files: Sequence[Path], task: EvaluationTask, progress: EvaluationProgress
) -> dict[str, Any]:
    """Measure the importance of the inputs of a model on a sample of the test events.

    The result is part of the numbers of the model. Importances of single features are under
    `importance`, those of types of particles under `importance_of_kinds`. If they cannot be
    measured, the result is `not_measurable` with a sentence that says why.
    """
    predictor, labels = model.candidate.model, model.test.labels
    # Permuted inputs are predicted many times, so only some events of each measurable class take
    # part.
    sampled_rows = sampled_events(predictor.inputs, labels)
    is_measured = np.isin(labels[sampled_rows], task.measured_labels)
    rows = sampled_rows[is_measured]
    if not len(rows):
        return {}
    columns = inputs_of_rows(predictor, files, rows)
    events = model.test.select(rows)
    try:
        losses = importance(
            predictor,
            columns,
            events,
            signal=task.signal_labels,
            seed=task.seed,
            classes=task.classes,
            on_events=progress.counter(f"shuffling inputs of {model.name}"),
        )
    except UndefinedMetricError as error:
        sentence = (
            f"the importance of the inputs, of a part of the events, is not measured: {error}"
        )
        return {"not_measurable": [*model.numbers["not_measurable"], sentence]}
    key = "importance_of_kinds" if "particles" in predictor.inputs else "importance"
    return {key: {name: loss._asdict() for name, loss in losses.items()}}


def _trainings(
    model: EvaluatedModel, files: Sequence[Path], task: EvaluationTask, progress: EvaluationProgress
) -> dict[str, Any]:
    """Return mean and spread over the trainings of a network; nothing if there is only one.

    Trainings differ in their seed. Each one is measured on the same test events. The spread is the
    standard deviation over the trainings. The statistical error of the events comes on top, and is
    common to all trainings.
    """
    if not model.candidate.further:
        return {}
    on_events = progress.counter(f"predicting with other trainings of {model.name}")
    trainings = [model.numbers]
    for predictor in model.candidate.further:
        predictions = predict(predictor, files, also=["hlf"], on_events=on_events)
        events, _, _ = measurable_events(task.scored(predictions), task)
        # Only the values count: the fewest replicas that give errors at all.
        replicas: Replicas = replicas_of(events, task, num=2)
        measurements = measure(events, None, replicas, task)
        trainings.append(measurements.numbers)
    return {"trainings": spread_of_trainings(trainings)}


def _add_data(
    models: Sequence[EvaluatedModel],
    data: Mapping[str, DataEvents],
    task: EvaluationTask,
    out_dir: Path,
    save: Save,
) -> None:
    """Compare data and simulation for each model, draw both, and add `data` to the model's numbers.

    An event that the score of any model blinds is hidden from the histograms of all other models
    too.
    """
    scores = {}
    for model in models:
        scores[model.name] = ScoreAxis.for_events(model.measured, data[model.name], task)
    for model in models:
        # The model's own score blinds inside `overlays`; these are the scores of all other models.
        blinding_axes = [score for name, score in scores.items() if name != model.name]
        drawn, numbers = overlays(model.measured, data[model.name], task, blinding_axes)
        model.numbers["data"] = numbers
        plots_folder = out_dir / model.name / "plots"
        plot_data(model, drawn, task, plots_folder, save)
