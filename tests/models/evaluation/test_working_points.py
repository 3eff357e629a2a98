"""Working points: which of them can be measured, and what is a limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from models.evaluation.bootstrap import Estimate, Replicas
from models.evaluation.discriminant import Mixture, ReplicatedScore
from models.evaluation.rates import Rates
from models.evaluation.working_points import highest_measurable_efficiency, working_points

CLASSES = ["background", "signal"]
RATES = Rates({"b": Estimate(1000.0, 0.0), "s": Estimate(10.0, 0.0)}, {"b": 0, "s": 1})
BACKGROUND = {0: 1.0}


def score_with_cuts(
    labels: np.ndarray,
    scores: Any,
    weights: np.ndarray,
    shares: list[float],
    background: dict[int, float] | None = None,
) -> ReplicatedScore:
    samples = np.array(["b", "s"])[labels]
    replicas = Replicas(labels, samples, weights, seed=1, num=200)
    return ReplicatedScore(
        replicas, scores * 1.0, {1: 1.0}, np.array(shares), background=background
    )


def points_of(score: ReplicatedScore) -> list[dict[str, Any]]:
    return working_points(score, CLASSES, Mixture(BACKGROUND, "background"), RATES, seed=1)


def score_with_heavy_background(heavy_score: float, shares: list[float]) -> ReplicatedScore:
    """10,000 ordinary background events, and 400 heavy ones of both signs at one score."""
    rng = np.random.default_rng(3)
    labels = np.repeat([0, 0, 1], [10_000, 400, 1000])
    background_scores, signal_scores = rng.uniform(0, 1, 10_000), rng.uniform(0.5, 1.5, 1000)
    scores = np.concatenate([background_scores, np.full(400, heavy_score), signal_scores])
    weights = np.concatenate([np.ones(10_000), np.resize([300.0, -300.0], 400), np.ones(1000)])
    return score_with_cuts(labels, scores, weights, shares, BACKGROUND)


def test_background_events_of_heavy_signed_weights_that_fail_do_not_count() -> None:
    score = score_with_heavy_background(-1.0, [1e-2, 1e-3])

    first, second = points_of(score)

    assert first["num_passing"] == pytest.approx(100)
    assert second["num_passing"] == pytest.approx(10)
    assert first["measurable"]
    assert second["measurable"]
    assert first["all_backgrounds"]["value"] == pytest.approx(1e-2)


def test_background_events_of_heavy_signed_weights_that_pass_count() -> None:
    (point,) = points_of(score_with_heavy_background(2.0, [1e-2]))

    assert not point["measurable"]


def test_signal_events_of_heavy_signed_weights_that_pass_do_not_count() -> None:
    labels = np.repeat([0, 1, 1], [1000, 1000, 100])
    scores = np.concatenate([np.zeros(1000), np.linspace(0, 1, 1000), np.full(100, 2.0)])
    weights = np.concatenate([np.ones(2000), np.resize([50.0, -50.0], 100)])
    score = score_with_cuts(labels, scores, weights, [0.9, 0.995])

    first, second = points_of(score)

    assert first["num_failing"] == pytest.approx(100)
    assert (first["measurable"], second["measurable"]) == (True, False)
    assert highest_measurable_efficiency(score) == pytest.approx(0.99)


def test_a_share_of_the_background_below_the_highest_score_is_not_measurable() -> None:
    # 50 of 1000 background events share the highest score.
    labels = np.repeat([0, 1], [1000, 100])
    background_scores = np.where(np.arange(1000) < 50, 1.0, np.linspace(0, 0.9, 1000))
    scores = np.concatenate([background_scores, np.ones(100)])
    score = score_with_cuts(labels, scores, np.ones(1100), [0.05, 0.02], BACKGROUND)

    measurable = [point["measurable"] for point in points_of(score)]

    assert measurable == [True, False]


def test_where_no_background_passes_purity_and_efficiency_are_limits() -> None:
    labels = np.repeat([0, 1], [200, 200])
    scores = labels + np.linspace(0, 0.5, 400)

    (point,) = points_of(score_with_cuts(labels, scores, np.ones(400), [0.9]))

    purity, efficiency = point["purity"], point["all_backgrounds"]
    assert (purity["value"], purity["limit"]) == (1.0, "lower")
    # Less than 1.84 events of 200 at 84 %: less than 9.2 of 1000, beside 9 of the signal.
    assert purity["low"] == pytest.approx(9 / (9 + 9.2), abs=0.05)
    assert (efficiency["value"], efficiency["limit"]) == (0.0, "upper")
    assert point["rates"]["background"]["limit"] == "upper"
    assert "limit" not in point["signal"]
    assert "limit" not in point["rates"]["signal"]


def test_where_all_of_a_background_passes_its_efficiency_is_a_lower_limit() -> None:
    labels = np.repeat([0, 1], [200, 200])

    (point,) = points_of(score_with_cuts(labels, 1.0 - labels, np.ones(400), [0.9]))

    efficiency = point["all_backgrounds"]
    assert (efficiency["value"], efficiency["limit"]) == (1.0, "lower")
    assert 0.98 < efficiency["low"] < 1
    # A rate has no highest value.
    assert "limit" not in point["rates"]["background"]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("passes", [True, False])
def test_a_share_that_rounds_to_all_or_nothing_is_a_limit(seed: int, passes: bool) -> None:
    """All background passes or fails, except for six events whose weights nearly cancel."""
    labels = np.repeat([0, 1], [206, 200])
    weights = np.random.default_rng(seed).uniform(0.1, 2, 406)
    weights[:6] = [0.1, 0.2, -0.3, 0.7, 0.1, -0.8]
    scores = np.where(labels == 1, 1.0, 2.0 if passes else 0.0)
    scores[:6] = 0.0 if passes else 2.0
    score = score_with_cuts(labels, scores + np.linspace(0, 0.5, 406), weights, [0.9])

    efficiency = points_of(score)[0]["all_backgrounds"]

    if passes:
        assert (efficiency["value"], efficiency["limit"]) == (1.0, "lower")
        assert efficiency["low"] < 0.995
    else:
        assert (efficiency["value"], efficiency["limit"]) == (0.0, "upper")
        assert efficiency["high"] > 0.005


def test_the_limit_of_a_sample_is_that_of_one_event_where_weights_cancel() -> None:
    """Signed weights that nearly cancel would count as few, very heavy events."""
    labels = np.repeat([0, 1], [1000, 1000])
    weights = np.where((np.arange(2000) % 20 < 9) & (labels == 0), -1.0, 1.0)

    (point,) = points_of(score_with_cuts(labels, labels, weights, [0.9]))

    # 550 - 450: 1.84 events of weight 1 in a hundred.
    assert point["all_backgrounds"]["high"] == pytest.approx(0.0184, rel=0.5)
