"""The measures of a study: numbers of a whole run, and quantities of its epochs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hep_core.plugins import name_validator
from hep_studies.accuracy_times import epoch_times, seconds_before, seconds_to
from hep_studies.run_result import RunResult

#: Quantities of an epoch, with their labels on axes.
CURVES: Final = {
    "val_accuracy": "Validation accuracy",
    "val_loss": "Validation loss",
    "train_loss": "Training loss",
    "train_accuracy": "Training accuracy",
    "consensus_distance": "Consensus distance",
    "communicate": "Time per epoch, communicating [s]",
    "seconds": "Time per epoch, in all [s]",
    "staleness": "Mean staleness",
    "scaling_percent": "Mean reduction of a push [%]",
}
#: Numbers from this on are written without decimals.
_LARGE: Final = 1000
#: A training loss above this share of the loss of a constant guess is as good as the guess.
_LIKE_A_GUESS: Final = 0.98
#: Number of validations in a row whose mean is an accuracy that a run holds.
_NUM_HELD: Final = 3
#: Number of equally spaced times at which accuracies are interpolated for an area.
_SAMPLED_TIMES: Final = 1000

ComputeMeasure = Callable[[RunResult, RunResult], float]
"""Compute a number of a run and of the run of the same seed that it is relative to."""
ComputeBound = Callable[[RunResult], float]
"""Compute a bound of a number of a run."""


class Measure(NamedTuple):
    """The definition of a number of a run: how it is computed, shown and compared."""

    label: str
    """Heading of its column, and label of its axis."""
    compute: ComputeMeasure | None = None
    """None: the result of the run has a number of the measure's name."""
    tuned_by: str = "val_loss"
    """The measure in which "each at its best" is best where this measure is claimed.

    It is the measure itself where it says how well or how fast a method learns, with two
    exceptions. The test events choose nothing, so that the validation events do. An efficiency
    against another method is that of the runs that are fast themselves. All else, such as the time
    of a step, is of the settings that learn best.
    """
    relative_to: str = ""
    """Attribute of a study that names the method of the other run: `reference` or `single_worker`.

    Empty: there is no other run.
    """
    lower_is_better: bool = False
    """Whether the run with the lower number is the better one."""
    is_ratio: bool = False
    """Whether it is a time or a rate: two runs compare by their ratio."""
    margin: float = 0.001
    """Largest difference of two runs that counts as none; a relative one for a ratio."""
    power_of_time: int = 1
    """2 for the square of a time: the simulator misses it by the square of a factor."""
    in_percent: bool = False
    """Whether it is a share, from 0 to 1, which tables show in percent."""
    split: str = ""
    """The split of the events of which it is a share, such as `val`; empty for other numbers."""
    is_outcome: bool = False
    """Whether it is 0 or 1 for a run, so that the mean is a share of runs."""
    depends_on_times: bool = False
    """Whether it depends on the times of steps and messages, which the simulator may miss."""
    depends_on_learning: bool = True
    """Whether it depends on what is learnt; the times of given steps and messages do not."""
    lower_bound: ComputeBound | None = None
    """The number is known to lie above this and not above `compute`; None: it is exact."""

    def text(self, value: float) -> str:
        """Return a value as tables show it; infinity is a time to a goal that was not reached."""
        if not math.isfinite(value):
            return "not reached" if value > 0 else "-"
        if self.in_percent:
            return f"{100 * value:.2f} %"
        return f"{value:,.0f}" if abs(value) >= _LARGE else f"{value:.3g}"


def _of_curve(name: str, reduce: Callable[..., Any] = itemgetter(-1)) -> ComputeMeasure:
    """Return a function that computes a measure from a quantity of all epochs.

    `name`: the quantity, see `CURVES`. `reduce`: makes one number of its values; by default it
    takes the last. A run that diverged gives NaN.
    """

    def compute(run: RunResult, _: RunResult) -> float:
        return float(reduce(run.curves[name])) if run.curves else math.nan

    return compute


def _accuracy(run: RunResult, _: RunResult) -> float:
    """Return the weighted test accuracy; NaN if the run has no predictions."""
    return run.counts.weighted_accuracy if run.counts else math.nan


def lowest_loss(run: RunResult) -> float:
    """Return the lowest validation loss; infinite for a run that diverged."""
    losses = run.curves.get("val_loss", ())
    return min((loss for loss in losses if math.isfinite(loss)), default=math.inf)


def diverged(run: RunResult, _: RunResult) -> float:
    """Return 1 for a run that diverged, else 0.

    A run diverged if a loss is not finite, or if its last training loss is not 2 % below that of
    the best constant guess. Hermans 2017 shows training curves (figures 2.13, 3.2): a network that
    he calls diverged ends as such a guess. NaN if the result lacks the loss of the guess.

    Examples:
        >>> def run(*train_loss: float) -> RunResult:
        ...     curves = {"train_loss": list(train_loss)}
        ...     return RunResult("", {}, 1, "", None, curves, {"guess_loss": 1.1})
        >>> losses = [(0.9, 3.0, 0.5), (0.5, 4.0), (1.1, 1.09), (math.nan, 0.5)]
        >>> [diverged(run(*train_loss), run()) for train_loss in losses]
        [0.0, 1.0, 1.0, 1.0]
    """
    losses = run.curves.get("train_loss", [math.nan])
    if not np.isfinite(losses).all():
        return 1.0
    guess_loss = run.numbers.get("guess_loss", math.nan)
    if not math.isfinite(guess_loss):
        return math.nan
    return float(losses[-1] >= _LIKE_A_GUESS * guess_loss)


