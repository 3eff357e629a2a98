"""Working points: which of them can be measured, and what is a limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from models.evaluation.bootstrap import Estimate, Replicas
from models.evaluation.discriminant import Mixture, Scored
from models.evaluation.rates import Rates
from models.evaluation.working_points import measurable_to, working_points

CLASSES = ["background", "signal"]
RATES = Rates({"b": Estimate(1000.0, 0.0), "s": Estimate(10.0, 0.0)}, {"b": 0, "s": 1})


def scored(
    labels: Any,
    scores: Any,
    weights: Any,
    expected: list[float],
    background: dict[int, float] | None = None,
) -> Scored:
    labels = np.asarray(labels)
    samples = np.array(["b", "s"])[labels]
    replicas = Replicas(labels, samples, np.asarray(weights, np.float64), seed=1, num=200)
    return Scored(
        replicas,
        np.asarray(scores, np.float64),
        {1: 1.0},
        np.array(expected),
        background=background,
    )


def points(created: Scored) -> list[dict[str, Any]]:
    return working_points(created, CLASSES, Mixture({0: 1.0}, "background"), RATES, seed=1)


def with_heavy_signed_background() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """10,000 ordinary background events, and heavy ones of both signs far below every threshold."""
    rng = np.random.default_rng(3)
    labels = np.repeat([0, 0, 1], [10_000, 400, 1000])
    scores = np.concatenate(
        [rng.uniform(0, 1, 10_000), np.full(400, -1.0), rng.uniform(0.5, 1.5, 1000)]
    )
    weights = np.concatenate([np.ones(10_000), np.resize([300.0, -300.0], 400), np.ones(1000)])
    return labels, scores, weights


def test_background_events_of_heavy_signed_weights_that_never_pass_do_not_count() -> None:
    created = scored(*with_heavy_signed_background(), [1e-2, 1e-3], background={0: 1.0})
    first, second = points(created)
    assert first["num_passing"] == pytest.approx(100)
    assert second["num_passing"] == pytest.approx(10)
    assert (first["measurable"], second["measurable"]) == (True, True)
    assert first["all_backgrounds"]["value"] == pytest.approx(1e-2)


def test_background_events_of_heavy_signed_weights_that_pass_count() -> None:
    labels, scores, weights = with_heavy_signed_background()
    created = scored(
        labels, np.where(scores < 0, 2.0, scores), weights, [1e-2], background={0: 1.0}
    )
    assert not points(created)[0]["measurable"]


def test_signal_events_of_heavy_signed_weights_that_never_fail_do_not_count() -> None:
    labels = np.repeat([0, 1, 1], [1000, 1000, 100])
    scores = np.concatenate([np.zeros(1000), np.linspace(0, 1, 1000), np.full(100, 2.0)])
    weights = np.concatenate([np.ones(2000), np.resize([50.0, -50.0], 100)])
    created = scored(labels, scores, weights, [0.9, 0.995])
    assert [point["measurable"] for point in points(created)] == [True, False]
    assert points(created)[0]["num_failing"] == pytest.approx(100)
    assert measurable_to(created) == pytest.approx(0.99)


def test_a_share_of_the_background_that_no_threshold_reaches_is_not_measurable() -> None:
    # 50 of 1000 background events share the highest score.
    scores = np.concatenate(
        [np.where(np.arange(1000) < 50, 1.0, np.linspace(0, 0.9, 1000)), np.ones(100)]
    )
    created = scored(
        np.repeat([0, 1], [1000, 100]), scores, np.ones(1100), [0.05, 0.02], background={0: 1.0}
    )
    assert [point["measurable"] for point in points(created)] == [True, False]


def test_where_no_background_passes_purity_and_efficiency_are_limits() -> None:
    labels = np.repeat([0, 1], [200, 200])
    (point,) = points(scored(labels, labels + np.linspace(0, 0.5, 400), np.ones(400), [0.9]))
    purity, leftovers = point["purity"], point["all_backgrounds"]
    assert (purity["value"], purity["limit"]) == (1.0, "lower")
    # Less than 1.84 events of 200 at 84 %: less than 9.2 of 1000, beside 9 of the signal.
    assert purity["low"] == pytest.approx(9 / (9 + 9.2), abs=0.05)
    assert (leftovers["value"], leftovers["limit"]) == (0.0, "upper")
    assert point["rates"]["background"]["limit"] == "upper"
    assert "limit" not in point["signal"]
    assert "limit" not in point["rates"]["signal"]


def test_where_all_of_a_background_passes_its_efficiency_is_a_lower_limit() -> None:
    labels = np.repeat([0, 1], [200, 200])
    (point,) = points(scored(labels, 1.0 - labels, np.ones(400), [0.9]))
    leftovers = point["all_backgrounds"]
    assert (leftovers["value"], leftovers["limit"]) == (1.0, "lower")
    assert 0.98 < leftovers["low"] < 1
    # A rate has no highest value.
    assert "limit" not in point["rates"]["background"]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("passes", [True, False])
def test_a_share_of_all_or_of_nothing_but_for_rounding_is_a_limit(seed: int, passes: bool) -> None:
    """All weights of the background pass, or fail, beside others that cancel but for rounding."""
    labels = np.repeat([0, 1], [206, 200])
    weights = np.random.default_rng(seed).uniform(0.1, 2, 406)
    weights[:6] = [0.1, 0.2, -0.3, 0.7, 0.1, -0.8]
    scores = np.where(labels == 1, 1.0, 2.0 if passes else 0.0)
    scores[:6] = 0.0 if passes else 2.0
    created = scored(labels, scores + np.linspace(0, 0.5, 406), weights, [0.9])
    leftovers = points(created)[0]["all_backgrounds"]
    assert (leftovers["value"], leftovers["limit"]) == (
        (1.0, "lower") if passes else (0.0, "upper")
    )
    assert leftovers["low"] < 0.995 if passes else leftovers["high"] > 0.005


def test_the_limit_of_a_sample_is_that_of_one_of_its_events_also_where_weights_cancel() -> None:
    """Signed weights that nearly cancel would count as few, very heavy events."""
    labels = np.repeat([0, 1], [1000, 1000])
    weights = np.where((np.arange(2000) % 20 < 9) & (labels == 0), -1.0, 1.0)
    (point,) = points(scored(labels, labels * 1.0, weights, [0.9]))
    # 550 - 450: 1.84 events of weight 1 in a hundred.
    assert point["all_backgrounds"]["high"] == pytest.approx(0.0184, rel=0.5)
