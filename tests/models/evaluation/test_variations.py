"""Shifts at fixed thresholds, against numbers found by hand and against many repetitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from features.columns import hlf_names
from models.evaluation.evaluation_task import EvaluationTask
from models.evaluation.scored_events import ScoredEvents
from models.evaluation.style import NO_LABELS
from models.evaluation.variations import EventVariation, envelope, variations, with_weights

TASK = EvaluationTask(["QCD", "ttbar"], [1], [0.5], None, NO_LABELS, 1)
THREE_CLASSES = TASK._replace(classes=["QCD", "ttbar", "W+jets"])
UP = np.array([2.0, 1.0, 1.0, 1.0, 3.0, 1.0])
#: The weights of QCD cancel.
CANCELLING = np.array([1.0, -1.0, 1.0, -1.0, 1.0, 1.0])
CANCELLING_BUT_FOR_ROUNDING = np.array([0.1, 0.2, -0.3, 0.0, 1.0, 1.0])


def events_with(labels: Any, probabilities: np.ndarray, weights: Any) -> ScoredEvents:
    """Events of one sample without kinematics."""
    hlf = np.zeros((len(labels), len(hlf_names())), np.float32)
    names = np.full(len(labels), "a")
    return ScoredEvents(np.array(labels), probabilities, np.array(weights), hlf, names)


def two_class_probabilities(signal: Any) -> np.ndarray:
    background = 1 - np.array(signal)
    return np.stack([background, signal], axis=1)


SIGNAL_PROBABILITIES = [0.1, 0.2, 0.6, 0.9, 0.4, 0.8]
EVENTS = events_with([0, 0, 0, 0, 1, 1], two_class_probabilities(SIGNAL_PROBABILITIES), [1.0] * 6)


def reweighted(*weights: np.ndarray) -> list[dict[str, Any]]:
    """The numbers of `EVENTS` with other weights."""
    varied = {}
    for index, varied_weights in enumerate(weights):
        varied[str(index)] = with_weights(EVENTS, varied_weights)
    return list(variations(EVENTS, varied, TASK, [0.5]).values())


def test_other_weights_shift_shares_at_the_same_threshold() -> None:
    (numbers,) = reweighted(UP)

    (point,) = numbers["working_points"]
    assert point["wanted"] == 0.5
    # With the weights 2 of 5 of QCD and 1 of 4 of ttbar pass, without them half of both.
    qcd, ttbar = point["efficiencies"]["QCD"], point["efficiencies"]["ttbar"]
    assert qcd["value"] == pytest.approx(2 / 5)
    assert qcd["shift"] == pytest.approx(2 / 5 - 1 / 2)
    assert ttbar["shift"] == pytest.approx(1 / 4 - 1 / 2)
    nominal_accuracy = (2 / 4 + 1 / 2) / 2
    varied_accuracy = (3 / 5 + 1 / 4) / 2
    accuracy = numbers["accuracy"]
    assert accuracy["value"] == pytest.approx(varied_accuracy)
    assert accuracy["shift"] == pytest.approx(varied_accuracy - nominal_accuracy)


def test_weights_of_another_scale_shift_nothing() -> None:
    (numbers,) = reweighted(7.0 * EVENTS.weights)

    (point,) = numbers["working_points"]
    efficiencies = point["efficiencies"]
    for shift in (numbers["accuracy"], numbers["auc"], *efficiencies.values()):
        assert shift["shift"] == pytest.approx(0, abs=1e-12)
        assert shift["error"] == pytest.approx(0, abs=1e-12)


def test_an_envelope_has_the_largest_shifts_and_the_root_mean_square() -> None:
    further_down = np.array([4.0, 2.0, 1.0, 1.0, 1.0, 1.0])
    shifts = reweighted(UP, further_down, np.ones(6))

    (point,) = envelope(shifts)["working_points"]

    assert point["wanted"] == 0.5
    # Of QCD 2 of 5 pass, 2 of 8, and 2 of 4.
    qcd_rms = np.sqrt((0.1**2 + 0.25**2) / 3)
    ttbar_rms = np.sqrt(0.25**2 / 3)
    efficiencies = point["efficiencies"]
    assert efficiencies["QCD"] == pytest.approx({"down": -0.25, "up": 0.0, "rms": qcd_rms})
    assert efficiencies["ttbar"] == pytest.approx({"down": -0.25, "up": 0.0, "rms": ttbar_rms})


def test_an_envelope_has_shifts_in_both_directions() -> None:
    rising = np.array([1.0, 1.0, 1.0, 5.0, 1.0, 1.0])

    shifts = reweighted(UP, rising)

    (point,) = envelope(shifts)["working_points"]

    # 2 of 5 pass, and 6 of 8, instead of half.
    qcd = point["efficiencies"]["QCD"]
    assert qcd["down"] == pytest.approx(-0.1)
    assert qcd["up"] == pytest.approx(0.25)


@pytest.mark.parametrize("weights", [CANCELLING, CANCELLING_BUT_FOR_ROUNDING])
def test_a_class_without_weight_has_no_shift_and_no_envelope(weights: np.ndarray) -> None:
    up, cancelling = reweighted(UP, weights)

    for numbers in (cancelling, envelope([up, cancelling])):
        (point,) = numbers["working_points"]
        assert numbers["accuracy"] is None
        assert numbers["auc"] is None
        assert point["efficiencies"]["QCD"] is None


def test_an_event_that_is_not_selected_passes_no_threshold() -> None:
    is_selected = np.array([True, True, True, False, True, True])
    variation = EventVariation(EVENTS.weights, EVENTS.probabilities, is_selected)

    numbers = variations(EVENTS, {"jets": variation}, TASK, [0.5])["jets"]

    (point,) = numbers["working_points"]
    efficiencies = point["efficiencies"]
    assert efficiencies["QCD"]["value"] == pytest.approx(1 / 4)
    assert efficiencies["ttbar"]["shift"] == 0


def test_an_unmeasured_class_leaves_the_shifts_of_the_others_as_they_are() -> None:
    measured_probabilities = np.column_stack([EVENTS.probabilities, np.zeros(6)])
    unmeasured_probabilities = np.full((2, 3), 1 / 3)
    labels = np.append(EVENTS.labels, [2, 2])
    probabilities = np.vstack([measured_probabilities, unmeasured_probabilities])
    weights = np.append(EVENTS.weights, [1.0, -1.0])
    up_weights = np.append(UP, [2.0, -2.0])
    events = events_with(labels, probabilities, weights)
    task = THREE_CLASSES._replace(unmeasured=frozenset({2}))
    varied = {"up": with_weights(events, up_weights)}

    numbers = variations(events, varied, task, [0.5])["up"]

    (expected,) = reweighted(UP)
    assert numbers["accuracy"] == pytest.approx(expected["accuracy"])
    assert numbers["auc"] == pytest.approx(expected["auc"])
    (point,) = numbers["working_points"]
    (expected_point,) = expected["working_points"]
    expected_efficiencies = {**expected_point["efficiencies"], "W+jets": None}
    assert point["efficiencies"] == expected_efficiencies


def area_by_pairs(labels: np.ndarray, weights: np.ndarray, scores: np.ndarray) -> float:
    """The weighted share of pairs of signal and background that are in order; ties are a half."""
    total = 0.0
    is_signal = labels == 1
    for label, fraction in THREE_CLASSES.mixture.fractions.items():
        is_background = labels == label
        difference = np.subtract.outer(scores[is_signal], scores[is_background])
        in_order = np.heaviside(difference, 0.5)
        pair_weights = np.outer(weights[is_signal], weights[is_background])
        total += fraction * float(np.average(in_order, weights=pair_weights))
    return total


def test_the_area_is_the_weighted_share_of_pairs_in_order() -> None:
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 3, 60)
    class_scores = rng.integers(0, 12, (60, 3)) + 0.5
    probabilities = class_scores / class_scores.sum(axis=1, keepdims=True)
    is_selected = rng.uniform(size=60) < 0.8
    # The weights of a class add up to less than 1.
    weights = 0.01 * rng.uniform(0.5, 2, 60)
    other_weights = rng.uniform(0.5, 2, 60)
    events = events_with(labels, probabilities, weights)
    varied = {
        "weights": with_weights(events, other_weights),
        "selection": EventVariation(weights, probabilities, is_selected),
    }

    numbers = variations(events, varied, THREE_CLASSES, [0.5])

    score = probabilities[:, 1] / (probabilities[:, 0] + probabilities[:, 2])
    score_if_selected = np.where(is_selected, score, -1)
    nominal_area = area_by_pairs(labels, weights, score)
    expected_areas = {
        "weights": area_by_pairs(labels, other_weights, score),
        "selection": area_by_pairs(labels, weights, score_if_selected),
    }
    for name, expected_area in expected_areas.items():
        area = numbers[name]["auc"]
        expected_shift = expected_area - nominal_area
        assert area["value"] == pytest.approx(expected_area)
        assert area["shift"] == pytest.approx(expected_shift)
        assert abs(expected_shift) > 0.003


def test_the_errors_are_the_spread_over_repeated_experiments() -> None:
    """Shifts of a share and of an area, by weights and by scores."""
    rng = np.random.default_rng(8)
    labels = np.repeat([0, 1], [150, 100])
    weights = np.ones(250)
    all_selected = np.ones(250, np.bool_)
    shifts = []
    errors = []
    for _ in range(400):
        signal = expit(rng.normal(0, 1, 250) + labels)
        shifted_signal = np.clip(signal + rng.normal(0, 0.1, 250), 0, 1)
        shifted_probabilities = two_class_probabilities(shifted_signal)
        events = events_with(labels, two_class_probabilities(signal), weights)
        varied = {
            "weights": with_weights(events, np.exp(2 * signal)),
            "scores": EventVariation(weights, shifted_probabilities, all_selected),
        }
        experiment = []
        for numbers in variations(events, varied, TASK, [0.5]).values():
            (point,) = numbers["working_points"]
            experiment += [numbers["auc"], point["efficiencies"]["QCD"]]
        shifts.append([estimate["shift"] for estimate in experiment])
        errors.append([estimate["error"] for estimate in experiment])

    mean_errors = np.mean(errors, axis=0)
    spread_of_shifts = np.std(shifts, axis=0)
    np.testing.assert_allclose(mean_errors, spread_of_shifts, rtol=0.12)