def temporal_efficiency(
    run: RunResult, reference: RunResult, accuracy: str = "val_accuracy"
) -> float:
    """Return the area below a run's accuracy against time, over that of the reference.

    This is Hermans 2017, E3.4; it is above 1 for a run that is better than the reference. Both
    areas end with the shorter run. Accuracies are 0 at the start, and interpolated between the ends
    of epochs. NaN if one of the runs diverged. `accuracy`: name of its curve; Hermans has that of
    the training.

    Examples:
        >>> def run(seconds: float) -> RunResult:
        ...     curves = {"val_accuracy": [0.8, 0.8], "seconds": [seconds, seconds]}
        ...     return RunResult("", {}, 1, "", None, curves, {})
        >>> round(temporal_efficiency(run(1.0), run(2.0)), 3)
        1.5
    """
    if not (run.curves and reference.curves):
        return math.nan
    run_times = epoch_times(run)
    reference_times = epoch_times(reference)
    last_time = min(run_times[-1], reference_times[-1])
    # The corners of both curves are times too, so that the trapezoids are exact.
    grid = np.linspace(0, last_time, _SAMPLED_TIMES)
    times = np.unique(np.concatenate([grid, run_times, reference_times]))
    times = times[times <= last_time]
    return _area_below(run, accuracy, times) / _area_below(reference, accuracy, times)


def _area_below(run: RunResult, accuracy: str, times: NDArray[np.float64]) -> float:
    """Return the integral of an accuracy over times (num_times,), ascending [s]."""
    accuracies = [0.0, *run.curves[accuracy]]
    return float(np.trapezoid(np.interp(times, epoch_times(run), accuracies), times))


def _mean_accuracy(run: RunResult, _: RunResult, accuracy: str) -> float:
    """Return the mean over a run's time of one of its accuracies; NaN if it diverged."""
    if not run.curves:
        return math.nan
    times = epoch_times(run)
    return _area_below(run, accuracy, times) / float(times[-1])


def _mean_of_last(accuracies: list[float]) -> float:
    """Return the mean of the last three accuracies, or of all if there are fewer."""
    return float(np.mean(accuracies[-_NUM_HELD:]))


def _seconds_to_best(run: RunResult, _: RunResult) -> float:
    """Refuse to compute the time to the best accuracy from one run: the goal is of all methods.

    `tuning.resolved_measure` replaces the measure by the time to the goal.
    """
    raise AssertionError(f"{run.method}: the goal of seconds_to_best is that of a study")


def _variance_after_first(seconds: list[float]) -> float:
    """Return the variance of the times of all epochs but the first [s^2].

    The figures of boxes leave the first epoch out too. A single epoch has the variance 0.
    """
    return float(np.var(seconds[1:] or seconds))


def _speed_up(run: RunResult, single_worker: RunResult) -> float:
    """Return how many times more events per second a run trains than one worker."""
    return run.numbers["samples_per_second"] / single_worker.numbers["samples_per_second"]


#: Attributes of measures in common: rates and times (compared by ratios), numbers that are better
#: if low, and shares.
_RATE: Final[dict[str, Any]] = {
    "is_ratio": True,
    "margin": 0.1,
    "depends_on_times": True,
    "depends_on_learning": False,
}
_TIME: Final[dict[str, Any]] = {**_RATE, "lower_is_better": True}
_LOW: Final[dict[str, Any]] = {"lower_is_better": True}
_SHARE: Final[dict[str, Any]] = {"in_percent": True}
_SHARE_OF_TRAINING: Final[dict[str, Any]] = {**_SHARE, "split": "train"}
_SHARE_OF_VALIDATION: Final[dict[str, Any]] = {**_SHARE, "split": "val"}
_SHARE_OF_TEST: Final[dict[str, Any]] = {**_SHARE, "split": "test"}

