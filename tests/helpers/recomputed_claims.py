"""Claims recomputed from the JSON of stored results, by code of its own: numpy and scipy alone.

Nothing of `hep_studies` is imported, so that an error there is no error here.
"""

from __future__ import annotations

import base64
import json
import lzma
import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

STUDIES = Path(__file__).parents[2] / "docs" / "studies"
RATE = "train.learning_rate"
Run = Mapping[str, Any]
Number = Callable[[Run], float]
Array = NDArray[np.float64]


class Effect(NamedTuple):
    """A difference in the direction of the claim, of logarithms for times."""

    mean: float
    half_width: float
    """Half the width of its interval, without the error of simulated times."""
    shifts: tuple[float, float] = (0.0, 0.0)
    """Errors of simulated times: the lowest and the highest."""


class Side(NamedTuple):
    """One side of a comparison: the runs of a method at one learning rate, by seed."""

    method: str
    workers: int
    runs: dict[int, Run]
    rate: float | None = None
    is_at_edge: bool = False


@cache
def stored(study: str) -> dict[str, Any]:
    """The stored result of a published study."""
    packed = (STUDIES / study / "result.json.xz").read_bytes()
    content: dict[str, Any] = json.loads(lzma.decompress(packed))
    return content


def side(study: str, method: str, *, tuned_by: Number | None = None, **values: Any) -> Side:
    """The runs of a method at some values: at a rate among them, or at the best rate.

    `values`: of varied keys, such as `workers=4` for `train.workers`. `tuned_by`: a number that is
    high for a good run, and not finite for one that diverged or did not reach a goal.
    """
    content = stored(study)
    varied = {f"train.{name.replace('__', '.')}": value for name, value in values.items()}
    by_rate: dict[float | None, dict[int, Run]] = {}
    for run in content["runs"]:
        if run["method"] == method and _has_values(run, varied):
            runs_at_rate = by_rate.setdefault(run["values"].get(RATE), {})
            runs_at_rate[run["seed"]] = run
    settings = content["study"]
    # The number of workers of the method comes before a varied one, and that of the study last.
    study_workers = settings["train"].get("workers", 1)
    common_workers = varied.get("train.workers", study_workers)
    method_settings = settings["methods"][method]["train"]
    workers = method_settings.get("workers", common_workers)
    if tuned_by is None:
        ((rate, runs),) = by_rate.items()
        return Side(method, workers, runs, rate)
    rate = max(by_rate, key=lambda rate: _goodness(by_rate[rate], tuned_by))
    tried_rates = [tried_rate for tried_rate in by_rate if tried_rate is not None]
    is_at_edge = rate in (min(tried_rates), max(tried_rates))
    return Side(method, workers, by_rate[rate], rate, is_at_edge)


def _has_values(run: Run, varied: Mapping[str, Any]) -> bool:
    """Whether a run has these values; a key that its method does not vary fits any value."""
    run_values = run["values"]
    return all(run_values.get(key, value) == value for key, value in varied.items())


def _goodness(runs: Mapping[int, Run], tuned_by: Number) -> tuple[int, float]:
    """How many seeds have a number, and their mean."""
    numbers = np.array([tuned_by(run) for run in runs.values()])
    finite = numbers[np.isfinite(numbers)]
    if len(finite) == 0:
        return 0, -math.inf
    return len(finite), float(finite.mean())


def lowest_val_loss(run: Run) -> float:
    losses = np.array(run["curves"].get("val_loss", [math.nan]))
    return float(losses[np.isfinite(losses)].min())


def val_accuracy_at_end(run: Run) -> float:
    accuracies = run["curves"].get("val_accuracy", [math.nan])
    return float(accuracies[-1])


def accuracy_on_test(run: Run) -> float:
    if not run["counts"]:
        return math.nan
    return float(run["counts"]["weighted_accuracy"])


def seconds_to(accuracy: float, run: Run) -> float:
    """The time at the end of the first epoch with this validation accuracy."""
    elapsed = 0.0
    seconds_of_epochs = run["curves"].get("seconds", [])
    accuracies = run["curves"].get("val_accuracy", [])
    for seconds, epoch_accuracy in zip(seconds_of_epochs, accuracies, strict=True):
        elapsed += float(seconds)
        if epoch_accuracy >= accuracy:
            return elapsed
    return math.inf


def effect_of_numbers(
    treatment: Side, control: Side, number: Number, level: float, *, sign: float = 1.0
) -> Effect:
    """The mean of differences by seed, with the interval of Student's t."""
    differences = []
    for seed in sorted(treatment.runs.keys() & control.runs.keys()):
        treated_run = treatment.runs[seed]
        control_run = control.runs[seed]
        if treated_run["curves"] and control_run["curves"]:
            difference = number(treated_run) - number(control_run)
            differences.append(sign * difference)
    result = stats.ttest_1samp(differences, 0.0)
    low, high = result.confidence_interval(1 - level)
    return Effect(float(np.mean(differences)), float(high - low) / 2)


