"""What would decide an open claim: seeds, test events, hours, or checked times."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from example_study import EQUAL_ACCURACY, example_result, example_run, example_study
from numpy.typing import NDArray

from hep_studies.cells import Cell
from hep_studies.comparisons import Comparison
from hep_studies.judging import JudgedClaim, judge
from hep_studies.needed_data import NeededData, needed_data
from hep_studies.run_result import Counts, RunResult
from hep_studies.study_sections import Claim
from hep_studies.verdicts import OPEN, Difference, Verdict

IN_LOSS = {"better": "ad-psgd", "control": "ar-sgd", "measure": "val_loss"}


def loss_runs(
    differences: Sequence[float], *, wall_seconds: float | None = None
) -> list[RunResult]:
    """Runs in which AD-PSGD has the loss of AR-SGD less a difference for each seed."""
    runs = []
    for seed, difference in enumerate(differences, 1):
        for method, loss in (("ar-sgd", 0.5), ("ad-psgd", 0.5 - difference)):
            run = example_run(method, seed)
            curves = {**run.curves, "val_loss": [loss] * 6}
            runs.append(replace(run, curves=curves, wall_seconds=wall_seconds))
    return runs


def judged_claim(runs: list[RunResult], claim: dict[str, Any], **changes: Any) -> JudgedClaim:
    """A claim judged by runs; `changes`: of the result or, if it is no field of it, of the study."""
    row = {"says": "x", **EQUAL_ACCURACY, **claim}
    of_result = {key: changes.pop(key) for key in ("checks", "form") if key in changes}
    result = example_result(example_study(claims=[row], **changes), runs)
    return judge(replace(result, **of_result))[0]


EQUAL_IN_LOSS = {
    "equivalent": "ad-psgd",
    "control": "ar-sgd",
    "measure": "val_loss",
    "margin": 0.003,
    "because": "it is so",
}


def seed_differences(mean: float, *, num_seeds: int = 6) -> NDArray[np.float64]:
    """Differences of the loss with this mean, half of them 0.004 below it and half above it."""
    pattern = np.array([-1.0, 1.0])
    return mean + 0.004 * np.tile(pattern, num_seeds // 2)


def number_before(text: str, unit: str) -> int:
    """The number that stands before a unit in a text."""
    (number,) = re.findall(rf"([\d,]+) {unit}", text)
    return int(number.replace(",", ""))


def decided_share(comparison: Comparison, *, num_seeds: int, num_events: int = 0) -> float:
    """The share of simulated studies that decide a comparison.

    Its mean and variances are the true ones. Seeds and events scatter around them.
    """
    rng = np.random.default_rng(8)
    truth = comparison.difference
    num_decided = 0
    num_studies = 1000
    for _ in range(num_studies):
        mean, seed_variance = draw_mean_and_variance(rng, truth.seed_variance, num_seeds)
        event_mean, event_variance = 0.0, 0.0
        if num_events:
            event_mean, event_variance = draw_mean_and_variance(
                rng, truth.event_variance, num_events
            )
        difference = truth._replace(
            mean=truth.mean + mean + event_mean,
            seed_variance=seed_variance,
            num_seeds=num_seeds,
            event_variance=event_variance,
            num_events=num_events,
        )
        num_decided += comparison._replace(difference=difference).verdict not in OPEN
    return num_decided / num_studies


def draw_mean_and_variance(
    rng: np.random.Generator, variance: float, size: int
) -> tuple[float, float]:
    """The mean and the variance of a sample from a normal distribution around 0."""
    mean = rng.normal(0, math.sqrt(variance / size))
    return mean, variance * rng.chisquare(size - 1) / (size - 1)


@pytest.mark.parametrize(
    ("claim", "mean", "num_seeds", "one_step_fewer"),
    [
        (IN_LOSS, 0.0045, 30, 20),
        (IN_LOSS, 0.0, 40, 30),
        # It may miss the margin on either side, so that 0.84 standard errors do not suffice.
        (EQUAL_IN_LOSS, 0.0, 30, 20),
        (EQUAL_IN_LOSS, 0.001, 40, 30),
    ],
)
def test_the_needed_seeds_decide_a_claim_in_four_of_five_studies(
    claim: dict[str, Any], mean: float, num_seeds: int, one_step_fewer: int
) -> None:
    judged = judged_claim(loss_runs(seed_differences(mean)), claim)

    assert judged.verdict is Verdict.UNDECIDED
    assert judged.would_decide.startswith(f"about {num_seeds} seeds (now 6; ")
    (comparison,) = judged.comparisons
    assert decided_share(comparison, num_seeds=num_seeds) > 0.78
    assert decided_share(comparison, num_seeds=one_step_fewer) < 0.8


def compared_accuracies(difference: Difference) -> Comparison:
    """A comparison of test accuracies with a difference, for a claim that AD-PSGD is better."""
    cells = (Cell("ad-psgd"), Cell("ar-sgd"))
    claim = {"says": "x", **EQUAL_ACCURACY, "better": "ad-psgd", "control": "ar-sgd"}
    num_seeds = difference.num_seeds
    return Comparison(
        *cells,
        Claim.model_validate(claim),
        difference,
        num_pairs=num_seeds,
        num_seeds=num_seeds,
        obstacle="",
        is_at_edge=False,
    )


@pytest.mark.parametrize(
    ("mean", "seed_variance", "event_variance"),
    [(0.0055, 1e-4, 0.01), (0.004, 1e-5, 0.01), (-0.002, 5e-5, 0.005)],
)
def test_needed_seeds_and_events_decide_a_claim_in_four_of_five_studies(
    mean: float, seed_variance: float, event_variance: float
) -> None:
    difference = Difference(mean, seed_variance, 10, event_variance, 1000)
    comparison = compared_accuracies(difference)

    needed = needed_data([comparison], share=1.0)

    assert needed is not None
    assert decided_share(comparison, num_seeds=10, num_events=1000) < 0.6
    num_seeds, num_events = needed.num_seeds, needed.num_events
    share = decided_share(comparison, num_seeds=num_seeds, num_events=num_events)
    assert share == pytest.approx(0.8, abs=0.05)


def test_all_of_several_comparisons_must_be_decided() -> None:
    comparison = compared_accuracies(Difference(0.005, 1e-4, 10))

    needed = needed_data([comparison], share=1.0)
    needed_for_five = needed_data([comparison] * 5, share=1.0)

    assert needed is not None
    assert needed_for_five is not None
    assert needed.num_seeds < needed_for_five.num_seeds


@pytest.mark.parametrize("shift", [0.9, math.inf])
@pytest.mark.parametrize(
    ("mean", "needed"),
    [
        # The statistical error leaves it open, or not.
        (0.005, NeededData(60, 0, ("of_checks",))),
        (0.01, NeededData(10, 0, ("of_checks",))),
        # The mean is the threshold.
        (0.001, None),
    ],
)
def test_more_data_do_not_reduce_the_shift_of_simulated_times(
    mean: float, needed: NeededData | None, shift: float
) -> None:
    difference = Difference(mean, 1e-4, 10, shifts=(-shift, shift))

    assert needed_data([compared_accuracies(difference)], share=1.0) == needed


@pytest.mark.parametrize("mean", [0.0002, 0.0015, 0.0019, 0.0025, 0.003, 0.0045])
@pytest.mark.parametrize("num_seeds", [4, 6, 12, 46])
def test_a_claim_is_undecided_if_up_to_ten_times_the_seeds_would_decide_it(
    mean: float, num_seeds: int
) -> None:
    judged = judged_claim(loss_runs(seed_differences(mean, num_seeds=num_seeds)), IN_LOSS)

    if judged.verdict is Verdict.UNDECIDED:
        needed_seeds = number_before(judged.would_decide, "seeds")
        assert num_seeds < needed_seeds <= 10 * num_seeds
    elif judged.verdict is Verdict.NOT_DECIDABLE:
        assert judged.would_decide == "more than ten times these data"


def test_needed_data_have_one_digit() -> None:
    judged = judged_claim(loss_runs(seed_differences(0.0045), wall_seconds=1234.0), IN_LOSS)

    # Two runs of 1,234 s for a seed, on two cores: 24 seeds take 8.2 h.
    assert judged.would_decide == "about 30 seeds (now 6; 8 h)"


@pytest.mark.parametrize(
    ("wall_seconds", "hours_per_seed"),
    # Two runs of a seed, an hour each on two cores; else the minutes of the study by its seeds.
    [(3600.0, 1.0), (None, 1 / 60 / 2)],
)
def test_hours_are_those_of_the_stored_runs_or_of_the_study(
    wall_seconds: float | None, hours_per_seed: float
) -> None:
    judged = judged_claim(loss_runs(seed_differences(0.0045), wall_seconds=wall_seconds), IN_LOSS)

    num_seeds = number_before(judged.would_decide, "seeds")
    hours = float(judged.would_decide.split()[-2])
    # One digit is known to half of the last one.
    assert hours == pytest.approx((num_seeds - 6) * hours_per_seed, rel=0.5)


def test_test_events_are_needed_where_their_error_dominates() -> None:
    """All seeds predict the same events, so that more seeds bring nothing."""
    is_correct = {method: np.ones(1000, dtype=bool) for method in ("ad-psgd", "ar-sgd")}
    # AD-PSGD is right about 16 events where AR-SGD is wrong, and wrong about 6 others.
    is_correct["ar-sgd"][:16] = False
    is_correct["ad-psgd"][16:22] = False
    runs = []
    for method, mask in is_correct.items():
        counts = Counts.from_mask(mask, float(mask.mean()))
        runs += [replace(example_run(method, seed), counts=counts) for seed in range(1, 7)]

    judged = judged_claim(runs, {"better": "ad-psgd", "control": "ar-sgd"})

    assert judged.verdict is Verdict.UNDECIDED
    assert judged.would_decide == "about 3,000 test events (now 1,000)"


@pytest.mark.parametrize(
    ("claim", "changes", "would_decide"),
    [
        ({**IN_LOSS, "withdrawn": "faulty"}, {}, "its runs made again"),
        ({**IN_LOSS, "not_decidable": "no GPU"}, {}, "other runs than these: no GPU"),
        (IN_LOSS, {"demonstration": "few"}, "the full form of the study"),
        (IN_LOSS, {"demonstration": "few", "form": "full"}, "data that are no demonstration"),
        (
            {**IN_LOSS, "measure": "seconds_to=0.99"},
            {},
            "longer runs or another goal: here a run diverged or did not reach it",
        ),
        # AR-SGD and AD-PSGD take the same time, of which no check says how wrong it is.
        (
            {**IN_LOSS, "measure": "seconds_per_batch"},
            {},
            "a closer check of the simulated times",
        ),
    ],
    ids=str,
)
def test_what_is_not_a_matter_of_data_is_said(
    claim: dict[str, Any], changes: dict[str, Any], would_decide: str
) -> None:
    runs = loss_runs([0.0035 + 0.004, 0.0035 - 0.004, 0.0035])

    judged = judged_claim(runs, claim, **changes)

    assert judged.verdict in (Verdict.NOT_DECIDABLE, Verdict.WITHDRAWN)
    assert judged.would_decide == would_decide


def test_one_seed_asks_for_others() -> None:
    judged = judged_claim(loss_runs([0.0035]), IN_LOSS)

    assert judged.verdict is Verdict.NOT_DECIDABLE
    assert judged.would_decide == "several seeds: the error of one is not known"


def test_a_decided_claim_needs_nothing() -> None:
    judged = judged_claim(loss_runs([0.01, 0.011, 0.012]), IN_LOSS)

    assert judged.verdict not in OPEN
    assert judged.would_decide == ""


def test_an_effect_at_the_limit_of_two_verdicts_needs_more_than_ten_times_the_data() -> None:
    threshold = 0.002

    judged = judged_claim(loss_runs(seed_differences(threshold)), IN_LOSS)

    assert judged.verdict is Verdict.NOT_DECIDABLE
    assert judged.would_decide == "more than ten times these data"


def test_a_decided_claim_at_an_edge_needs_a_wider_sweep() -> None:
    rate = "train.learning_rate"
    runs = []
    for value in (0.1, 0.2):
        without_rate = loss_runs([0.01, 0.011, 0.012])
        runs += [replace(run, values={rate: value}) for run in without_rate]
    at_best = {**IN_LOSS, "protocol": "each at its best"}

    judged = judged_claim(runs, at_best, vary={rate: [0.1, 0.2]}, best_of=[rate])

    assert judged.verdict not in OPEN
    assert judged.would_decide == "a sweep beyond its edge"