_MEASURES: Final[dict[str, Measure]] = {
    "test_accuracy": Measure("test accuracy", _accuracy, "val_accuracy", **_SHARE_OF_TEST),
    "val_accuracy": Measure(
        "validation accuracy at the end",
        _of_curve("val_accuracy"),
        "val_accuracy",
        **_SHARE_OF_VALIDATION,
    ),
    "final_val_accuracy": Measure(
        "validation accuracy, mean of the last three epochs",
        _of_curve("val_accuracy", _mean_of_last),
        "final_val_accuracy",
        **_SHARE_OF_VALIDATION,
    ),
    "mean_val_accuracy": Measure(
        "validation accuracy, mean over the time of the run",
        partial(_mean_accuracy, accuracy="val_accuracy"),
        "mean_val_accuracy",
        **_SHARE_OF_VALIDATION,
    ),
    "train_accuracy": Measure(
        "training accuracy at the end",
        _of_curve("train_accuracy"),
        "train_accuracy",
        **_SHARE_OF_TRAINING,
    ),
    "worker_val_accuracy": Measure(
        "validation accuracy of single workers at the end",
        None,
        "worker_val_accuracy",
        **_SHARE_OF_VALIDATION,
    ),
    "val_loss": Measure(
        "lowest validation loss", lambda run, _: lowest_loss(run), **_LOW, margin=0.002
    ),
    "diverged": Measure("runs that diverged", diverged, **_LOW, **_SHARE, is_outcome=True),
    "seconds_per_batch": Measure("time per batch [s]", **_TIME),
    "samples_per_second": Measure("events per second", **_RATE),
    "seconds_per_epoch": Measure("time per epoch [s]", _of_curve("seconds", np.median), **_TIME),
    "communication_per_epoch": Measure(
        "communication per epoch [s]", _of_curve("communicate", np.median), **_TIME
    ),
    "variance_of_epochs": Measure(
        "variance of the time per epoch [s2]",
        _of_curve("seconds", _variance_after_first),
        **_TIME,
        power_of_time=2,
    ),
    "seconds": Measure("time of the run [s]", _of_curve("seconds", np.sum), **_TIME),
    "speed_up": Measure("speed-up t(1) / t(n)", _speed_up, relative_to="single_worker", **_RATE),
    "mean_train_accuracy": Measure(
        "training accuracy, mean over the time of the run",
        partial(_mean_accuracy, accuracy="train_accuracy"),
        "mean_train_accuracy",
        **_SHARE_OF_TRAINING,
    ),
    "temporal_efficiency_in_training": Measure(
        "temporal efficiency against the reference, of the training accuracy",
        partial(temporal_efficiency, accuracy="train_accuracy"),
        "mean_train_accuracy",
        "reference",
        **{**_RATE, "depends_on_learning": True},
    ),
    "temporal_efficiency": Measure(
        "temporal efficiency against the reference",
        temporal_efficiency,
        "mean_val_accuracy",
        "reference",
        **{**_RATE, "depends_on_learning": True},
    ),
    "consensus_distance": Measure(
        "consensus distance at the end", _of_curve("consensus_distance"), **_LOW, margin=0.01
    ),
    "staleness": Measure("mean staleness at the end", _of_curve("staleness"), **_LOW, margin=0.1),
    "bytes_sent": Measure("bytes sent per worker and epoch (all-reduces as in a ring)", **_LOW),
    "averages": Measure(
        "pairwise averages", lambda run, _: run.numbers.get("averages_begun", math.nan)
    ),
    "averages_lost": Measure("pairwise averages lost", **_LOW),
    "steps_not_finite": Measure("steps without effect", **_LOW),
    "sums": Measure("sums of shards"),
    "steps_per_cycle": Measure("steps of a worker between two of its sums"),
    "effective_share": Measure("share of the steps that the pull leaves", **_SHARE),
    "utilisation": Measure(
        "share of the time in which workers compute",
        **_SHARE,
        margin=0.01,
        depends_on_times=True,
        depends_on_learning=False,
    ),
}


def measure_of(name: str) -> Measure:
    """Return a measure by name; `seconds_to=0.9` is the time to a validation accuracy of 0.9.

    `seconds_to_hold=0.9` is the time until a run holds it in the mean of three validations, and
    `seconds_to_best=0.01` that until it holds the accuracy of the best method less 0.01.

    Raises:
        ValueError: There is none; the message has the nearest.
    """
    distance = distance_to_best(name)
    if distance is not None:
        label = f"time to hold the best validation accuracy less {100 * distance:g} points [s]"
        return Measure(label, _seconds_to_best, name, **{**_TIME, "depends_on_learning": True})
    goal = re.fullmatch(r"seconds_to(_hold)?=(\d*\.?\d+)", name)
    if goal is None:
        return _MEASURES[name_validator(_MEASURES, "measure")(name)]
    verb, window = ("hold ", _NUM_HELD) if goal[1] else ("", 1)
    accuracy = float(goal[2])
    label = f"time to {verb}a validation accuracy of {100 * accuracy:g} % [s]"
    return Measure(
        label,
        seconds_to(accuracy, window),
        name,
        **{**_TIME, "depends_on_learning": True},
        lower_bound=seconds_before(accuracy, window),
    )


def distance_to_best(name: str) -> float | None:
    """Return by how much the goal of a measure is below the best accuracy; None for other measures.

    Examples:
        >>> distance_to_best("seconds_to_best=0.01"), distance_to_best("seconds_to=0.9")
        (0.01, None)
    """
    distance = re.fullmatch(r"seconds_to_best=(0?\.\d+)", name)
    return None if distance is None else float(distance[1])


def number_of_run(name: str, run: RunResult, baseline: RunResult) -> float:
    """Return a measure of a run; NaN if its result lacks it.

    `baseline`: the run that a relative measure compares with; other measures ignore it.
    """
    measure = measure_of(name)
    if measure.compute is None:
        return run.numbers.get(name, math.nan)
    return measure.compute(run, baseline)
