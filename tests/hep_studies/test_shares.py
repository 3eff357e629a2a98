"""Intervals of shares: what they cover, and that they hold only possible numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from example_study import example_result, example_run, example_study
from judged_examples import BETTER, judge_first
from scipy.special import ndtri

from hep_studies.judging import JudgedClaim
from hep_studies.run_result import RunResult
from hep_studies.shares import SharePair, share_interval
from hep_studies.study_result import EventsDescription
from hep_studies.verdicts import LEVEL, OPEN, Difference, Verdict


def interval_of(
    first: Sequence[float], second: Sequence[float], *, is_outcome: bool
) -> tuple[float, float]:
    """The interval of the difference of two shares, of one number per seed."""
    differences = np.subtract(first, second)
    numbers = pd.Series(first, dtype=float), pd.Series(second, dtype=float)
    pair = SharePair.from_numbers(*numbers, is_outcome=is_outcome)
    difference = Difference.from_seeds(differences)._replace(shares=pair)
    return difference.interval(LEVEL)


@pytest.mark.parametrize("num_runs", [5, 26])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9, 0.99])
def test_the_exact_interval_of_a_share_covers_it(num_runs: int, share: float) -> None:
    rng = np.random.default_rng(num_runs)
    intervals = [share_interval(number, num_runs, LEVEL) for number in range(num_runs + 1)]

    num_missed = 0
    for draw in rng.binomial(num_runs, share, size=4000):
        interval = intervals[draw]
        num_missed += not interval.low <= share <= interval.high

    # Three standard deviations of 4,000 draws are 0.01.
    assert num_missed / 4000 < LEVEL + 0.01


@pytest.mark.parametrize("correlation", [0.0, 0.9])
@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.9, 0.5), (0.99, 0.01), (0.2, 0.1)], ids=str)
def test_the_interval_of_a_difference_of_outcomes_covers_it(
    shares: tuple[float, float], correlation: float
) -> None:
    rng = np.random.default_rng(1)
    first_share, second_share = shares
    truth = first_share - second_share
    num_missed = 0
    for _ in range(400):
        common, independent = rng.normal(size=(2, 26))
        correlated = correlation * common + np.sqrt(1 - correlation**2) * independent
        first = (common < ndtri(first_share)).astype(float)
        second = (correlated < ndtri(second_share)).astype(float)
        low, high = interval_of(first, second, is_outcome=True)
        num_missed += not low <= truth <= high

    # Three standard deviations of 400 draws are 0.033.
    assert num_missed / 400 < LEVEL + 0.033


@pytest.mark.parametrize("num_runs", [2, 26])
def test_runs_that_all_differ_leave_room_for_some_that_do_not(num_runs: int) -> None:
    low, high = interval_of([1] * num_runs, [0] * num_runs, is_outcome=True)

    lowest_share, _ = share_interval(num_runs, num_runs, LEVEL)
    half_width = np.sqrt(2) * (1 - lowest_share)
    assert high == 1.0
    assert low == pytest.approx(1 - half_width)


def test_shares_of_time_differ_by_no_more_than_is_possible() -> None:
    first = [0.82, 0.68, 0.94]
    second = [0.28, 0.24, 0.28]

    low, high = interval_of(first, second, is_outcome=False)

    symmetric = Difference.from_seeds(np.subtract(first, second))
    _, symmetric_high = symmetric.interval(0.0125)
    assert symmetric_high > 0.9
    assert low > 0
    # The higher share is 1 at most.
    assert high < 1 - np.mean(second) + 0.1


def test_shares_far_from_their_ends_have_the_interval_of_paired_differences() -> None:
    rng = np.random.default_rng(2)
    first, second = rng.uniform(0.4, 0.6, size=(2, 8))

    interval = interval_of(first, second, is_outcome=False)

    paired = Difference.from_seeds(first - second)
    assert interval == pytest.approx(paired.interval(LEVEL))


def run_that_diverges(method: str, seed: int, *, diverges: bool) -> RunResult:
    run = example_run(method, seed)
    last_loss = 1.1 if diverges else 0.5
    curves = {**run.curves, "train_loss": [1.0, last_loss]}
    numbers = {**run.numbers, "guess_loss": 1.1}
    return replace(run, curves=curves, numbers=numbers)


@pytest.mark.parametrize(
    ("num_diverged", "verdict"), [(26, Verdict.CONFIRMED), (2, Verdict.UNDECIDED)]
)
def test_a_claim_about_runs_that_diverge(num_diverged: int, verdict: Verdict) -> None:
    runs = [example_run("sgd", seed) for seed in range(26)]
    for seed in range(26):
        runs.append(run_that_diverges("ad-psgd", seed, diverges=False))
        runs.append(run_that_diverges("ar-sgd", seed, diverges=seed < num_diverged))

    result = example_result(example_study(), runs)

    judged = judge_first(result, {**BETTER, "measure": "diverged"})

    assert judged.verdict is verdict
    (comparison,) = judged.comparisons
    low, high = comparison.difference.interval(comparison.level)
    share = num_diverged / 26
    assert -1 <= low < share
    assert share < high <= 1 or share == high == 1


#: Of Student's t, for three seeds and 95 %.
STUDENT_QUANTILE = 4.303
NUM_VALIDATED = 60
NUM_TRAINED = 240
#: Number of events of each split: those of two classes, and of both.
EVENT_COUNTS = {
    "train": [120, 120, NUM_TRAINED],
    "val": [30, 30, NUM_VALIDATED],
    "test": [50, 50, 100],
}


def judged_lead_of_one_event(measure: str, curve: str, num_events: int) -> JudgedClaim:
    """AD-PSGD is better by the same event with each of three seeds."""
    runs = []
    for seed in (1, 2, 3):
        for method, num_better in (("ar-sgd", 0), ("ad-psgd", 1)):
            run = example_run(method, seed)
            num_correct = num_events // 2 + 2 * seed + num_better
            accuracy = num_correct / num_events
            curves = {**run.curves, curve: [accuracy] * 6}
            numbers = {**run.numbers, "worker_val_accuracy": accuracy}
            runs.append(replace(run, curves=curves, numbers=numbers))
    result = example_result(example_study(), runs)
    events = EventsDescription(
        version="0001-abcdef01",
        classes=["QCD", "ttbar"],
        sample_note="technical sample",
        counts=EVENT_COUNTS,
    )
    result = replace(result, events=events)
    return judge_first(result, {**BETTER, "measure": measure})


@pytest.mark.parametrize(
    ("measure", "curve", "num_events"),
    [
        ("val_accuracy", "val_accuracy", NUM_VALIDATED),
        ("final_val_accuracy", "val_accuracy", NUM_VALIDATED),
        ("mean_val_accuracy", "val_accuracy", NUM_VALIDATED),
        ("worker_val_accuracy", "val_accuracy", NUM_VALIDATED),
        ("train_accuracy", "train_accuracy", NUM_TRAINED),
        ("mean_train_accuracy", "train_accuracy", NUM_TRAINED),
    ],
)
def test_a_difference_of_accuracies_is_known_no_better_than_to_one_event(
    measure: str, curve: str, num_events: int
) -> None:
    judged = judged_lead_of_one_event(measure, curve, num_events)

    assert judged.verdict in OPEN
    (comparison,) = judged.comparisons
    low, high = comparison.difference.interval(LEVEL)
    one_event = 1 / num_events
    half_width = STUDENT_QUANTILE * one_event / np.sqrt(3)
    lead = comparison.difference.mean
    assert lead - low == pytest.approx(half_width, rel=1e-3)
    assert high - lead == pytest.approx(half_width, rel=1e-3)


@pytest.mark.parametrize("share", [0.4, 1.0])
def test_shares_that_always_differ_by_the_same_have_an_interval(share: float) -> None:
    """Shares of time have no events, and differ at least in the last digits."""
    first = [share] * 3
    second = [share - 0.2] * 3

    low, high = interval_of(first, second, is_outcome=False)

    half_width = STUDENT_QUANTILE * 1e-6 / np.sqrt(3)
    assert low < 0.2 < high
    assert high - low == pytest.approx(2 * half_width, rel=1e-3)


@pytest.mark.parametrize("num_runs", [2, 26])
def test_outcomes_that_agree_at_all_seeds_need_not_agree_at_others(num_runs: int) -> None:
    """As Newcombe (1998) corrects his method 10: half of a seed is taken from what agrees."""
    outcomes = [1, 0] * (num_runs // 2)

    low, high = interval_of(outcomes, outcomes, is_outcome=True)

    num_diverged = num_runs // 2
    excess = num_diverged**2 - num_runs / 2
    correlation = excess / num_diverged**2
    share = share_interval(num_diverged, num_runs, LEVEL)
    half_width = (share.high - 0.5) * np.sqrt(2 * (1 - correlation))
    assert low == pytest.approx(-half_width)
    assert high == pytest.approx(half_width)
    assert half_width > 0.05
