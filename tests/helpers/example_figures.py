"""Figures of the scores of one model, of which some names could be formulas."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from example_curves import CURVES, POINTS, WORDS
from matplotlib.figure import Figure
from scored_examples import events_with, example_task

from features.columns import hlf_names
from models.evaluation import figures
from models.evaluation.curve_figures import plot_curves
from models.evaluation.discriminant_figure import plot_discriminant
from models.evaluation.measurements import measure, replicas_of
from models.evaluation.scored_events import ScoredEvents
from models.evaluation.style import PlotLabels

LABELS = PlotLabels("", "technical sample", 13, "hlf")
#: Names that matplotlib could take for formulas.
NAMES = [r"$t\bar{t}$", "a_b", "100% {x}"]
TRAIN_LOSSES = [1.0, 0.5, 0.33, 0.25, 0.2]
VAL_LOSSES = [2.5, 1.5, 0.5, 1.5, 2.5]
HISTORY = [
    {"epoch": epoch, "train_loss": train_loss, "val_loss": val_loss}
    for epoch, (train_loss, val_loss) in enumerate(zip(TRAIN_LOSSES, VAL_LOSSES, strict=True))
]
EXPECTED = {0: 50.0, 1: 5.0, 2: 20.0}


def example_events(num_events: int, *, seed: int = 1, lightest: float = 1.0) -> ScoredEvents:
    """Events of three classes; no probability of the first is from 0.4 to 0.5."""
    rng = np.random.default_rng(seed)
    labels = np.arange(num_events) % 3
    is_class = np.eye(3)[labels]
    outputs = rng.exponential(1.0, (num_events, 3)) + 2 * is_class
    first = outputs[:, 0] / outputs.sum(axis=1)
    is_in_gap = (first > 0.4) & (first < 0.5)
    first = np.where(is_in_gap, 0.55, first)
    second_share = outputs[:, 1] / (outputs[:, 1] + outputs[:, 2])
    second = (1 - first) * second_share
    third = (1 - first) * (1 - second_share)
    probabilities = np.column_stack([first, second, third])
    weights = np.where(rng.random(num_events) < 0.3, lightest, 1.0)
    hlf = rng.normal(60, 60, (num_events, len(hlf_names())))
    events = events_with(labels, probabilities, weights)
    return events._replace(hlf=hlf.astype(np.float32))


@cache
def example_numbers(lightest: float = 1.0) -> tuple[ScoredEvents, ScoredEvents, dict[str, Any]]:
    """Test events, training events and their numbers."""
    test = example_events(180, lightest=lightest)
    train = example_events(60, seed=2, lightest=lightest)
    task = example_task(classes=NAMES, working_points=[0.4], labels=LABELS)
    replicas = replicas_of(test, task, num=50)
    return test, train, measure(test, train, replicas, task).numbers


def draw_confusion(lightest: float) -> Figure:
    _, _, numbers = example_numbers(lightest)
    return figures.plot_confusion(numbers["confusion"], LABELS)


def draw_scores(lightest: float) -> Figure:
    test, train, numbers = example_numbers(lightest)
    tests = numbers["train_against_test"]
    return figures.plot_scores(test, train, tests, NAMES, range(3), LABELS)


def draw_calibration(lightest: float) -> Figure:
    _, _, numbers = example_numbers(lightest)
    return figures.plot_calibration(numbers["calibration"], LABELS)


def draw_efficiencies(lightest: float) -> Figure:
    _, _, numbers = example_numbers(lightest)
    return figures.plot_efficiencies(numbers["efficiency_against"], NAMES[1], 0.5, LABELS)


def draw_discriminant(lightest: float) -> Figure:
    test, _, numbers = example_numbers(lightest)
    score = test.probabilities[:, 1]
    significance = numbers["significance"]
    return plot_discriminant(test, score, EXPECTED, [1], NAMES, significance, LABELS)


def draw_importance(_: float) -> Figure:
    losses = {}
    for index, name in enumerate(hlf_names()):
        losses[name] = {"value": float(index), "error": 0.1}
    losses_of_models = dict.fromkeys(NAMES, losses)
    return figures.plot_importance(losses_of_models, NAMES[1], LABELS)


def draw_learning_curve(_: float) -> Figure:
    history = [{**record, "consensus_distance": 0.1} for record in HISTORY]
    return figures.plot_learning_curve(history, LABELS)


def draw_curves(*, rejection: bool) -> Figure:
    return plot_curves(CURVES, "t_t", WORDS, POINTS, 0.95, LABELS, rejection=rejection)


#: Functions that draw the figures of a model; the lightest event has the given weight.
MODEL_FIGURES: dict[str, Callable[[float], Figure]] = {
    "confusion": draw_confusion,
    "scores": draw_scores,
    "discriminant": draw_discriminant,
    "calibration": draw_calibration,
    "efficiencies": draw_efficiencies,
    "importance": draw_importance,
    "learning_curve": draw_learning_curve,
}
ALL_FIGURES: dict[str, Callable[[float], Figure]] = {
    "background_efficiency": lambda _: draw_curves(rejection=False),
    "rejection": lambda _: draw_curves(rejection=True),
    **MODEL_FIGURES,
}
