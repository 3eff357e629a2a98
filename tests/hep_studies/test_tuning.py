"""The values of `best_of` that a method stands at: best in what is claimed, and inside the sweep."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from example_study import example_result, example_run, example_study

from hep_studies.cells import Cell
from hep_studies.measures import measure_of
from hep_studies.run_result import RunResult
from hep_studies.study_result import StudyResult

RATE = "train.learning_rate"
METHOD = "ad-psgd"


def curves_run(rate: float, seed: int, **curves: list[float]) -> RunResult:
    """A run of two epochs with these curves; each epoch takes a second."""
    run = example_run(METHOD, seed, values={RATE: rate})
    same = {"seconds": [1.0, 1.0], "val_loss": [0.5, 0.5], "val_accuracy": [0.8, 0.8]}
    return replace(run, curves={**run.curves, **same, **curves})


def swept(runs: list[RunResult]) -> StudyResult:
    rates = sorted({run.values[RATE] for run in runs})
    study = example_study(vary={RATE: rates}, best_of=[RATE])
    return example_result(study, runs)


def best_rate(runs: list[RunResult], best_in: str) -> float:
    """The rate at which the method is best in a measure."""
    best = swept(runs).best_combination(Cell(METHOD), best_in)
    rate: float = best.plain_values[RATE]
    return rate


def diverged_run(rate: float, seed: int) -> RunResult:
    run = curves_run(rate, seed)
    return replace(run, counts=None, curves={}, numbers={"diverged": 1.0})


def test_a_time_is_claimed_at_the_fastest_rate_and_not_at_that_of_the_lowest_loss() -> None:
    runs = []
    for seed in (1, 2):
        runs.append(curves_run(0.1, seed, val_accuracy=[0.8, 0.9], val_loss=[0.3, 0.2]))
        runs.append(curves_run(0.2, seed, val_accuracy=[0.9, 0.9], val_loss=[0.3, 0.3]))

    assert best_rate(runs, "val_loss") == 0.1
    assert best_rate(runs, "seconds_to=0.9") == 0.2
    assert best_rate(runs, "mean_val_accuracy") == 0.2


def test_a_rate_at_which_all_seeds_reach_the_goal_comes_before_a_faster_one() -> None:
    runs = [
        curves_run(0.1, 1, val_accuracy=[0.8, 0.9]),
        curves_run(0.1, 2, val_accuracy=[0.8, 0.9]),
        curves_run(0.2, 1, val_accuracy=[0.9, 0.9]),
        curves_run(0.2, 2, val_accuracy=[0.7, 0.7]),
    ]

    assert best_rate(runs, "seconds_to=0.9") == 0.1


def test_the_mean_of_times_is_that_of_their_logarithms() -> None:
    """Times of 2 s and 8 s are as good as 4 s and 4 s, and better than 4.1 s twice."""
    runs = []
    for seed, seconds in ((1, 2.0), (2, 8.0)):
        runs.append(curves_run(0.1, seed, val_accuracy=[0.9, 0.9], seconds=[seconds, 1.0]))
        runs.append(curves_run(0.2, seed, val_accuracy=[0.9, 0.9], seconds=[4.1, 1.0]))

    assert best_rate(runs, "seconds_to=0.9") == 0.1


def test_a_rate_at_which_a_run_diverged_comes_last() -> None:
    runs = [
        diverged_run(0.1, 1),
        curves_run(0.1, 2, val_loss=[0.1, 0.1]),
        curves_run(0.2, 1),
        curves_run(0.2, 2),
    ]

    for best_in in ("val_loss", "val_accuracy", "seconds_to=0.5"):
        assert best_rate(runs, best_in) == 0.2


@pytest.mark.parametrize(
    ("measure", "tuned_by"),
    [
        ("test_accuracy", "val_accuracy"),
        ("val_loss", "val_loss"),
        ("val_accuracy", "val_accuracy"),
        ("seconds_to=0.85", "seconds_to=0.85"),
        ("seconds_to_best=0.01", "seconds_to_best=0.01"),
        ("temporal_efficiency", "mean_val_accuracy"),
        ("temporal_efficiency_in_training", "mean_train_accuracy"),
        # Settings that learn nothing would be the fastest, and agree best.
        ("seconds_per_batch", "val_loss"),
        ("utilisation", "val_loss"),
        ("consensus_distance", "val_loss"),
    ],
)
def test_the_test_events_choose_no_settings(measure: str, tuned_by: str) -> None:
    assert measure_of(measure).tuned_by == tuned_by


@pytest.mark.parametrize(
    ("losses", "edges"),
    [
        ({0.1: 0.3, 0.2: 0.2, 0.4: 0.3}, {}),
        ({0.1: 0.2, 0.2: 0.3, 0.4: 0.3}, {RATE: "lowest"}),
        ({0.1: 0.4, 0.2: 0.3, 0.4: 0.2}, {RATE: "highest"}),
        # The rate beyond is known to diverge.
        ({0.1: 0.4, 0.2: 0.3, 0.4: math.inf}, {}),
        ({0.1: 0.4}, {RATE: "only one"}),
    ],
    ids=str,
)
def test_a_best_value_at_an_end_of_its_sweep_is_at_an_edge(
    losses: dict[float, float], edges: dict[str, Any]
) -> None:
    runs = []
    for rate, loss in losses.items():
        if math.isfinite(loss):
            runs.append(curves_run(rate, 1, val_loss=[loss, loss]))
        else:
            runs.append(diverged_run(rate, 1))

    study_result = swept(runs)

    assert study_result.edges(Cell(METHOD)) == edges


def test_values_that_are_no_numbers_have_no_edge() -> None:
    key = "train.nesterov"
    runs = [
        example_run(METHOD, 1, values={key: False}, correct=900),
        example_run(METHOD, 1, values={key: True}, correct=950),
    ]
    study = example_study(vary={key: [False, True]}, best_of=[key])
    result = example_result(study, runs)

    assert result.edges(Cell(METHOD)) == {}
