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
RATES_OF_SAMPLES = {"b": Estimate(1000.0, 0.0), "s": Estimate(10.0, 0.0)}
RATES = Rates(RATES_OF_SAMPLES, {"b": 0, "s": 1})
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
    mixture = Mixture(BACKGROUND, "background")
    return working_points(score, CLASSES, mixture, RATES, seed=1)


def assert_is_limit(share: dict[str, Any], limit: str, *, at: float) -> None:
    assert share["value"] == at
    assert share["limit"] == limit


def score_with_heavy_background(heavy_score: float, shares: list[float]) -> ReplicatedScore:
    """10,000 ordinary background events, and 400 heavy ones of both signs at one score."""
    rng = np.random.default_rng(3)
    labels = np.repeat([0, 0, 1], [10_000, 400, 1000])
    background_scores = rng.uniform(0, 1, 10_000)
    heavy_scores = np.full(400, heavy_score)
    signal_scores = rng.uniform(0.5, 1.5, 1000)
    scores = np.concatenate([background_scores, heavy_scores, signal_scores])
    heavy_weights = np.tile([300.0, -300.0], 200)
    weights = np.concatenate([np.ones(10_000), heavy_weights, np.ones(1000)])
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
    score = score_with_heavy_background(2.0, [1e-2])

    (point,) = points_of(score)

    assert not point["measurable"]


def test_signal_events_of_heavy_signed_weights_that_pass_do_not_count() -> None:
    labels = np.repeat([0, 1, 1], [1000, 1000, 100])
    signal_scores = np.linspace(0, 1, 1000)
    scores = np.concatenate([np.zeros(1000), signal_scores, np.full(100, 2.0)])
    heavy_weights = np.tile([50.0, -50.0], 50)
    weights = np.concatenate([np.ones(2000), heavy_weights])
    score = score_with_cuts(labels, scores, weights, [0.9, 0.995])

    first, second = points_of(score)

    assert first["num_failing"] == pytest.approx(100)
    assert first["measurable"]
    assert not second["measurable"]
    assert highest_measurable_efficiency(score) == pytest.approx(0.99)


def test_a_share_of_the_background_below_the_highest_score_is_not_measurable() -> None:
    # 50 of 1000 background events share the highest score.
    labels = np.repeat([0, 1], [1000, 100])
    background_scores = np.linspace(0, 0.9, 1000)
    background_scores[:50] = 1.0
    scores = np.concatenate([background_scores, np.ones(100)])
    score = score_with_cuts(labels, scores, np.ones(1100), [0.05, 0.02], BACKGROUND)

    first, second = points_of(score)

    assert first["measurable"]
    assert not second["measurable"]


def test_where_no_background_passes_purity_and_efficiency_are_limits() -> None:
    labels = np.repeat([0, 1], [200, 200])
    scores = labels + np.linspace(0, 0.5, 400)
    score = score_with_cuts(labels, scores, np.ones(400), [0.9])

    (point,) = points_of(score)

    purity = point["purity"]
    assert_is_limit(purity, "lower", at=1.0)
    # Less than 1.84 events of 200 at 84 %: less than 9.2 of 1000, beside 9 of the signal.
    assert purity["low"] == pytest.approx(9 / (9 + 9.2), abs=0.05)
    assert_is_limit(point["all_backgrounds"], "upper", at=0.0)
    assert point["rates"]["background"]["limit"] == "upper"
    assert "limit" not in point["signal"]
    assert "limit" not in point["rates"]["signal"]


def test_where_all_of_a_background_passes_its_efficiency_is_a_lower_limit() -> None:
    labels = np.repeat([0, 1], [200, 200])
    score = score_with_cuts(labels, 1.0 - labels, np.ones(400), [0.9])

    (point,) = points_of(score)

    efficiency = point["all_backgrounds"]
    assert_is_limit(efficiency, "lower", at=1.0)
    assert 0.98 < efficiency["low"] < 1
    # A rate has no highest value.
    assert "limit" not in point["rates"]["background"]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("passes", [True, False])
def test_a_share_that_rounds_to_all_or_nothing_is_a_limit(seed: int, passes: bool) -> None:
    """All background passes or fails, except for six events whose weights nearly cancel."""
    labels = np.repeat([0, 1], [206, 200])
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.1, 2, 406)
    weights[:6] = [0.1, 0.2, -0.3, 0.7, 0.1, -0.8]
    background_score = 2.0 if passes else 0.0
    scores = np.where(labels == 1, 1.0, background_score)
    # The six are on the other side of the signal.
    scores[:6] = 2.0 - background_score
    scores += np.linspace(0, 0.5, 406)
    score = score_with_cuts(labels, scores, weights, [0.9])

    (point,) = points_of(score)

    efficiency = point["all_backgrounds"]
    if passes:
        assert_is_limit(efficiency, "lower", at=1.0)
        assert efficiency["low"] < 0.995
    else:
        assert_is_limit(efficiency, "upper", at=0.0)
        assert efficiency["high"] > 0.005


def test_the_limit_of_a_sample_is_that_of_one_event_where_weights_cancel() -> None:
    """Signed weights that nearly cancel would count as few, very heavy events."""
    labels = np.repeat([0, 1], [1000, 1000])
    nine_of_twenty_are_negative = np.tile(np.repeat([-1.0, 1.0], [9, 11]), 50)
    weights = np.concatenate([nine_of_twenty_are_negative, np.ones(1000)])
    score = score_with_cuts(labels, labels, weights, [0.9])

    (point,) = points_of(score)

    # 550 - 450: 1.84 events of weight 1 in a hundred.
    assert point["all_backgrounds"]["high"] == pytest.approx(0.0184, rel=0.5)