def effect_of_events(study: str, treatment: Side, control: Side, level: float) -> Effect:
    """The mean over seeds and test events, with the errors of both by an analysis of variance."""
    encoded = base64.b64decode(stored(study)["test_weights"])
    weights = np.frombuffer(encoded, dtype="<f4").astype(float)
    relative_weights = weights / weights.mean()
    rows = []
    for seed in sorted(treatment.runs.keys() & control.runs.keys()):
        difference = _is_correct(treatment.runs[seed]) - _is_correct(control.runs[seed])
        rows.append(difference * relative_weights)
    table = np.array(rows)
    num_seeds, num_events = table.shape
    grand_mean = table.mean()
    seed_means = table.mean(axis=1, keepdims=True)
    event_means = table.mean(axis=0, keepdims=True)
    residuals = table - seed_means - event_means + grand_mean
    # Mean squares of seeds, of events and of what neither explains.
    free_seeds = num_seeds - 1
    free_events = num_events - 1
    seed_square = num_events * np.sum((seed_means - grand_mean) ** 2) / free_seeds
    event_square = num_seeds * np.sum((event_means - grand_mean) ** 2) / free_events
    residual_square = np.sum(residuals**2) / (free_seeds * free_events)
    # Variances of the grand mean; the residuals are in that of the seeds.
    num_cells = num_seeds * num_events
    by_seeds = seed_square / num_cells
    by_events = max(event_square - residual_square, 0.0) / num_cells
    seeds_half_width = stats.t.ppf(1 - level / 2, free_seeds) * math.sqrt(by_seeds)
    events_half_width = stats.t.ppf(1 - level / 2, free_events) * math.sqrt(by_events)
    half_width = math.hypot(seeds_half_width, events_half_width)
    return Effect(float(grand_mean), half_width)


def _is_correct(run: Run) -> Array:
    counts = run["counts"]
    packed = np.frombuffer(base64.b64decode(counts["events"]), dtype=np.uint8)
    bits = np.unpackbits(packed)
    return bits[: counts["num_events"]].astype(float)


def with_errors_of_times(study: str, effect: Effect, treatment: Side, control: Side) -> Effect:
    """An effect of times with the errors by which a check of their methods misses them."""
    treatment_delays = _log_delays(study, treatment)
    control_delays = _log_delays(study, control)
    # A slower treatment lowers the effect, a slower control raises it.
    lowest_move = min(control_delays) - max(treatment_delays)
    highest_move = max(control_delays) - min(treatment_delays)
    moves = [0.0, lowest_move, highest_move]
    if treatment.workers != control.workers:
        moves += [-delay for delay in treatment_delays]
        moves += control_delays
    return effect._replace(shifts=(min(moves), max(moves)))


def with_errors_of_validations(
    effect: Effect, treatment: Side, control: Side, accuracy: float
) -> Effect:
    """An effect of times to an accuracy with what no validation between two epochs shows."""
    seeds = treatment.runs.keys() & control.runs.keys()
    treatment_widths = [log_width(accuracy, treatment.runs[seed]) for seed in seeds]
    control_widths = [log_width(accuracy, control.runs[seed]) for seed in seeds]
    treatment_width = float(np.mean(treatment_widths))
    control_width = float(np.mean(control_widths))
    # A treatment that is there earlier raises the effect, an earlier control lowers it.
    low, high = effect.shifts
    return effect._replace(shifts=(low - control_width, high + treatment_width))


def log_width(accuracy: float, run: Run) -> float:
    """The logarithm of the time of a validation over that of the one before, or over a step."""
    latest = seconds_to(accuracy, run)
    epochs_before = 0
    while run["curves"]["val_accuracy"][epochs_before] < accuracy:
        epochs_before += 1
    earliest = sum(run["curves"]["seconds"][:epochs_before])
    if epochs_before == 0:
        earliest = run["numbers"]["seconds_per_batch"]
    return math.log(latest / earliest)


def _log_delays(study: str, one_side: Side) -> list[float]:
    """The logarithm of checked over simulated time of a step; 0 for one worker."""
    if one_side.workers == 1:
        return [0.0]
    step_times = [run["numbers"]["seconds_per_batch"] for run in one_side.runs.values()]
    simulated = np.mean(step_times)
    delays = []
    for check in stored(study)["checks"]:
        if check["method"] == one_side.method and not check["refused"]:
            # Ranks that send nothing have the training loop too, which is no error.
            gap = check["measured"] - check["overhead"] - check["simulated"]
            spread = check["spread"]
            delays.append(math.log1p((gap - spread) / simulated))
            delays.append(math.log1p((gap + spread) / simulated))
    if not delays:
        return [-math.inf, math.inf]
    return delays


def median(numbers: list[float]) -> float:
    return float(np.median(numbers))
