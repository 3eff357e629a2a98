"""Results of a search: scores of the trials, their ranking, and the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from training.gridsearch.folds import Curves
from training.gridsearch.trials import Trial


class Score(NamedTuple):
    """Score of one trial over its folds."""

    trial: Trial
    num_parameters: int
    accuracy: float
    """Weighted validation accuracy: mean over the folds."""
    accuracy_spread: float
    """Standard deviation of the accuracy over the folds."""
    loss: float
    """Validation loss: mean over the folds."""
    best_epochs: list[int]
    """Epoch of the lowest validation loss of each fold, from 1."""
    latency: float = math.nan
    """Median latency of one event in onnxruntime [us]; NaN before its measurement."""

    def to_json(self) -> dict[str, Any]:
        """Content for the result's JSON."""
        return {**self._asdict(), "trial": self.trial._asdict()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """From `to_json`."""
        return cls(**{**content, "trial": Trial.from_json(content["trial"])})


def score(trial: Trial, num_parameters: int, folds: Sequence[Curves]) -> Score | None:
    """The score of a trial from the curves of its folds, which may be longer than the trial's epochs.

    In each fold the epoch of the lowest loss counts, as in a training.

    Returns:
        The score; None if a fold has no epoch with a finite loss.
    """
    best = []
    for curves in folds:
        losses = np.asarray(curves.val_loss[: trial.epochs])
        if not np.isfinite(losses).any():
            return None
        best.append(int(np.nanargmin(np.where(np.isfinite(losses), losses, np.nan))))
    accuracies = [curves.val_accuracy[epoch] for curves, epoch in zip(folds, best, strict=True)]
    losses_at_best = [curves.val_loss[epoch] for curves, epoch in zip(folds, best, strict=True)]
    return Score(
        trial,
        num_parameters,
        float(np.mean(accuracies)),
        float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else math.nan,
        float(np.mean(losses_at_best)),
        [epoch + 1 for epoch in best],
    )


def ranked(scores: Sequence[Score]) -> list[Score]:
    """Scores by accuracy, the highest first; for equal accuracies the lower loss, then the smaller network."""
    return sorted(scores, key=lambda each: (-each.accuracy, each.loss, each.num_parameters, each.trial))


def num_parameters(each: Score) -> float:
    """Number of parameters of a score, as its cost in memory."""
    return each.num_parameters


def latency(each: Score) -> float:
    """Latency of a score, as its cost in time."""
    return each.latency


def pareto_front(scores: Sequence[Score], cost: Callable[[Score], float] = num_parameters) -> list[Score]:
    """Scores with the highest accuracy at their cost or less, the cheapest first.

    Examples:
        >>> trial = Trial((4,), 16, 0.1, 1)
        >>> found = [Score(trial, size, accuracy, 0.0, 0.0, [1]) for size, accuracy in [(9, 0.8), (5, 0.8), (20, 0.9)]]
        >>> [each.num_parameters for each in pareto_front(found)]
        [5, 20]
    """
    front: list[Score] = []
    for each in sorted(scores, key=lambda one: (cost(one), -one.accuracy, one.loss, one.trial)):
        if not front or each.accuracy > front[-1].accuracy:
            front.append(each)
    return front
