"""What a study measures of each run: numbers of the whole run, and quantities of its epochs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

from hep_core.plugins import name_validator
from hep_studies.run_result import RunResult

#: Quantities of an epoch, with their words on axes.
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
#: Numbers above this are written without digits after the point.
_LARGE: Final = 1000
#: Part of the loss of a constant guess that is as good as all of it: its classes are those of the test events.
_NEARLY: Final = 0.98


class Measure(NamedTuple):
    """A number of a run."""

    words: str
    """Heading of its column, and its axis."""
    of: Callable[[RunResult, RunResult], float] | None = None
    """The number of a run and of that of the same seed which `relative_to` names; None: the number of its own name."""
    relative_to: str = ""
    """The property of a study that names the method of the other run: `reference` or `alone`; empty: no other run."""
    lower_is_better: bool = False
    is_ratio: bool = False
    """Whether it is a time or a rate: two runs compare by their ratio."""
    margin: float = 0.001
    """The difference that counts as none; relative for a ratio."""
    power_of_time: int = 1
    """2 for the square of a time, which the simulator misses by the square of a factor."""
    percent: bool = False
    of_time: bool = False
    """Whether it depends on the times of steps and messages, which the simulator may miss."""
    learns: bool = True
    """Whether it depends on what is learnt; not the times of given steps and messages."""

    def text(self, value: float) -> str:
        """A value in words."""
        if not math.isfinite(value):
            return "not reached" if value > 0 else "-"
        return (
            f"{100 * value:.2f} %"
            if self.percent
            else f"{value:,.0f}"
            if abs(value) >= _LARGE
            else f"{value:.3g}"
        )


def _curve(
    name: str, summed_up: Callable[..., Any] = itemgetter(-1)
) -> Callable[[RunResult, RunResult], float]:
    """Of the values of all epochs, at the end by default."""
    return lambda run, _: float(summed_up(run.curves[name])) if run.curves else math.nan


def lowest_loss(run: RunResult) -> float:
    """Lowest validation loss; infinite for a run that diverged."""
    return min(
        (loss for loss in run.curves.get("val_loss", ()) if math.isfinite(loss)), default=math.inf
    )


def diverged(run: RunResult, _: RunResult) -> float:
    """1 for a run that diverged, else 0; NaN if the result does not say what a constant guess gives.

    It diverged if a loss is not finite, or if the last training loss is not below that of the best constant guess, by
    2 %. Hermans 2017 shows training curves (figures 2.13, 3.2); a network that he calls diverged ends as such a guess.

    Examples:
        >>> def run(*train_loss: float) -> RunResult:
        ...     return RunResult("", {}, 1, "", None, {"train_loss": list(train_loss)}, {"guess_loss": 1.1})
        >>> [diverged(each, each) for each in (run(0.9, 3.0, 0.5), run(0.5, 4.0), run(1.1, 1.09), run(math.nan, 0.5))]
        [0.0, 1.0, 1.0, 1.0]
    """
    losses, guess = (
        run.curves.get("train_loss", [math.nan]),
        run.numbers.get("guess_loss", math.nan),
    )
    if not np.isfinite(losses).all():
        return 1.0
    return float(losses[-1] >= _NEARLY * guess) if math.isfinite(guess) else math.nan


def temporal_efficiency(run: RunResult, other: RunResult) -> float:
    """Ratio of the areas below the validation accuracies against time, up to the end of the shorter run.

    Hermans 2017, E3.4; above 1 for the better run. Accuracies between epochs are interpolated, and begin at 0.

    Examples:
        >>> def run(seconds: float) -> RunResult:
        ...     curves = {"val_accuracy": [0.8, 0.8], "seconds": [seconds, seconds]}
        ...     return RunResult("", {}, 1, "", None, curves, {})
        >>> round(temporal_efficiency(run(1.0), run(2.0)), 3)
        1.5
    """
    if not (run.curves and other.curves):
        return math.nan
    ends = [np.cumsum([0.0, *each.curves["seconds"]]) for each in (run, other)]
    last = min(end[-1] for end in ends)
    times = np.unique(np.concatenate([np.linspace(0, last, 1000), *ends]))
    times = times[times <= last]
    areas = [
        float(np.trapezoid(np.interp(times, end, [0.0, *each.curves["val_accuracy"]]), times))
        for each, end in zip((run, other), ends, strict=True)
    ]
    return areas[0] / areas[1]


def _seconds_to(goal: float) -> Callable[[RunResult, RunResult], float]:
    def found(run: RunResult, _: RunResult) -> float:
        reached = np.flatnonzero(np.array(run.curves.get("val_accuracy", ())) >= goal)
        return float(np.cumsum(run.curves["seconds"])[reached[0]]) if reached.size else math.inf

    return found


#: Two runs compare by the ratio of these; their margin is relative.
_RATE: Final[dict[str, Any]] = {"is_ratio": True, "margin": 0.1, "of_time": True, "learns": False}
_TIME: Final[dict[str, Any]] = {**_RATE, "lower_is_better": True}
_LOW: Final[dict[str, Any]] = {"lower_is_better": True}
_SHARE: Final[dict[str, Any]] = {"percent": True}

_MEASURES: Final[dict[str, Measure]] = {
    "test_accuracy": Measure(
        "test accuracy",
        lambda run, _: run.counts.weighted_accuracy if run.counts else math.nan,
        **_SHARE,
    ),
    "val_accuracy": Measure("validation accuracy at the end", _curve("val_accuracy"), **_SHARE),
    "train_accuracy": Measure("training accuracy at the end", _curve("train_accuracy"), **_SHARE),
    "worker_val_accuracy": Measure("validation accuracy of single workers at the end", **_SHARE),
    "val_loss": Measure(
        "lowest validation loss", lambda run, _: lowest_loss(run), **_LOW, margin=0.002
    ),
    "diverged": Measure("runs that diverged", diverged, **_LOW, **_SHARE),
    "seconds_per_batch": Measure("time per batch [s]", **_TIME),
    "samples_per_second": Measure("events per second", **_RATE),
    "seconds_per_epoch": Measure("time per epoch [s]", _curve("seconds", np.median), **_TIME),
    "communication_per_epoch": Measure(
        "communication per epoch [s]", _curve("communicate", np.median), **_TIME
    ),
    # Of all epochs but the first, as boxes show them.
    "variance_of_epochs": Measure(
        "variance of the time per epoch [s2]",
        _curve("seconds", lambda seconds: np.var(seconds[1:] or seconds)),
        **_TIME,
        power_of_time=2,
    ),
    "seconds": Measure("time of the run [s]", _curve("seconds", np.sum), **_TIME),
    "speed_up": Measure(
        "speed-up t(1) / t(n)",
        lambda run, alone: run.numbers["samples_per_second"] / alone.numbers["samples_per_second"],
        "alone",
        **_RATE,
    ),
    "temporal_efficiency": Measure(
        "temporal efficiency against the reference",
        temporal_efficiency,
        "reference",
        **{**_RATE, "learns": True},
    ),
    "consensus_distance": Measure(
        "consensus distance at the end", _curve("consensus_distance"), **_LOW, margin=0.01
    ),
    "staleness": Measure("mean staleness at the end", _curve("staleness"), **_LOW, margin=0.1),
    "bytes_sent": Measure("bytes sent per worker and epoch (all-reduces as in a ring)", **_LOW),
    "averages": Measure(
        "pairwise averages", lambda run, _: run.numbers.get("averages_begun", math.nan)
    ),
    "averages_lost": Measure("pairwise averages lost", **_LOW),
    "steps_not_finite": Measure("steps without effect", **_LOW),
    "steps_per_cycle": Measure("steps of a worker between two of its sums"),
    "utilisation": Measure(
        "share of the time in which workers compute",
        **_SHARE,
        margin=0.01,
        of_time=True,
        learns=False,
    ),
}


def measure_of(name: str) -> Measure:
    """A measure by name; `seconds_to=0.9` is the time to a validation accuracy of 0.9.

    Raises:
        ValueError: There is none; the message has the nearest.
    """
    if goal := re.fullmatch(r"seconds_to=(\d*\.?\d+)", name):
        words = f"time to a validation accuracy of {100 * float(goal[1]):g} % [s]"
        return Measure(words, _seconds_to(float(goal[1])), **{**_TIME, "learns": True})
    return _MEASURES[name_validator(_MEASURES, "measure")(name)]
