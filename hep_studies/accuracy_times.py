"""The time to a validation accuracy, and the validation before."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hep_studies.run_result import RunResult


def epoch_times(run: RunResult) -> NDArray[np.float64]:
    """Return the start of a run and the ends of its epochs [s], (num_epochs + 1,)."""
    return np.cumsum([0.0, *run.curves["seconds"]])


def seconds_to(accuracy: float, window: int) -> Callable[[RunResult, RunResult], float]:
    """Return a function that computes a run's time to this validation accuracy [s].

    It is the end of the first epoch at it; infinite if none is. `window`: see `_first_epoch_at`.

    Examples:
        >>> curves = {"val_accuracy": [0.7, 0.9, 0.7, 0.9, 0.9], "seconds": [1.0] * 5}
        >>> run = RunResult("", {}, 1, "", None, curves, {})
        >>> [seconds_to(0.8, window)(run, run) for window in (1, 3)]
        [2.0, 3.0]
    """

    def compute(run: RunResult, _: RunResult) -> float:
        epoch = _first_epoch_at(accuracy, run, window)
        return math.inf if epoch is None else float(epoch_times(run)[epoch + 1])

    return compute


def seconds_before(accuracy: float, window: int) -> Callable[[RunResult], float]:
    """Return a function that computes the last time at which a run is below an accuracy [s].

    It is the epoch before the first one at it. The first epoch that can be at it has none before
    it, but no step reaches the accuracy before its end. Infinite if no epoch is at it.
    """

    def compute(run: RunResult) -> float:
        epoch = _first_epoch_at(accuracy, run, window)
        if epoch is None:
            return math.inf
        times = epoch_times(run)
        if epoch > window // 2:
            return float(times[epoch])
        step_seconds = run.numbers.get("seconds_per_batch", math.nan)
        return min(step_seconds, float(times[1]))

    return compute


def _first_epoch_at(accuracy: float, run: RunResult, window: int) -> int | None:
    """Return the index of the first epoch with this validation accuracy; None if none has it.

    `window`: number of validations in a row whose mean is the accuracy of the one in the middle. A
    single validation of some hundred events is a point too high now and then, so that the first one
    at an accuracy is often luck.
    """
    accuracies = np.array(run.curves.get("val_accuracy", ()))
    if len(accuracies) < window:
        return None
    means = np.lib.stride_tricks.sliding_window_view(accuracies, window).mean(axis=1)
    reached = np.flatnonzero(means >= accuracy)
    return int(reached[0]) + window // 2 if reached.size else None
