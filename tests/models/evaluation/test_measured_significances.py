"""Significances at working points and in a scan of cuts, of one model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scored_examples import (
    CLASSES,
    certain_rates,
    events_with,
    events_with_signal,
    numbers_of,
    random_events,
    values,
)

from models.evaluation.discriminant import discriminant
from models.evaluation.scored_events import ScoredEvents
from models.evaluation.significance import asimov_significance


def test_an_offline_analysis_has_events_and_significance_at_each_point() -> None:
    expected = {"QCD": 100.0, "ttbar": 80.0, "W+jets": 40.0}

    (point,) = numbers_of(
        random_events(600),
        rates=certain_rates(expected, are_events=True),
        expected=dict(enumerate(expected.values())),
        uncertainty=0.1,
    )["working_points"]

    assert "rates" not in point
    shares = values({**point["backgrounds"], "ttbar": point["signal"]})
    num_behind = {name: expected[name] * share for name, share in shares.items()}
    assert values(point["events"]) == pytest.approx(num_behind)
    signal, background = point["signal_events"]["value"], point["background_events"]["value"]
    assert background == pytest.approx(num_behind["QCD"] + num_behind["W+jets"])
    assert point["purity"]["value"] == pytest.approx(signal / (signal + background))
    significance = point["significance"]
    asimov = asimov_significance(np.array(signal), np.array(background), 0.1)
    assert significance["value"] == pytest.approx(float(asimov))
    assert significance["low"] < significance["value"] < significance["high"]


def significance_at_point(events: ScoredEvents) -> dict[str, Any]:
    """Significance at a working point with 50 expected events of each class."""
    rates = certain_rates(dict.fromkeys(CLASSES, 50.0), are_events=True)
    numbers = numbers_of(events, rates=rates, expected=dict.fromkeys(range(3), 50.0))
    significance: dict[str, Any] = numbers["working_points"][0]["significance"]
    return significance


def test_without_background_behind_a_cut_the_significance_has_a_lower_limit() -> None:
    labels = np.repeat([0, 1, 2], 100)

    significance = significance_at_point(events_with(labels, np.eye(3)[labels]))

    assert (significance["value"], significance["limit"]) == (None, "lower")
    # 50 signal events on less than 1.84 of 200 at 84 %, that is, on less than about one.
    one_event = float(asimov_significance(np.array(50.0), np.array(1.0), 0.0))
    assert significance["low"] == pytest.approx(one_event, rel=0.3)


def test_without_background_in_many_replicas_the_significance_has_a_lower_limit() -> None:
    labels = np.repeat([0, 0, 1, 2], [86, 300, 100, 100])
    weights = np.repeat([1.0, -1.0, 1.0], [46, 40, 500])
    predicted = np.repeat([1, 0, 1, 2], [86, 300, 100, 100])

    significance = significance_at_point(events_with(labels, np.eye(3)[predicted], weights))

    assert (significance["high"], significance["limit"]) == (None, "lower")
    assert 0 < significance["low"] < significance["value"]


def test_significances_are_those_of_the_events_behind_each_cut() -> None:
    events = random_events(600)
    expected = {0: 100.0, 1: 30.0, 2: 50.0}

    scan = numbers_of(events, expected=expected, uncertainty=0.1)["significance"]

    score = discriminant(events.probabilities, signal={1: 1.0}, fractions={0: 0.5, 2: 0.5})
    for index, threshold in enumerate(scan["threshold"]):
        passes = score >= threshold
        behind = [
            expected[label] * float(passes[events.labels == label].mean()) for label in range(3)
        ]
        background = behind[0] + behind[2]
        assert scan["signal"][index] == pytest.approx(behind[1])
        assert scan["background"][index] == pytest.approx(background)
        assert scan["simple"][index] == pytest.approx(behind[1] / math.sqrt(background))
        assert scan["low"][index] < scan["asimov"][index] < scan["high"][index]
        assert scan["asimov"][index] < scan["simple"][index]
        # Cuts with fewer background events are left out.
        assert passes[events.labels != 1].sum() >= 9
    assert scan["asimov"][scan["best"]] == max(scan["asimov"])
    assert scan["of"] == "expected events"
    without_uncertainty = numbers_of(events, expected=expected)["significance"]["asimov"]
    assert (np.array(without_uncertainty) > scan["asimov"]).all()


def test_without_an_expectation_significances_are_those_of_the_test_events() -> None:
    events = random_events(600)

    scan = numbers_of(events)["significance"]

    assert scan["of"] == "test events"
    assert scan["signal"][-1] == pytest.approx((events.labels == 1).sum())


def test_background_events_count_in_the_parts_that_are_expected() -> None:
    # Nearly all of the background is of class 2, of which few events pass.
    labels = np.repeat([0, 1, 2], [3000, 500, 40])
    signal = np.random.default_rng(4).beta(*np.array([(2, 2), (4, 1), (2, 2)])[labels].T)
    events = events_with_signal(labels, signal)

    scan = numbers_of(events, expected={0: 1.0, 1: 30.0, 2: 1000.0})["significance"]

    score = discriminant(events.probabilities, signal={1: 1.0}, fractions={0: 0.5, 2: 0.5})
    num_passing = [int((score[labels == 2] >= threshold).sum()) for threshold in scan["threshold"]]
    assert min(num_passing) == 10
    assert scan["effective"] == pytest.approx(num_passing, rel=0.1)


def test_the_band_of_significances_is_finite_with_negative_weights() -> None:
    # In few replicas the weights of the 1000 background events above the cut add up to 0 or less.
    labels = np.repeat([0, 1, 0, 0, 1], [2000, 200, 550, 450, 200])
    signal = np.repeat([0.1, 0.9], [2200, 1200])
    weights = np.repeat([1.0, -1.0, 1.0], [2750, 450, 200])
    events = events_with_signal(labels, signal, weights)

    scan = numbers_of(events, classes=["QCD", "ttbar"], expected={0: 100.0, 1: 10.0})

    assert len(scan["significance"]["low"]) > 3


@pytest.mark.parametrize(
    ("num_background", "uncertainty", "is_at_end"), [(1e5, 0.5, True), (1e-3, 0.0, False)]
)
def test_a_highest_significance_at_the_end_of_the_scan_is_marked(
    num_background: float, uncertainty: float, is_at_end: bool
) -> None:
    labels = np.repeat([0, 1, 2], 2000)
    signal = np.random.default_rng(4).beta(*np.array([(1, 1), (9, 1), (1, 1)])[labels].T)
    expected = {0: num_background, 1: 10.0, 2: num_background}

    scan = numbers_of(
        events_with_signal(labels, signal), expected=expected, uncertainty=uncertainty
    )["significance"]

    assert scan["best_is_at_end"] == is_at_end
    assert is_at_end or scan["best"] > 10
