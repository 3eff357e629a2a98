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
    events = random_events(600)
    expected = {"QCD": 100.0, "ttbar": 80.0, "W+jets": 40.0}
    rates = certain_rates(expected, are_events=True)
    expected_of_labels = {0: 100.0, 1: 80.0, 2: 40.0}

    numbers = numbers_of(events, rates=rates, expected=expected_of_labels, uncertainty=0.1)

    (point,) = numbers["working_points"]
    assert "rates" not in point
    shares = values({**point["backgrounds"], "ttbar": point["signal"]})
    num_behind = {name: expected[name] * share for name, share in shares.items()}
    assert values(point["events"]) == pytest.approx(num_behind)
    signal = point["signal_events"]["value"]
    background = point["background_events"]["value"]
    assert background == pytest.approx(num_behind["QCD"] + num_behind["W+jets"])
    assert point["purity"]["value"] == pytest.approx(signal / (signal + background))
    significance = point["significance"]
    asimov = asimov_significance(np.array(signal), np.array(background), 0.1)
    assert significance["value"] == pytest.approx(float(asimov))
    assert significance["low"] < significance["value"] < significance["high"]


def significance_at_point(events: ScoredEvents) -> dict[str, Any]:
    """Significance at a working point with 50 expected events of each class."""
    rates = certain_rates(dict.fromkeys(CLASSES, 50.0), are_events=True)
    numbers = numbers_of(events, rates=rates, expected={0: 50.0, 1: 50.0, 2: 50.0})
    (point,) = numbers["working_points"]
    significance: dict[str, Any] = point["significance"]
    return significance


def certain_probabilities(labels: np.ndarray) -> np.ndarray:
    """Probabilities of 1 for these of three classes."""
    return np.eye(3)[labels]


def test_without_background_behind_a_cut_the_significance_has_a_lower_limit() -> None:
    labels = np.repeat([0, 1, 2], 100)

    events = events_with(labels, certain_probabilities(labels))

    significance = significance_at_point(events)

    assert significance["value"] is None
    assert significance["limit"] == "lower"
    # 50 signal events on less than 1.84 of 200 at 84 %, that is, on less than about one.
    one_event = float(asimov_significance(np.array(50.0), np.array(1.0), 0.0))
    assert significance["low"] == pytest.approx(one_event, rel=0.3)


def test_without_background_in_many_replicas_the_significance_has_a_lower_limit() -> None:
    labels = np.repeat([0, 0, 1, 2], [86, 300, 100, 100])
    weights = np.repeat([1.0, -1.0, 1.0], [46, 40, 500])
    predicted = np.repeat([1, 0, 1, 2], [86, 300, 100, 100])

    events = events_with(labels, certain_probabilities(predicted), weights)

    significance = significance_at_point(events)

    assert significance["high"] is None
    assert significance["limit"] == "lower"
    assert 0 < significance["low"] < significance["value"]


def test_significances_are_those_of_the_events_behind_each_cut() -> None:
    events = random_events(600)
    expected = {0: 100.0, 1: 30.0, 2: 50.0}

    scan = numbers_of(events, expected=expected, uncertainty=0.1)["significance"]

    score = discriminant(events.probabilities, signal={1: 1.0}, fractions={0: 0.5, 2: 0.5})
    for index, threshold in enumerate(scan["threshold"]):
        passes = score >= threshold
        behind_cut = {}
        for label, num_expected in expected.items():
            share = float(passes[events.labels == label].mean())
            behind_cut[label] = num_expected * share
        signal = behind_cut[1]
        background = behind_cut[0] + behind_cut[2]
        simple, asimov = scan["simple"][index], scan["asimov"][index]
        assert scan["signal"][index] == pytest.approx(signal)
        assert scan["background"][index] == pytest.approx(background)
        assert simple == pytest.approx(signal / math.sqrt(background))
        assert scan["low"][index] < asimov < scan["high"][index]
        assert asimov < simple
        # Cuts with fewer background events are left out.
        num_background_events = passes[events.labels != 1].sum()
        assert num_background_events >= 9
    best = scan["best"]
    assert scan["asimov"][best] == max(scan["asimov"])
    assert scan["of"] == "expected events"
    certain_scan = numbers_of(events, expected=expected)["significance"]
    assert (np.array(certain_scan["asimov"]) > scan["asimov"]).all()


def test_without_an_expectation_significances_are_those_of_the_test_events() -> None:
    events = random_events(600)

    scan = numbers_of(events)["significance"]

    assert scan["of"] == "test events"
    num_signal = (events.labels == 1).sum()
    assert scan["signal"][-1] == pytest.approx(num_signal)


def test_background_events_count_in_the_parts_that_are_expected() -> None:
    # Nearly all of the background is of class 2, of which few events pass.
    labels = np.repeat([0, 1, 2], [3000, 500, 40])
    is_signal = labels == 1
    rng = np.random.default_rng(4)
    signal = rng.beta(np.where(is_signal, 4, 2), np.where(is_signal, 1, 2))
    events = events_with_signal(labels, signal)

    scan = numbers_of(events, expected={0: 1.0, 1: 30.0, 2: 1000.0})["significance"]

    score = discriminant(events.probabilities, signal={1: 1.0}, fractions={0: 0.5, 2: 0.5})
    score_of_class_2 = score[labels == 2]
    num_passing = []
    for threshold in scan["threshold"]:
        passes = score_of_class_2 >= threshold
        num_passing.append(int(passes.sum()))
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
    rng = np.random.default_rng(4)
    signal = rng.beta(np.where(labels == 1, 9, 1), 1)
    events = events_with_signal(labels, signal)
    expected = {0: num_background, 1: 10.0, 2: num_background}

    numbers = numbers_of(events, expected=expected, uncertainty=uncertainty)

    scan = numbers["significance"]
    assert scan["best_is_at_end"] == is_at_end
    assert is_at_end or scan["best"] > 10
