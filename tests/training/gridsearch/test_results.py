"""Scores of trials, the order among them, and the Pareto front."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.gridsearch.folds import Curves
from training.gridsearch.results import Score, latency, pareto_front, ranked, score
from training.gridsearch.trials import Trial

TRIAL = Trial((5, 4), 16, 0.01, 3)


def curves(losses: list[float], accuracies: list[float]) -> Curves:
    return Curves(losses, losses, accuracies)


def test_the_epoch_of_the_lowest_loss_within_the_trial_counts() -> None:
    folds = [curves([0.9, 0.5, 0.6, 0.1], [0.1, 0.7, 0.9, 1.0]), curves([0.9, 0.8, 0.4, 0.1], [0.1, 0.2, 0.5, 1.0])]
    found = score(TRIAL, 99, folds)
    assert found is not None
    assert found.accuracy == pytest.approx((0.7 + 0.5) / 2)
    assert found.accuracy_spread == pytest.approx(0.2 / math.sqrt(2))
    assert found.loss == pytest.approx(0.45)
    assert found.best_epochs == [2, 3]
    longer = score(TRIAL._replace(epochs=4), 99, folds)
    assert longer is not None
    assert longer.accuracy == 1.0


def test_a_fold_that_stopped_early_has_its_best_epoch_all_the_same() -> None:
    found = score(TRIAL, 9, [curves([0.5], [0.7]), curves([0.9, 0.8, 0.7], [0.1, 0.2, 0.3])])
    assert found is not None
    assert found.best_epochs == [1, 3]


def test_epochs_that_are_not_finite_are_passed_over_and_a_fold_without_any_has_no_score() -> None:
    found = score(TRIAL, 9, [curves([math.nan, 0.4, math.inf], [0.0, 0.6, 0.9])])
    assert found is not None
    assert found.best_epochs == [2]
    assert math.isnan(found.accuracy_spread)
    assert score(TRIAL, 9, [curves([0.5], [0.7]), curves([math.nan] * 3, [0.3] * 3)]) is None


def test_among_equal_accuracies_the_lower_loss_and_then_the_smaller_network_is_better() -> None:
    def made(size: int, accuracy: float, loss: float) -> Score:
        return Score(TRIAL, size, accuracy, 0.0, loss, [1])

    scores = [made(9, 0.8, 0.5), made(5, 0.8, 0.5), made(9, 0.8, 0.4), made(99, 0.9, 0.9)]
    assert [(each.num_parameters, each.loss) for each in ranked(scores)] == [(99, 0.9), (9, 0.4), (5, 0.5), (9, 0.5)]


POINTS = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 10), st.integers(1, 20)), min_size=1, max_size=30)


@pytest.mark.parametrize("cost", ["num_parameters", "latency"])
@given(points=POINTS)
def test_the_front_is_what_no_other_beats(cost: str, points: list[tuple[int, int, int]]) -> None:
    scores = [Score(TRIAL, size, value / 10, 0.0, 0.0, [1], float(time)) for size, value, time in points]
    found = pareto_front(scores) if cost == "num_parameters" else pareto_front(scores, latency)

    def place(each: Score) -> tuple[float, float]:
        return getattr(each, cost), each.accuracy

    def is_beaten(price: float, accuracy: float) -> bool:
        return any(
            (other[0] <= price and other[1] > accuracy) or (other[0] < price and other[1] >= accuracy)
            for other in map(place, scores)
        )

    expected = {place(each) for each in scores}
    assert [place(each) for each in found] == sorted(point for point in expected if not is_beaten(*point))


def test_what_a_setting_costs_is_not_known_before_it_is_measured() -> None:
    found = score(TRIAL, 9, [curves([0.5], [0.7])] * 2)
    assert found is not None
    assert math.isnan(found.latency)


def test_a_score_survives_json() -> None:
    made = Score(TRIAL, 9, 0.5, 0.1, 0.3, [1, 2], 4.5)
    assert Score.from_json(json.loads(json.dumps(made.to_json(), allow_nan=False))) == made
