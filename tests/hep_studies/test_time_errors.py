"""Errors of times: a time to an accuracy is known to lie between two validations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from example_study import example_check, example_result, example_run, example_study
from judged_examples import BETTER, judge_first

from hep_studies.comparisons import Comparison
from hep_studies.measures import measure_of
from hep_studies.run_result import RunResult
from hep_studies.study_result import StudyResult
from hep_studies.verdicts import Verdict

GOAL = "seconds_to=0.85"
SOONER = {**BETTER, "measure": GOAL}
STEP_SECONDS = 0.01
METHODS = ("ad-psgd", "ar-sgd")


def run_that_reaches(method: str, seed: int, reached_at: float, epoch_seconds: float) -> RunResult:
    """A run of 6 epochs that is at the goal from a time on [s]."""
    ends = epoch_seconds * np.arange(1, 7)
    accuracies = np.where(ends >= reached_at, 0.9, 0.5).tolist()
    run = example_run(method, seed)
    curves = {**run.curves, "val_accuracy": accuracies, "seconds": [epoch_seconds] * 6}
    numbers = {**run.numbers, "seconds_per_batch": STEP_SECONDS}
    return replace(run, curves=curves, numbers=numbers)


def result_of_goals(
    reached_at: dict[str, Sequence[float]],
    epoch_seconds: dict[str, float],
    checks: Sequence[Any] = (),
    **study: Any,
) -> StudyResult:
    """Runs of two methods that are at the goal from given times on, one for each seed [s]."""
    runs = [example_run("sgd", 1)]
    for method, times in reached_at.items():
        for seed, time in enumerate(times, 1):
            runs.append(run_that_reaches(method, seed, time, epoch_seconds[method]))
    exact = [example_check(method, 1e-3, 1e-3) for method in METHODS]
    return example_result(example_study(**study), runs, checks=checks or exact)


def first_comparison(result: StudyResult, claim: dict[str, Any]) -> Comparison:
    return judge_first(result, claim).comparisons[0]


@pytest.mark.parametrize("seed", range(20))
def test_a_time_to_an_accuracy_lies_between_two_validations(seed: int) -> None:
    generator = np.random.default_rng(seed)
    epoch_seconds = generator.uniform(0.02, 2.0)
    reached_at = generator.uniform(STEP_SECONDS, 6 * epoch_seconds)
    measure = measure_of(GOAL)
    assert measure.compute is not None
    assert measure.lower_bound is not None

    run = run_that_reaches("ad-psgd", 1, reached_at, epoch_seconds)

    latest = measure.compute(run, run)
    earliest = measure.lower_bound(run)
    assert earliest < reached_at <= latest
    # No validation is between them.
    assert latest - earliest <= epoch_seconds * (1 + 1e-9)


@pytest.mark.parametrize(
    ("epoch_seconds", "reached_at", "bound"),
    # At the second validation; at the first, after many steps, and in an epoch of a step.
    [(0.2, 0.3, 0.2), (0.4, 0.3, STEP_SECONDS), (0.005, 0.003, 0.005)],
)
def test_no_step_reaches_an_accuracy_before_its_end(
    epoch_seconds: float, reached_at: float, bound: float
) -> None:
    measure = measure_of(GOAL)
    assert measure.lower_bound is not None

    run = run_that_reaches("ad-psgd", 1, reached_at, epoch_seconds)

    assert measure.lower_bound(run) == pytest.approx(bound)


def corners(result: StudyResult, delays: dict[str, Sequence[float]]) -> list[float]:
    """The mean logarithm of AR-SGD's over AD-PSGD's time, with any end of every seed's interval.

    `delays`: factors of the times of a method, together for all methods or 1 for all.
    """
    measure = measure_of(GOAL)
    assert measure.compute is not None
    assert measure.lower_bound is not None
    means: dict[str, list[float]] = {}
    for method in METHODS:
        runs = [run for run in result.runs if run.method == method]
        ends = [(measure.compute(run, run), measure.lower_bound(run)) for run in runs]
        choices = itertools.product(*ends)
        means[method] = [float(np.log(choice).mean()) for choice in choices]
    pairs_of_delays = [(1.0, 1.0), *itertools.product(delays["ad-psgd"], delays["ar-sgd"])]
    differences = []
    for (treatment, control), (delay, control_delay) in itertools.product(
        itertools.product(means["ad-psgd"], means["ar-sgd"]), pairs_of_delays
    ):
        differences.append(control + math.log(control_delay) - treatment - math.log(delay))
    return differences


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("gaps", [(0.0, 0.0), (0.002, 0.005)])
def test_the_interval_reaches_over_every_time_that_is_possible(
    seed: int, gaps: tuple[float, float]
) -> None:
    """A slow reference: all ends of all seeds, with and without the delays of the checks."""
    generator = np.random.default_rng(seed)
    epoch_seconds = dict(zip(METHODS, generator.uniform(0.1, 1.0, 2), strict=True))
    reached_at = {
        method: generator.uniform(STEP_SECONDS, 6 * epoch_seconds[method], 4) for method in METHODS
    }
    checks, delays = [], {}
    for method, gap in zip(METHODS, gaps, strict=True):
        spread = 0.2 * gap
        checks.append(replace(example_check(method, 0.1 + gap, 0.1), spread=spread))
        delays[method] = [1 + (gap + sign * spread) / STEP_SECONDS for sign in (-1, 1)]
    result = result_of_goals(reached_at, epoch_seconds, checks)

    difference = first_comparison(result, SOONER).difference

    possible = corners(result, delays)
    lowest_shift, highest_shift = difference.shifts
    assert difference.mean + lowest_shift == pytest.approx(min(possible))
    assert difference.mean + highest_shift == pytest.approx(max(possible))


def test_a_time_that_grows_has_its_error_the_other_way_round() -> None:
    """Of 2 workers the goal is reached in the first of long epochs, of 4 in the second."""
    runs = [example_run("sgd", 1)]
    for workers, reached_at in ((2, 0.5), (4, 1.5)):
        for seed in (1, 2, 3):
            run = run_that_reaches("ad-psgd", seed, reached_at, 1.0)
            runs.append(replace(run, values={"train.workers": workers}))
    study = example_study(vary={"train.workers": [2, 4]})
    exact = [example_check("ad-psgd", 1e-3, 1e-3)]
    result = example_result(study, runs, checks=exact)
    claim = {"grows": "ad-psgd", "over": "train.workers", "measure": GOAL}

    difference = first_comparison(result, claim).difference

    assert difference.mean == pytest.approx(math.log(2))
    # Between 1 s and 2 s with 4 workers, over 10 ms to 1 s with 2.
    lowest_shift, highest_shift = difference.shifts
    assert lowest_shift == pytest.approx(-math.log(2))
    assert highest_shift == pytest.approx(math.log(100))


def test_other_times_end_with_what_they_measure() -> None:
    reached_at = {"ad-psgd": [0.5] * 3, "ar-sgd": [1.5] * 3}
    result = result_of_goals(reached_at, {"ad-psgd": 1.0, "ar-sgd": 1.0})

    difference = first_comparison(result, {**BETTER, "measure": "seconds"}).difference

    assert difference.shifts == (0.0, 0.0)


#: AD-PSGD is at the goal after 0.2 to 0.3 s, AR-SGD after 0.8 to 1 s, within its first epoch.
REACHED_AT = {"ad-psgd": np.linspace(0.2, 0.3, 6), "ar-sgd": np.linspace(0.8, 1.0, 6)}


@pytest.mark.parametrize(("num_seeds", "execution"), [(3, "simulate"), (6, "simulate"), (6, "mpi")])
def test_a_goal_reached_before_the_first_validation_gives_no_ratio(
    num_seeds: int, execution: str
) -> None:
    reached_at = {method: times[:num_seeds] for method, times in REACHED_AT.items()}
    epochs = {"ad-psgd": 0.1, "ar-sgd": 1.0}
    result = result_of_goals(reached_at, epochs, execution=execution)

    judged = judge_first(result, SOONER)

    assert judged.verdict is Verdict.NOT_DECIDABLE
    assert judged.reason == "validated too seldom for times to an accuracy"
    assert judged.would_decide == "validating more often than once an epoch"


def test_the_same_runs_with_more_validations_give_the_ratio() -> None:
    result = result_of_goals(REACHED_AT, {"ad-psgd": 0.1, "ar-sgd": 0.2})

    judged = judge_first(result, SOONER)

    assert judged.verdict is Verdict.CONFIRMED


def test_times_of_zero_are_an_obstacle_and_no_error() -> None:
    reached_at = {"ad-psgd": [0.0] * 3, "ar-sgd": [1.5] * 3}
    result = result_of_goals(reached_at, {"ad-psgd": 0.0, "ar-sgd": 1.0})

    assert judge_first(result, SOONER).reason == "a ratio to 0 says nothing, AD-PSGD"


def test_an_unknown_error_of_simulated_times_needs_a_check_first() -> None:
    far_checks = [
        replace(example_check(method, 1e-3, 1e-3), step_seconds=1.0) for method in METHODS
    ]
    coarse = result_of_goals(REACHED_AT, {"ad-psgd": 0.1, "ar-sgd": 1.0}, far_checks)
    fine = result_of_goals(REACHED_AT, {"ad-psgd": 0.1, "ar-sgd": 0.2}, far_checks)

    both = "a closer check of the simulated times and validating more often than once an epoch"
    assert judge_first(coarse, SOONER).would_decide == both
    assert judge_first(fine, SOONER).would_decide == "a closer check of the simulated times"


def test_intervals_hold_the_ratio_of_times_that_no_validation_shows() -> None:
    """Times of a method spread by a factor; one worker's epoch is 16 times as long as the other."""
    generator = np.random.default_rng(1)
    log_times = {"ad-psgd": math.log(0.06), "ar-sgd": math.log(0.4)}
    epochs = {"ad-psgd": 0.05, "ar-sgd": 0.8}
    ratio = log_times["ar-sgd"] - log_times["ad-psgd"]
    num_covered, num_covered_without = 0, 0
    for _ in range(40):
        reached_at = {
            method: np.exp(generator.normal(mean, 0.2, 8)) for method, mean in log_times.items()
        }
        comparison = first_comparison(result_of_goals(reached_at, epochs), SOONER)
        low, high = comparison.difference.interval()
        num_covered += low <= ratio <= high
        low, high = comparison.without_errors("of_validations").difference.interval()
        num_covered_without += low <= ratio <= high

    assert num_covered >= 38
    assert num_covered_without < 20
