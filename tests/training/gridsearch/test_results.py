"""Scores of trials, their order, the Pareto front, and the latency of networks."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.runs.outputs import digest_of, without_volatile
from pipeline.stages.gridsearch import GridSearch
from training.gridsearch.results import (
    Cost,
    Lead,
    Score,
    latency_cost,
    parameter_cost,
    pareto_front,
    rank_scores,
    score_trial,
    select_score,
)
from training.gridsearch.search import Curves
from training.gridsearch.settings import Trial

TRIAL = Trial((5, 4), 16, 0.01, 3)
NO_COST = Cost(0.0)


def make_curves(losses: list[float], accuracies: list[float]) -> Curves:
    return Curves(losses, losses, accuracies)


def make_score(
    num_parameters: int, accuracies: list[float], loss: float = 0.5, latency: Cost = NO_COST
) -> Score:
    return Score(TRIAL, num_parameters, accuracies, loss, best_epoch=1, latency=latency)


def test_one_epoch_counts_for_all_folds() -> None:
    # The mean losses are 0.9, 0.65, 0.5 and 0.1; the first fold alone is best at the second epoch.
    first_fold = make_curves([0.9, 0.5, 0.6, 0.1], [0.1, 0.7, 0.9, 1.0])
    second_fold = make_curves([0.9, 0.8, 0.4, 0.1], [0.1, 0.2, 0.5, 1.0])
    folds = [first_fold, second_fold]

    three_epochs = score_trial(TRIAL, 99, folds)
    four_epochs = score_trial(TRIAL._replace(epochs=4), 99, folds)

    assert three_epochs is not None
    assert three_epochs.best_epoch == 3
    assert three_epochs.accuracies == [0.9, 0.5]
    assert three_epochs.loss == pytest.approx(0.5)
    assert four_epochs is not None
    assert four_epochs.accuracy == 1.0


def test_the_best_epoch_is_finite_in_all_folds() -> None:
    diverging = make_curves([math.nan, 0.4, math.inf], [0.0, 0.6, 0.9])
    finite = make_curves([0.1, 0.5, 0.1], [0.9] * 3)

    score = score_trial(TRIAL, 9, [diverging, finite])

    assert score is not None
    assert score.best_epoch == 2


def test_a_trial_without_an_epoch_that_is_finite_in_all_folds_has_no_score() -> None:
    finite = make_curves([0.5] * 3, [0.7] * 3)
    diverged = make_curves([math.nan] * 3, [0.3] * 3)

    assert score_trial(TRIAL, 9, [finite, diverged]) is None


def test_equal_accuracies_rank_by_loss_and_then_by_size() -> None:
    large = make_score(9, [0.8], loss=0.5)
    small = make_score(5, [0.8], loss=0.5)
    lower_loss = make_score(9, [0.8], loss=0.4)
    more_accurate = make_score(99, [0.9], loss=0.9)

    ranked = rank_scores([large, small, lower_loss, more_accurate])

    assert ranked == [more_accurate, lower_loss, small, large]


def test_settings_are_compared_fold_by_fold() -> None:
    best = make_score(9, [0.71, 0.81, 0.91])
    second = make_score(9, [0.7, 0.8, 0.9])

    lead = best.lead_over(second)

    assert lead.value == pytest.approx(0.01)
    assert lead.error == pytest.approx(0, abs=1e-9)
    assert lead.is_beyond_noise
    assert not second.lead_over(best).is_beyond_noise
    assert best.to_json(best)["behind"] == 0
    assert second.to_json(best)["behind"] == pytest.approx(0.01)


def test_the_error_of_a_lead_allows_for_the_events_that_trainings_share() -> None:
    # Folds of the same mean. Trainings on shared events have a part of their errors in common.
    rng = np.random.default_rng(1)
    shared_errors = rng.normal(0, 0.01 * math.sqrt(1 / 4), (4000, 1))
    differences = shared_errors + rng.normal(0, 0.01, (4000, 5))

    leads = [Lead.from_differences(folds) for folds in differences]

    false_leads = np.mean([lead.is_beyond_noise for lead in leads])
    assert false_leads == pytest.approx(0.05, abs=0.015)


def test_one_standard_error_selects_the_smallest_network_that_is_as_good() -> None:
    best = make_score(99, [0.9, 0.92])
    within_error = make_score(9, [0.905, 0.913])
    beyond_error = make_score(5, [0.881, 0.913])
    scores = [best, within_error, beyond_error]

    assert select_score(scores) == best
    assert select_score(scores, one_standard_error=True) == within_error


def test_a_lead_within_noise_is_not_on_the_front() -> None:
    small = make_score(5, [0.80, 0.82, 0.81])
    lucky = make_score(9, [0.84, 0.80, 0.82])
    better = make_score(20, [0.90, 0.92, 0.91])

    assert pareto_front([small, lucky, better]) == [small, better]


def test_times_that_differ_within_noise_count_as_equal() -> None:
    # Two standard errors of the difference are 0.28.
    quick = make_score(9, [0.8] * 3, latency=Cost(5.0, 0.1))
    as_quick = make_score(9, [0.9] * 3, latency=Cost(5.25, 0.1))
    slower = make_score(9, [0.9] * 3, latency=Cost(5.3, 0.1))

    assert pareto_front([as_quick, quick], latency_cost) == [as_quick]
    assert pareto_front([slower, quick], latency_cost) == [quick, slower]


POINTS = st.lists(
    st.tuples(st.integers(1, 20), st.integers(0, 10), st.integers(1, 20)), min_size=1, max_size=30
)


@pytest.mark.parametrize("cost", [parameter_cost, latency_cost])
@given(points=POINTS)
def test_no_score_beats_one_of_the_front(
    cost: Callable[[Score], Cost], points: list[tuple[int, int, int]]
) -> None:
    scores = []
    for size, tenths, time in points:
        accuracies = [tenths / 10] * 2
        scores.append(make_score(size, accuracies, latency=Cost(float(time))))

    front = pareto_front(scores, cost)

    def price_and_accuracy(score: Score) -> tuple[float, float]:
        return cost(score).value, score.accuracy

    points_of_front = {price_and_accuracy(score) for score in front}
    all_points = {price_and_accuracy(score) for score in scores}
    for point in all_points:
        price, accuracy = point
        as_cheap = {other_point for other_point in all_points if other_point[0] <= price}
        as_good = {other_point for other_point in as_cheap if other_point[1] >= accuracy}
        is_beaten = as_good != {point}
        is_in_front = point in points_of_front
        assert is_beaten is not is_in_front


def test_the_digest_of_a_result_does_not_depend_on_measured_times() -> None:
    def digest(score: Score) -> str:
        document = {"search.json": {"scores": [score.to_json(score)]}}
        return digest_of(without_volatile(document, GridSearch.volatile))

    quick = digest(make_score(9, [0.7, 0.8], latency=Cost(3.0, 0.3)))
    slow = digest(make_score(9, [0.7, 0.8], latency=Cost(4.0, 0.4)))
    less_accurate = digest(make_score(9, [0.7, 0.7], latency=Cost(4.0, 0.4)))

    assert quick == slow != less_accurate
