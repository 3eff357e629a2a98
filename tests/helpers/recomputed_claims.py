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
        has_values = all(run["values"].get(key, value) == value for key, value in varied.items())
        if run["method"] == method and has_values:
            by_rate.setdefault(run["values"].get(RATE), {})[run["seed"]] = run
    settings = content["study"]
    # The number of workers of the method comes before a varied one, and that of the study last.
    common_workers = varied.get("train.workers", settings["train"].get("workers", 1))
    workers = settings["methods"][method]["train"].get("workers", common_workers)
    if tuned_by is None:
        ((rate, runs),) = by_rate.items()
        return Side(method, workers, runs, rate)
    rate = max(by_rate, key=lambda rate: _goodness(by_rate[rate], tuned_by))
    rates = [rate for rate in by_rate if rate is not None]
    is_at_edge = rate in (min(rates), max(rates))
    return Side(method, workers, by_rate[rate], rate, is_at_edge)


def _goodness(runs: Mapping[int, Run], tuned_by: Number) -> tuple[int, float]:
    """How many seeds have a number, and their mean."""
    numbers = np.array([tuned_by(run) for run in runs.values()])
    finite = numbers[np.isfinite(numbers)]
    return len(finite), float(finite.mean()) if len(finite) else -math.inf


def lowest_val_loss(run: Run) -> float:
    losses = np.array(run["curves"].get("val_loss", [math.nan]))
    return float(losses[np.isfinite(losses)].min())


def val_accuracy_at_end(run: Run) -> float:
    accuracies = run["curves"].get("val_accuracy", [math.nan])
    return float(accuracies[-1])


def accuracy_on_test(run: Run) -> float:
    return float(run["counts"]["weighted_accuracy"]) if run["counts"] else math.nan


def seconds_to(accuracy: float, run: Run) -> float:
    """The time at the end of the first epoch with this validation accuracy."""
    elapsed = 0.0
    for seconds, reached in zip(
        run["curves"].get("seconds", []), run["curves"].get("val_accuracy", []), strict=True
    ):
        elapsed += float(seconds)
        if reached >= accuracy:
            return elapsed
    return math.inf


def effect_of_numbers(
    treatment: Side, control: Side, number: Number, level: float, *, sign: float = 1.0
) -> Effect:
    """The mean of differences by seed, with the interval of Student's t."""
    differences = []
    for seed in sorted(treatment.runs.keys() & control.runs.keys()):
        pair = treatment.runs[seed], control.runs[seed]
        if all(run["curves"] for run in pair):
            differences.append(sign * (number(pair[0]) - number(pair[1])))
    result = stats.ttest_1samp(differences, 0.0)
    low, high = result.confidence_interval(1 - level)
    return Effect(float(np.mean(differences)), float(high - low) / 2)


def effect_of_events(study: str, treatment: Side, control: Side, level: float) -> Effect:
    """The mean over seeds and test events, with the errors of both by an analysis of variance."""
    encoded = base64.b64decode(stored(study)["test_weights"])
    weights = np.frombuffer(encoded, dtype="<f4").astype(float)
    rows = []
    for seed in sorted(treatment.runs.keys() & control.runs.keys()):
        difference = _is_correct(treatment.runs[seed]) - _is_correct(control.runs[seed])
        rows.append(difference * weights / weights.mean())
    table = np.array(rows)
    num_seeds, num_events = table.shape
    grand_mean = table.mean()
    seed_means = table.mean(axis=1, keepdims=True)
    event_means = table.mean(axis=0, keepdims=True)
    residuals = table - seed_means - event_means + grand_mean
    # Mean squares of seeds, of events and of what neither explains.
    seed_square = num_events * np.sum((seed_means - grand_mean) ** 2) / (num_seeds - 1)
    event_square = num_seeds * np.sum((event_means - grand_mean) ** 2) / (num_events - 1)
    residual_square = np.sum(residuals**2) / ((num_seeds - 1) * (num_events - 1))
    # Variances of the grand mean; the residuals are in that of the seeds.
    num_cells = num_seeds * num_events
    by_seeds = seed_square / num_cells
    by_events = max(event_square - residual_square, 0.0) / num_cells
    quantiles = [stats.t.ppf(1 - level / 2, size - 1) for size in table.shape]
    half_width = math.hypot(math.sqrt(by_seeds) * quantiles[0], math.sqrt(by_events) * quantiles[1])
    return Effect(float(grand_mean), half_width)


def _is_correct(run: Run) -> Array:
    counts = run["counts"]
    bits = np.unpackbits(np.frombuffer(base64.b64decode(counts["events"]), dtype=np.uint8))
    return bits[: counts["num_events"]].astype(float)


def with_errors_of_times(study: str, effect: Effect, treatment: Side, control: Side) -> Effect:
    """An effect of times with the errors by which a check of their methods misses them."""
    slowest, fastest = [], []
    for one_side in (treatment, control):
        delays = _log_delays(study, one_side)
        slowest.append(max(delays))
        fastest.append(min(delays))
    # A slower treatment lowers the effect, a slower control raises it.
    moves = [0.0, fastest[1] - slowest[0], slowest[1] - fastest[0]]
    if treatment.workers != control.workers:
        moves += [-slowest[0], -fastest[0], fastest[1], slowest[1]]
    return effect._replace(shifts=(min(moves), max(moves)))


def with_errors_of_validations(
    effect: Effect, treatment: Side, control: Side, accuracy: float
) -> Effect:
    """An effect of times to an accuracy with what no validation between two epochs shows."""
    seeds = treatment.runs.keys() & control.runs.keys()
    treatment_width, control_width = [
        float(np.mean([log_width(accuracy, one_side.runs[seed]) for seed in seeds]))
        for one_side in (treatment, control)
    ]
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
    simulated = np.mean([run["numbers"]["seconds_per_batch"] for run in one_side.runs.values()])
    delays = []
    for check in stored(study)["checks"]:
        if check["method"] == one_side.method and not check["refused"]:
            # Ranks that send nothing have the training loop too, which is no error.
            gap = check["measured"] - check["overhead"] - check["simulated"]
            ends = gap - check["spread"], gap + check["spread"]
            delays += [math.log((simulated + end) / simulated) for end in ends]
    return delays or [-math.inf, math.inf]


def median(numbers: list[float]) -> float:
    return float(np.median(numbers))
