"""Verdicts on claims about times, and what the checks of simulated times do to them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from example_study import example_check, example_result, example_run, example_study
from judged_examples import ACCURACIES, BETTER, SEEDS, judge_first

from hep_studies.claim_texts import effect_of_claim
from hep_studies.study_result import StudyResult
from hep_studies.verdicts import Verdict

WORKERS = "train.workers"
SHORTER_STEP = {**BETTER, "measure": "seconds_per_batch"}
EXACT_TIMES = [example_check(method, 1e-3, 1e-3) for method in ("ar-sgd", "ad-psgd")]
Seconds = Callable[[int], float]


def result_of_times(seconds_of_method: dict[str, Seconds]) -> StudyResult:
    """Runs with given seconds per epoch, by method and number of workers."""
    runs = [example_run("sgd", seed, seconds=0.1) for seed in SEEDS]
    for seed in SEEDS:
        for method, seconds in seconds_of_method.items():
            for workers in (2, 4, 8):
                spread = 1 + 0.002 * (seed % 3)
                values = {WORKERS: workers}
                run = example_run(method, seed, values=values, seconds=seconds(workers) * spread)
                runs.append(run)
    study = example_study(vary={WORKERS: [2, 4, 8]}, times_only=4)
    return example_result(study, runs, checks=EXACT_TIMES)


#: The time of AR-SGD grows with the number of workers.
TIMES = result_of_times({"ar-sgd": lambda workers: 0.1 * workers, "ad-psgd": lambda _: 0.1})


def with_workers(number: int, method: str) -> dict[str, Any]:
    return {"method": method, WORKERS: number}


OVER_WORKERS = {"over": WORKERS, "measure": "seconds_per_batch"}


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ({"flat": "ad-psgd", **OVER_WORKERS}, Verdict.EQUIVALENT),
        ({"flat": "ar-sgd", **OVER_WORKERS}, Verdict.CONTRADICTED),
        ({"grows": "ar-sgd", **OVER_WORKERS}, Verdict.CONFIRMED),
        ({"grows": "ar-sgd", **OVER_WORKERS, "size": 8}, Verdict.SMALLER),
        ({"grows": "ad-psgd", **OVER_WORKERS}, Verdict.SMALLER),
        # Every number of workers is compared: a shorter time is better, and a larger speed-up.
        (SHORTER_STEP, Verdict.CONFIRMED),
        ({**SHORTER_STEP, "size": 3.0}, Verdict.SMALLER),
        # AD-PSGD takes half, a quarter or an eighth of the time.
        ({**SHORTER_STEP, "size": 1.5, "size_is": "about"}, Verdict.LARGER),
        ({**SHORTER_STEP, "size": 2.0, "size_is": "about"}, Verdict.CONFIRMED),
        (
            {
                **BETTER,
                "better": with_workers(8, "ad-psgd"),
                "measure": "speed_up",
                "size": 7,
            },
            Verdict.CONFIRMED,
        ),
        (
            {
                "better": with_workers(2, "ar-sgd"),
                "control": with_workers(8, "ar-sgd"),
                "measure": "seconds",
            },
            Verdict.CONFIRMED,
        ),
    ],
)
def test_claims_about_times_compare_ratios(claim: dict[str, Any], verdict: Verdict) -> None:
    assert judge_first(TIMES, claim).verdict is verdict


def test_only_cells_with_the_same_number_of_workers_are_compared() -> None:
    judged = judge_first(TIMES, {**BETTER, "measure": "seconds"})

    for comparison, workers in zip(judged.comparisons, (2, 4, 8), strict=True):
        assert comparison.treatment.plain_values == {WORKERS: workers}
        assert comparison.control.plain_values == {WORKERS: workers}


def test_a_claim_depends_on_its_weakest_comparison() -> None:
    judged = judge_first(TIMES, {**BETTER, "measure": "seconds"})

    # With two workers, AD-PSGD takes half the time.
    assert judged.decisive == judged.comparisons[0]
    assert judged.comparisons[0].difference.mean == pytest.approx(math.log(2), abs=1e-6)


@pytest.mark.parametrize(
    ("share", "verdict"),
    [
        # Of all such settings the claim holds in 9 % to 99.2 %, since it does so in 2 of 3 here.
        (1.0, Verdict.CONTRADICTED),
        (0.995, Verdict.CONTRADICTED),
        (0.7, Verdict.NOT_DECIDABLE),
        (0.6, Verdict.NOT_DECIDABLE),
        (0.09, Verdict.CONFIRMED),
    ],
)
def test_a_few_settings_decide_no_share_of_many(share: float, verdict: Verdict) -> None:
    seconds: dict[str, Seconds] = {
        "ar-sgd": lambda _: 0.1,
        "ad-psgd": lambda workers: 0.05 if workers > 2 else 0.2,
    }
    claim = {**SHORTER_STEP, "share_of_cells": share}

    judged = judge_first(result_of_times(seconds), claim)

    assert judged.verdict is verdict
    # The weakest comparison decides a claim about all settings; a share has no such one.
    text = "x0.500 (x0.500..x0.500)" if share == 1 else "better in 2 of 3 settings (x0.500..x2.00)"
    assert effect_of_claim(judged) == text
    if verdict is Verdict.NOT_DECIDABLE:
        assert judged.would_decide == "more settings than these 3"


def checks_with_gaps(ar_sgd: float, ad_psgd: float) -> list[Any]:
    """Checks in which the steps take longer than simulated [s]."""
    return [
        example_check("ar-sgd", 1.0 + ar_sgd, 1.0),
        example_check("ad-psgd", 1.0 + ad_psgd, 1.0),
    ]


#: AD-PSGD takes half the time with 2 workers, and an eighth with 16. The shortest step takes 25 ms.
CHECKS = [
    (checks_with_gaps(0.0, 0.0), Verdict.CONFIRMED),
    # Half a millisecond would be half of the checked step of 1 ms.
    (checks_with_gaps(5e-4, 5e-4), Verdict.CONFIRMED),
    (checks_with_gaps(0.0, 5e-4), Verdict.CONFIRMED),
    (checks_with_gaps(0.0, 0.3), Verdict.NOT_DECIDABLE),
    # The slower method is slower still: nothing speaks against the claim.
    (checks_with_gaps(0.3, 0.0), Verdict.CONFIRMED),
    ([], Verdict.NOT_DECIDABLE),
    # Checks of another step say nothing.
    ([replace(check, step_seconds=2e-3) for check in EXACT_TIMES], Verdict.NOT_DECIDABLE),
]


@pytest.mark.parametrize(("checks", "verdict"), CHECKS)
def test_the_gap_of_a_check_counts_in_seconds_of_each_step(
    checks: list[Any], verdict: Verdict
) -> None:
    judged = judge_first(replace(TIMES, checks=checks), SHORTER_STEP)

    assert judged.verdict is verdict
    assert ("times" in judged.reason) == (verdict is Verdict.NOT_DECIDABLE)


def test_measured_times_need_no_check() -> None:
    by_mpi = TIMES.study.model_copy(update={"execution": "mpi", "times_only": None})

    judged = judge_first(replace(TIMES, checks=[], study=by_mpi), SHORTER_STEP)

    assert judged.verdict is Verdict.CONFIRMED


def test_the_spread_of_a_check_widens_the_interval() -> None:
    """Steps of 50 ms take 5 ms longer than simulated, with a spread of 1 ms; AR-SGD is exact."""
    checks = checks_with_gaps(0.0, 0.005)
    checks[1] = replace(checks[1], spread=0.001)
    times = result_of_times({"ar-sgd": lambda _: 0.5, "ad-psgd": lambda _: 0.5})

    judged = judge_first(replace(times, checks=checks), SHORTER_STEP)

    for comparison in judged.comparisons:
        assert comparison.difference.shifts == pytest.approx((-math.log(1.12), 0.0), rel=0.01)


def test_a_refused_check_decides_nothing_and_says_why() -> None:
    busy = "the machine was busy, load 1.4 of 2 cores"
    checks = [EXACT_TIMES[0], replace(EXACT_TIMES[1], refused=busy)]

    judged = judge_first(replace(TIMES, checks=checks), SHORTER_STEP)

    assert judged.verdict is Verdict.NOT_DECIDABLE
    assert judged.reason == f"times not checked: {busy}"


def test_the_training_loop_delays_no_method() -> None:
    """Its time is a part of the computing time of a step, which the study states."""
    slower = [replace(check, measured=check.measured + 5.0) for check in EXACT_TIMES]
    checks = [replace(check, overhead=5.0) for check in slower]

    exact, delayed, judged = [
        judge_first(replace(TIMES, checks=variant), SHORTER_STEP)
        for variant in (EXACT_TIMES, slower, checks)
    ]

    assert delayed.verdict is not exact.verdict
    assert judged.verdict is exact.verdict


def test_another_measure_needs_no_check() -> None:
    checks = [replace(check, refused="the machine was busy") for check in EXACT_TIMES]

    judged = judge_first(replace(ACCURACIES, checks=checks), BETTER)

    assert judged.verdict is Verdict.CONFIRMED


@pytest.mark.parametrize(
    ("workers", "verdict", "shifts"),
    [
        (2, Verdict.CONFIRMED, (math.log(2 / 3), 0.0)),
        (8, Verdict.NOT_DECIDABLE, (math.log(1 / 3), math.log(2))),
    ],
)
def test_each_cell_counts_alone_if_their_numbers_of_workers_differ(
    workers: int, verdict: Verdict, shifts: tuple[float, float]
) -> None:
    """Steps of 10 ms and of 5 ms take 10 ms longer than simulated: twice and three times as long."""
    times = result_of_times({"ar-sgd": lambda _: 0.1, "ad-psgd": lambda _: 0.05})
    checks = [example_check(method, 0.11, 0.1) for method in ("ar-sgd", "ad-psgd")]
    claim = {
        **SHORTER_STEP,
        "better": with_workers(workers, "ad-psgd"),
        "control": with_workers(2, "ar-sgd"),
    }

    judged = judge_first(replace(times, checks=checks), claim)

    assert judged.verdict is verdict
    assert judged.comparisons[0].difference.shifts == pytest.approx(shifts, abs=5e-3)


@pytest.mark.parametrize(
    ("checks", "verdict"),
    [
        (EXACT_TIMES[:1], Verdict.NOT_DECIDABLE),
        (checks_with_gaps(0.0, 0.0), Verdict.CONFIRMED),
        (checks_with_gaps(0.0, 1.0), Verdict.NOT_DECIDABLE),
    ],
)
def test_a_share_of_the_time_needs_a_check_of_the_times(
    checks: list[Any], verdict: Verdict
) -> None:
    shares = {"ar-sgd": 0.5, "ad-psgd": 0.9, "sgd": 1.0}
    runs = []
    for method, share in shares.items():
        for seed in SEEDS:
            run = example_run(method, seed)
            numbers = {**run.numbers, "utilisation": share + 0.001 * seed}
            runs.append(replace(run, numbers=numbers))
    result = example_result(example_study(), runs, checks=checks)

    assert judge_first(result, {**BETTER, "measure": "utilisation"}).verdict is verdict


@pytest.mark.parametrize(
    ("measure", "verdict"),
    [
        ("seconds_per_batch", Verdict.CONFIRMED),
        ("temporal_efficiency", Verdict.NOT_DECIDABLE),
    ],
)
def test_a_demonstration_may_decide_about_times(measure: str, verdict: Verdict) -> None:
    judged = judge_first(TIMES, {**BETTER, "measure": measure}, demonstration="359 digits.")

    assert judged.verdict is verdict
