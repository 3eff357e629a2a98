"""Scores of trials, the order among them, the Pareto front, and the time of a search on several slots."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feature_datasets import write_dataset
from hypothesis import given
from hypothesis import strategies as st

from pipeline.runs.outputs import digest_of
from training.gridsearch import results
from training.gridsearch.results import (
    Cost,
    Lead,
    Score,
    chosen,
    latencies,
    latency,
    num_parameters,
    pareto_front,
    ranked,
    score,
)
from training.gridsearch.settings import Trial
from training.gridsearch.trainings import Curves

TRIAL = Trial((5, 4), 16, 0.01, 3)


def curves(losses: list[float], accuracies: list[float]) -> Curves:
    return Curves(losses, losses, accuracies)


def made(size: int, accuracies: list[float], loss: float = 0.5, **rest: Any) -> Score:
    return Score(TRIAL, size, accuracies, loss, 1, **rest)


def test_one_epoch_counts_for_all_folds() -> None:
    folds = [
        curves([0.9, 0.5, 0.6, 0.1], [0.1, 0.7, 0.9, 1.0]),
        curves([0.9, 0.8, 0.4, 0.1], [0.1, 0.2, 0.5, 1.0]),
    ]
    found = score(TRIAL, 99, folds)
    assert found is not None
    # The mean losses are 0.9, 0.65 and 0.5; the first fold alone is best one epoch earlier.
    assert (found.best_epoch, found.accuracies) == (3, [0.9, 0.5])
    assert found.loss == pytest.approx(0.5)
    longer = score(TRIAL._replace(epochs=4), 99, folds)
    assert longer is not None
    assert longer.accuracy == 1.0


def test_epochs_that_are_not_finite_in_a_fold_are_passed_over_and_without_any_other_there_is_no_score() -> (
    None
):
    found = score(
        TRIAL,
        9,
        [curves([math.nan, 0.4, math.inf], [0.0, 0.6, 0.9]), curves([0.1, 0.5, 0.1], [0.9] * 3)],
    )
    assert found is not None
    assert found.best_epoch == 2
    assert (
        score(TRIAL, 9, [curves([0.5] * 3, [0.7] * 3), curves([math.nan] * 3, [0.3] * 3)]) is None
    )


def test_among_equal_accuracies_the_lower_loss_and_then_the_smaller_network_is_better() -> None:
    scores = [made(9, [0.8], 0.5), made(5, [0.8], 0.5), made(9, [0.8], 0.4), made(99, [0.9], 0.9)]
    assert [(each.num_parameters, each.loss) for each in ranked(scores)] == [
        (99, 0.9),
        (9, 0.4),
        (5, 0.5),
        (9, 0.5),
    ]


def test_the_winner_of_halving_is_of_the_last_round() -> None:
    lucky, winner = made(9, [0.95, 0.95]), made(9, [0.9, 0.9], rung=2)
    assert ranked([lucky, winner, made(5, [0.93, 0.93], rung=1)])[0] == winner
    assert chosen([lucky, winner], one_standard_error=True) == winner


def test_settings_are_compared_fold_by_fold() -> None:
    folds = np.array([0.7, 0.8, 0.9])
    best, other = made(9, (folds + 0.01).tolist()), made(9, folds.tolist())
    assert best.ahead_of(other).value == pytest.approx(0.01)
    assert best.ahead_of(other).error == pytest.approx(0, abs=1e-9)
    assert best.ahead_of(other).is_beyond_noise
    assert not other.ahead_of(best).is_beyond_noise
    assert best.to_json(best)["behind"] == 0
    assert other.to_json(best)["behind"] == pytest.approx(0.01)


def test_the_error_of_a_lead_allows_for_the_events_that_trainings_share() -> None:
    # Folds of the same mean, and errors that trainings on shared events have in common.
    rng = np.random.default_rng(1)
    shared = 0.01 * math.sqrt(1 / 4) * rng.normal(size=(4000, 1))
    leads = [Lead.of(each) for each in shared + 0.01 * rng.normal(size=(4000, 5))]
    assert np.mean([lead.is_beyond_noise for lead in leads]) == pytest.approx(0.05, abs=0.015)


def test_one_standard_error_takes_the_smallest_network_that_is_as_good() -> None:
    best, near, far = made(99, [0.9, 0.92]), made(9, [0.905, 0.913]), made(5, [0.881, 0.913])
    assert best.ahead_of(near).value < best.ahead_of(near).error
    assert 1 < best.ahead_of(far).value / best.ahead_of(far).error < 2
    scores = [best, near, far]
    assert chosen(scores) == best
    assert chosen(scores, one_standard_error=True) == near


def test_what_is_ahead_within_noise_is_not_on_the_front() -> None:
    small, lucky, better = (
        made(5, [0.80, 0.82, 0.81]),
        made(9, [0.84, 0.80, 0.82]),
        made(20, [0.90, 0.92, 0.91]),
    )
    assert pareto_front([small, lucky, better]) == [small, better]


def test_times_that_differ_within_noise_count_as_equal() -> None:
    # Two errors of the difference are 0.28.
    slow, quick = (
        made(9, [value] * 3, latency=Cost(time, 0.1)) for value, time in ((0.9, 5.25), (0.8, 5.0))
    )
    assert pareto_front([slow, quick], latency) == [slow]
    slower = slow._replace(latency=Cost(5.3, 0.1))
    assert pareto_front([slower, quick], latency) == [quick, slower]


POINTS = st.lists(
    st.tuples(st.integers(1, 20), st.integers(0, 10), st.integers(1, 20)), min_size=1, max_size=30
)


@pytest.mark.parametrize("cost", ["num_parameters", "latency"])
@given(points=POINTS)
def test_the_front_is_what_no_other_beats(cost: str, points: list[tuple[int, int, int]]) -> None:
    scores = [
        made(size, [value / 10] * 2, latency=Cost(float(time))) for size, value, time in points
    ]
    found = pareto_front(scores) if cost == "num_parameters" else pareto_front(scores, latency)

    def place(each: Score) -> tuple[float, float]:
        return (num_parameters if cost == "num_parameters" else latency)(each).value, each.accuracy

    def is_beaten(price: float, accuracy: float) -> bool:
        return any(
            (other[0] <= price and other[1] > accuracy)
            or (other[0] < price and other[1] >= accuracy)
            for other in map(place, scores)
        )

    expected = {place(each) for each in scores}
    assert [place(each) for each in found] == sorted(
        point for point in expected if not is_beaten(*point)
    )


def test_another_time_is_the_same_result() -> None:
    quick, slow = (made(9, [0.7, 0.8], latency=Cost(time, time / 10)) for time in (3.0, 4.0))
    first, second, other = (
        digest_of({"scores": [each.to_json(best)]}, "search.json")
        for each, best in ((quick, quick), (slow, slow), (made(9, [0.7, 0.7]), slow))
    )
    assert first == second != other


def test_each_architecture_is_measured_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write_dataset(tmp_path / "set", rows={"train": [20], "val": [5], "test": [5]})
    measured: list[list[int]] = []
    measure = results.measure_latency

    def noted(exported: Any, columns: Any, **chosen: Any) -> Any:
        measured.append(exported.settings.hidden)
        return measure(exported, columns, **chosen)

    monkeypatch.setattr(results, "measure_latency", noted)
    asked = [(8, 4), (5,), (8, 4), (3, 3, 3), (5,)]
    found = latencies(iter(asked), dataset, generator=np.random.default_rng(1))
    assert measured == [[3, 3, 3], [5], [8, 4]] * 5
    assert found.keys() == set(asked)
    assert all(each.value > 0 and each.error >= 0 for each in found.values())
