"""Shifts at fixed thresholds, against numbers found by hand and against many repetitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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
    return np.stack([1 - np.array(signal), signal], axis=1)


EVENTS = events_with(
    [0, 0, 0, 0, 1, 1], two_class_probabilities([0.1, 0.2, 0.6, 0.9, 0.4, 0.8]), [1.0] * 6
)


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
    assert point["efficiencies"]["QCD"]["value"] == pytest.approx(2 / 5)
    assert point["efficiencies"]["QCD"]["shift"] == pytest.approx(2 / 5 - 1 / 2)
    assert point["efficiencies"]["ttbar"]["shift"] == pytest.approx(1 / 4 - 1 / 2)
    assert numbers["accuracy"]["value"] == pytest.approx((3 / 5 + 1 / 4) / 2)
    assert numbers["accuracy"]["shift"] == pytest.approx((3 / 5 - 2 / 4 + 1 / 4 - 1 / 2) / 2)


def test_weights_of_another_scale_shift_nothing() -> None:
    (numbers,) = reweighted(7.0 * EVENTS.weights)

    efficiencies = numbers["working_points"][0]["efficiencies"]
    for shift in (numbers["accuracy"], numbers["auc"], *efficiencies.values()):
        assert shift["shift"] == pytest.approx(0, abs=1e-12)
        assert shift["error"] == pytest.approx(0, abs=1e-12)


def test_an_envelope_has_the_largest_shifts_and_the_root_mean_square() -> None:
    further_down = np.array([4.0, 2.0, 1.0, 1.0, 1.0, 1.0])

    (point,) = envelope(reweighted(UP, further_down, np.ones(6)))["working_points"]

    assert point["wanted"] == 0.5
    # Of QCD 2 of 5 pass, 2 of 8, and 2 of 4.
    qcd_rms, ttbar_rms = np.sqrt((0.1**2 + 0.25**2) / 3), 0.25 / np.sqrt(3)
    efficiencies = point["efficiencies"]
    assert efficiencies["QCD"] == pytest.approx({"down": -0.25, "up": 0.0, "rms": qcd_rms})
    assert efficiencies["ttbar"] == pytest.approx({"down": -0.25, "up": 0.0, "rms": ttbar_rms})


def test_an_envelope_has_shifts_in_both_directions() -> None:
    rising = np.array([1.0, 1.0, 1.0, 5.0, 1.0, 1.0])

    (point,) = envelope(reweighted(UP, rising))["working_points"]

    qcd = point["efficiencies"]["QCD"]
    assert (qcd["down"], qcd["up"]) == pytest.approx((-0.1, 0.25))


@pytest.mark.parametrize("weights", [CANCELLING, CANCELLING_BUT_FOR_ROUNDING])
def test_a_class_without_weight_has_no_shift_and_no_envelope(weights: np.ndarray) -> None:
    up, cancelling = reweighted(UP, weights)

    for numbers in (cancelling, envelope([up, cancelling])):
        assert numbers["accuracy"] is None
        assert numbers["auc"] is None
        assert numbers["working_points"][0]["efficiencies"]["QCD"] is None


def test_an_event_that_is_not_selected_passes_no_threshold() -> None:
    is_selected = np.array([True, True, True, False, True, True])
    variation = EventVariation(EVENTS.weights, EVENTS.probabilities, is_selected)

    numbers = variations(EVENTS, {"jets": variation}, TASK, [0.5])["jets"]

    efficiencies = numbers["working_points"][0]["efficiencies"]
    assert efficiencies["QCD"]["value"] == pytest.approx(1 / 4)
    assert efficiencies["ttbar"]["shift"] == 0


def test_an_unmeasured_class_leaves_the_shifts_of_the_others_as_they_are() -> None:
    padded = np.column_stack([EVENTS.probabilities, np.zeros(6)])
    events = events_with(
        np.append(EVENTS.labels, [2, 2]),
        np.vstack([padded, np.full((2, 3), 1 / 3)]),
        np.append(EVENTS.weights, [1.0, -1.0]),
    )
    task = THREE_CLASSES._replace(unmeasured=frozenset({2}))
    up = {"up": with_weights(events, np.append(UP, [2.0, -2.0]))}

    numbers = variations(events, up, task, [0.5])["up"]

    (expected,) = reweighted(UP)
    assert numbers["accuracy"] == pytest.approx(expected["accuracy"])
    assert numbers["auc"] == pytest.approx(expected["auc"])
    efficiencies = expected["working_points"][0]["efficiencies"]
    assert numbers["working_points"][0]["efficiencies"] == efficiencies | {"W+jets": None}


def test_the_area_is_the_weighted_share_of_pairs_in_order() -> None:
    rng = np.random.default_rng(3)
    labels, raw = rng.integers(0, 3, 60), rng.integers(0, 12, (60, 3)) + 0.5
    probabilities = raw / raw.sum(axis=1, keepdims=True)
    is_selected = rng.uniform(size=60) < 0.8
    # The weights of a class add up to less than 1.
    events = events_with(labels, probabilities, 0.01 * rng.uniform(0.5, 2, 60))
    other_weights = rng.uniform(0.5, 2, 60)
    ratio = probabilities[:, 1] / (probabilities[:, 0] + probabilities[:, 2])
    selected_ratio = np.where(is_selected, ratio, -1)

    def area(weights: np.ndarray, score: np.ndarray) -> float:
        total = 0.0
        signal = labels == 1
        for label, fraction in THREE_CLASSES.mixture.fractions.items():
            background = labels == label
            difference = score[signal][:, None] - score[background]
            in_order = (difference > 0) + (difference == 0) / 2
            pair_weights = np.outer(weights[signal], weights[background])
            total += fraction * float(np.average(in_order, weights=pair_weights))
        return total

    varied = {
        "weights": with_weights(events, other_weights),
        "selection": EventVariation(events.weights, probabilities, is_selected),
    }
    numbers = variations(events, varied, THREE_CLASSES, [0.5])

    nominal = area(events.weights, ratio)
    expected = {
        "weights": area(other_weights, ratio),
        "selection": area(events.weights, selected_ratio),
    }
    for name, value in expected.items():
        assert numbers[name]["auc"]["value"] == pytest.approx(value)
        assert numbers[name]["auc"]["shift"] == pytest.approx(value - nominal)
        assert abs(value - nominal) > 0.003


def test_the_errors_are_the_spread_over_repeated_experiments() -> None:
    """Shifts of a share and of an area, by weights and by scores."""
    rng = np.random.default_rng(8)
    labels = np.repeat([0, 1], [150, 100])
    shifts, errors = [], []
    for _ in range(400):
        signal = 1 / (1 + np.exp(-rng.normal(0, 1, 250) - labels))
        shifted_signal = np.clip(signal + rng.normal(0, 0.1, 250), 0, 1)
        events = events_with(labels, two_class_probabilities(signal), np.ones(250))
        varied = {
            "weights": with_weights(events, np.exp(2 * signal)),
            "scores": EventVariation(
                events.weights, two_class_probabilities(shifted_signal), np.ones(250, np.bool_)
            ),
        }
        experiment = []
        for variation in variations(events, varied, TASK, [0.5]).values():
            efficiencies = variation["working_points"][0]["efficiencies"]
            experiment += [variation["auc"], efficiencies["QCD"]]
        shifts.append([estimate["shift"] for estimate in experiment])
        errors.append([estimate["error"] for estimate in experiment])

    np.testing.assert_allclose(np.mean(errors, axis=0), np.std(shifts, axis=0), rtol=0.12)
