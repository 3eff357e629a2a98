"""Draws the figures of an evaluation, and hands them over to be saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from models.evaluation import figures
from models.evaluation.curve_figures import plot_curves
from models.evaluation.data_comparison import Overlay
from models.evaluation.data_figures import data_labels, plot_overlays
from models.evaluation.discriminant_figure import plot_discriminant
from models.evaluation.evaluated_model import EvaluatedModel
from models.evaluation.evaluation_task import ALL_BACKGROUNDS, EvaluationTask
from models.evaluation.independence_figure import plot_independence
from models.evaluation.own_figures import OWN_FIGURES
from models.evaluation.scored_events import ScoredEvents
from models.evaluation.style import Save


def plot_model(
    model: EvaluatedModel,
    train: ScoredEvents | None,
    task: EvaluationTask,
    folder: Path,
    save: Save,
) -> None:
    """Draw the figures of one model, and save them in a new folder.

    The learning curve needs a history of the training, the efficiencies a measurable working point.
    `save` writes a figure in another process.
    """
    events, numbers, classes = model.measured, model.numbers, task.classes
    labels = task.labels._replace(model=model.name)
    folder.mkdir()
    tests = numbers["train_against_test"]
    drawn = {
        "confusion": figures.plot_confusion(numbers["confusion"], labels),
        "scores": figures.plot_scores(events, train, tests, classes, task.outputs, labels),
        "discriminant": _plot_discriminant(model, task),
        "calibration": figures.plot_calibration(numbers["calibration"], labels),
    }
    if points := model.measurable_points:
        drawn["efficiencies"] = figures.plot_efficiencies(
            numbers["efficiency_against"], task.signal.description, points[0], labels
        )
    if independence := numbers.get("independence"):
        drawn["independence"] = plot_independence(independence, task.signal.description, labels)
    if history := model.candidate.history:
        drawn["learning_curve"] = figures.plot_learning_curve(history, labels)
    # Plugins draw figures of their own.
    for name, own_figure in OWN_FIGURES.items():
        drawn[name] = own_figure.draw(events, classes)
    for name, figure in drawn.items():
        save(figure, folder / name)


def _plot_discriminant(model: EvaluatedModel, task: EvaluationTask) -> Figure:
    """Draw the score of a model, and the significances behind cuts on it."""
    events = model.measured
    scores = task.score(events.probabilities)
    expected = task.expected_events(events)
    labels = task.labels_of_expected._replace(model=model.name)
    significances = model.numbers["significance"]
    return plot_discriminant(
        events, scores, expected, task.signal_labels, task.classes, significances, labels
    )


def plot_data(
    model: EvaluatedModel,
    drawn: Mapping[str, Overlay],
    task: EvaluationTask,
    folder: Path,
    save: Save,
) -> None:
    """Draw data on simulation: the score of a model in one figure, its inputs in another."""
    numbers = model.numbers["data"]
    model_labels = task.labels_of_expected._replace(model=model.name)
    labels = data_labels(model_labels, numbers)
    # A copy, since the score is taken out of it.
    inputs = dict(drawn)
    score = {"score": inputs.pop("score")}
    save(plot_overlays(score, numbers, task, labels), folder / "data_score")
    # If all events are blinded, there is no input to draw.
    if inputs:
        save(plot_overlays(inputs, numbers, task, labels), folder / "data_inputs")


def plot_models(
    models: Sequence[EvaluatedModel],
    metrics: Mapping[str, Any],
    task: EvaluationTask,
    folder: Path,
    save: Save,
) -> None:
    """Draw the figures that show all models side by side, and save them in a new folder.

    They are the background efficiency, its inverse (the rejection), and the importance of features
    for the models that have it.
    """
    folder.mkdir()
    first = models[0]
    signal = task.signal.description
    descriptions = {ALL_BACKGROUNDS: task.mixture.description}
    curves = {}
    for background in first.curves:
        curves[background] = {model.name: model.curves[background] for model in models}
    # Both figures show the same curves; a rejection is 1 / background efficiency.
    for name, rejection in (("background_efficiency", False), ("rejection", True)):
        figure = plot_curves(
            curves,
            signal,
            descriptions,
            first.measurable_points,
            first.numbers["measurable_to"],
            task.labels,
            rejection=rejection,
        )
        save(figure, folder / name)
    importances = {}
    for name, numbers in metrics["runs"].items():
        if "importance" in numbers:
            importances[name] = numbers["importance"]
    if importances:
        figure = figures.plot_importance(importances, signal, task.labels)
        save(figure, folder / "importance")
