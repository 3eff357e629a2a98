"""The JSON files of an evaluation: metrics, curves, and the decisions at working points."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from models.evaluation.bootstrap import estimate
from models.evaluation.curves import EfficiencyCurve
from models.evaluation.evaluated_model import EvaluatedModel
from models.evaluation.evaluation_task import EvaluationTask

#: Fields of an `EfficiencyCurve` that `curves.json` holds.
_CURVE_FIELDS: Final = ("signal_efficiency", "background_efficiency", "low", "high")


def write_json(path: Path, document: Mapping[str, Any], indent: int | None = None) -> None:
    """Write a JSON file; a number that is not finite is an error."""
    path.write_text(json.dumps(document, indent=indent, allow_nan=False), encoding="utf-8")


def metrics_document(models: Sequence[EvaluatedModel], task: EvaluationTask) -> dict[str, Any]:
    """Collect the content of `metrics.json`: what was evaluated, and the numbers of each model.

    `best` names the model of the largest area under the ROC curve. `behind_best` says by how much
    each other model is worse; the error is that of the paired difference in the replicas.
    """
    # The first entry of `area` is the measured one; the others are those of the replicas.
    best = max(models, key=lambda model: model.area[0])
    behind_best = {}
    for model in models:
        area_loss = estimate(best.area - model.area)
        behind_best[model.name] = area_loss._asdict()
    luminosity = task.labels_of_expected.luminosity
    # A trigger counts rates [1/s], an offline analysis numbers of events; only one of them is set.
    rates_before, events_before = None, None
    if rates := task.rates_of_measured:
        before = rates.of_classes(task.classes)
        if rates.are_events:
            events_before = before
        else:
            rates_before = before
    mixture = {
        "fractions": _by_class(task.mixture.fractions, task),
        "words": task.mixture.description,
    }
    return {
        "classes": list(task.classes),
        "signal": task.signal.description,
        "signals": _by_class(task.signal.fractions, task),
        "mixture": mixture,
        "num_events": models[0].numbers["num_events"],
        "rates_before": rates_before,
        "events_before": events_before,
        "luminosity": luminosity or None,
        "best": best.name,
        "behind_best": behind_best,
        "runs": {model.name: model.numbers for model in models},
    }


def _by_class(fractions: Mapping[int, float], task: EvaluationTask) -> dict[str, float]:
    """Replace the class labels of some fractions by the names of the classes."""
    return {task.classes[label]: fraction for label, fraction in fractions.items()}


def curves_document(models: Sequence[EvaluatedModel]) -> dict[str, Any]:
    """Return the background efficiency curves by background and then by model, for JSON."""
    document: dict[str, Any] = {}
    for background in models[0].curves:
        document[background] = {
            model.name: _curve_json(model.curves[background]) for model in models
        }
    return document


def _curve_json(curve: EfficiencyCurve) -> dict[str, list[float]]:
    """Return the numbers of a curve as lists, rounded to 6 decimal places."""
    lists = {}
    for name in _CURVE_FIELDS:
        rounded = np.round(getattr(curve, name), 6)
        lists[name] = rounded.tolist()
    return lists


def trigger_decisions(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Extract from the metrics how a trigger decides at each working point, by model.

    A trigger keeps an event if its score, `models.evaluation.discriminant`, is at or above the
    threshold. `points` are thresholds at given signal efficiencies, `background_points` those at
    given background efficiencies. `signals` and `fractions` define the score.
    """
    decisions = {}
    for name, numbers in metrics["runs"].items():
        points = _decisions("signal_efficiency", numbers["working_points"])
        background_points = _decisions("background_efficiency", numbers["background_points"])
        decisions[name] = {
            "signal": metrics["signal"],
            "signals": metrics["signals"],
            "fractions": metrics["mixture"]["fractions"],
            "points": points,
            "background_points": background_points,
        }
    return decisions


def _decisions(efficiency_name: str, points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the threshold of each working point, under the efficiency that defines the points."""
    decisions = []
    for point in points:
        # `wanted` is the efficiency that defines a point, `threshold` the score that reaches it.
        decision = {
            efficiency_name: point["wanted"],
            "threshold": point["threshold"],
            "measurable": point["measurable"],
        }
        decisions.append(decision)
    return decisions
