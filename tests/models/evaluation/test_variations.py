"""Shifts of efficiencies at fixed thresholds, against numbers found by hand and against many repetitions."""

from __future__ import annotations

import numpy as np
import pytest

from features.columns import hlf_names
from models.evaluation.measurements import EvaluationTask
from models.evaluation.scored_events import ScoredEvents
from models.evaluation.style import NO_LABELS
from models.evaluation.variations import Varied, envelope, variations, with_weights

TASK = EvaluationTask(["QCD", "ttbar"], [1], [0.5], None, NO_LABELS, 1)


def events_of(labels: list[int], signal: list[float], weights: list[float]) -> ScoredEvents:
    scores = np.array(signal)
    return ScoredEvents(
        np.array(labels),
        np.stack([1 - scores, scores], axis=1),
        np.array(weights),
        np.zeros((len(labels), len(hlf_names())), np.float32),
        np.full(len(labels), "a"),
    )


EVENTS = events_of([0, 0, 0, 0, 1, 1], [0.1, 0.2, 0.6, 0.9, 0.4, 0.8], [1.0] * 6)


def test_other_weights_shift_shares_at_the_same_threshold() -> None:
    varied = with_weights(EVENTS, np.array([2.0, 1.0, 1.0, 1.0, 3.0, 1.0]))
    actual = variations(EVENTS, {"up": varied}, TASK, [0.5])["up"]
    (point,) = actual["working_points"]
    assert point["wanted"] == 0.5
    assert point["efficiencies"]["QCD"]["value"] == pytest.approx(2 / 5)
    assert point["efficiencies"]["QCD"]["shift"] == pytest.approx(2 / 5 - 1 / 2)
    assert point["efficiencies"]["ttbar"]["shift"] == pytest.approx(1 / 4 - 1 / 2)
    assert actual["accuracy"]["value"] == pytest.approx((3 / 5 + 1 / 4) / 2)
    assert actual["accuracy"]["shift"] == pytest.approx((3 / 5 - 2 / 4 + 1 / 4 - 1 / 2) / 2)


def test_weights_of_another_scale_shift_nothing() -> None:
    actual = variations(EVENTS, {"same": with_weights(EVENTS, 7.0 * EVENTS.weights)}, TASK, [0.5])[
        "same"
    ]
    for shift in (actual["accuracy"], *actual["working_points"][0]["efficiencies"].values()):
        assert shift["shift"] == pytest.approx(0, abs=1e-12)
        assert shift["error"] == pytest.approx(0, abs=1e-12)


def test_several_weights_give_the_largest_shifts_and_the_root_mean_square() -> None:
    weights = {
        "down": np.array([2.0, 1.0, 1.0, 1.0, 3.0, 1.0]),
        "further": np.array([4.0, 2.0, 1.0, 1.0, 1.0, 1.0]),
        "same": np.ones(6),
    }
    actual = variations(
        EVENTS,
        {name: with_weights(EVENTS, event_weights) for name, event_weights in weights.items()},
        TASK,
        [0.5],
    )
    (point,) = envelope(list(actual.values()))["working_points"]
    assert point["wanted"] == 0.5
    # Of QCD 2 of 4 pass, 2 of 5, and 2 of 8.
    rms = np.sqrt((0.1**2 + 0.25**2) / 3)
    assert point["efficiencies"]["QCD"] == pytest.approx({"down": -0.25, "up": 0.0, "rms": rms})
    assert point["efficiencies"]["ttbar"] == pytest.approx(
        {"down": -0.25, "up": 0.0, "rms": 0.25 / np.sqrt(3)}
    )
    rising = with_weights(EVENTS, np.array([1.0, 1.0, 1.0, 5.0, 1.0, 1.0]))
    pair = variations(
        EVENTS, {"down": with_weights(EVENTS, weights["down"]), "up": rising}, TASK, [0.5]
    )
    qcd = envelope(list(pair.values()))["working_points"][0]["efficiencies"]["QCD"]
    assert (qcd["down"], qcd["up"]) == pytest.approx((-0.1, 0.25))
    odd = variations(
        EVENTS,
        {"odd": with_weights(EVENTS, np.array([1.0, -1.0, 1.0, -1.0, 1.0, 1.0]))},
        TASK,
        [0.5],
    )
    assert envelope([*actual.values(), odd["odd"]])["accuracy"] is None


def test_an_event_that_the_selection_rejects_passes_no_threshold_and_counts_below() -> None:
    is_selected = np.array([True, True, True, False, True, True])
    varied = Varied(EVENTS.weights, EVENTS.probabilities, is_selected)
    actual = variations(EVENTS, {"jets": varied}, TASK, [0.5])["jets"]
    assert actual["working_points"][0]["efficiencies"]["QCD"]["value"] == pytest.approx(1 / 4)
    assert actual["working_points"][0]["efficiencies"]["ttbar"]["shift"] == 0


def test_a_class_without_weight_has_no_shift() -> None:
    varied = with_weights(EVENTS, np.array([1.0, -1.0, 1.0, -1.0, 1.0, 1.0]))
    actual = variations(EVENTS, {"odd": varied}, TASK, [0.5])["odd"]
    assert actual["accuracy"] is None
    assert actual["auc"] is None
    assert actual["working_points"][0]["efficiencies"]["QCD"] is None


def test_a_class_that_is_not_measured_leaves_the_shifts_of_all_others_as_they_are() -> None:
    labels = np.append(EVENTS.labels, [2, 2])
    probabilities = np.vstack(
        [np.column_stack([EVENTS.probabilities, np.zeros(6)]), np.full((2, 3), 1 / 3)]
    )
    hlf, samples = np.zeros((8, len(hlf_names())), np.float32), np.full(8, "a")
    events = ScoredEvents(
        labels, probabilities, np.append(EVENTS.weights, [1.0, -1.0]), hlf, samples
    )
    task = TASK._replace(classes=["QCD", "ttbar", "W+jets"], unmeasured=frozenset({2}))
    weights = np.array([2.0, 1.0, 1.0, 1.0, 3.0, 1.0])
    expected = variations(EVENTS, {"up": with_weights(EVENTS, weights)}, TASK, [0.5])["up"]
    actual = variations(
        events, {"up": with_weights(events, np.append(weights, [2.0, -2.0]))}, task, [0.5]
    )["up"]
    assert actual["accuracy"] == pytest.approx(expected["accuracy"])
    assert actual["auc"] == pytest.approx(expected["auc"])
    efficiencies = expected["working_points"][0]["efficiencies"]
    assert actual["working_points"][0]["efficiencies"] == efficiencies | {"W+jets": None}


def test_the_area_is_the_weighted_share_of_pairs_in_order() -> None:
    rng = np.random.default_rng(3)
    labels, scores = rng.integers(0, 3, 60), rng.integers(0, 12, (60, 3)) + 0.5
    probabilities, is_selected = (
        scores / scores.sum(axis=1, keepdims=True),
        rng.uniform(size=60) < 0.8,
    )
    hlf = np.zeros((60, len(hlf_names())), np.float32)
    # The weights of a class add up to less than 1.
    events = ScoredEvents(
        labels, probabilities, 0.01 * rng.uniform(0.5, 2, 60), hlf, np.full(60, "a")
    )
    task = TASK._replace(classes=["QCD", "ttbar", "W+jets"])
    weights = rng.uniform(0.5, 2, 60)
    ratio = probabilities[:, 1] / (probabilities[:, 0] + probabilities[:, 2])

    def area(weights: np.ndarray, signal: np.ndarray) -> float:
        actual = 0.0
        for label, fraction in task.mixture.fractions.items():
            pairs = [
                (weights[i] * weights[j], (signal[i] > signal[j]) + (signal[i] == signal[j]) / 2)
                for i in np.flatnonzero(labels == 1)
                for j in np.flatnonzero(labels == label)
            ]
            actual += fraction * sum(w * v for w, v in pairs) / sum(w for w, _ in pairs)
        return actual

    nominal, moved = (
        area(events.weights, ratio),
        area(events.weights, np.where(is_selected, ratio, -1)),
    )
    varied = {
        "w": with_weights(events, weights),
        "s": Varied(events.weights, probabilities, is_selected),
    }
    actual = variations(events, varied, task, [0.5])
    for name, expected in (("w", area(weights, ratio)), ("s", moved)):
        assert actual[name]["auc"]["value"] == pytest.approx(expected)
        assert actual[name]["auc"]["shift"] == pytest.approx(expected - nominal)
        assert abs(expected - nominal) > 0.003
    lowest = min(shift["auc"]["shift"] for shift in actual.values())
    assert envelope(list(actual.values()))["auc"]["down"] == pytest.approx(min(0, lowest))


def test_the_errors_are_the_spread_over_repeated_experiments() -> None:
    """The shifts of a share and of an area, by weights and by scores."""
    rng = np.random.default_rng(8)
    shifts, errors = [], []
    for _ in range(400):
        labels = [0] * 150 + [1] * 100
        score = 1 / (1 + np.exp(-rng.normal(0, 1, 250) - labels))
        events = events_of(labels, list(score), [1.0] * 250)
        moved = np.clip(score + rng.normal(0, 0.1, 250), 0, 1)
        varied = {
            "w": with_weights(events, np.exp(2 * score)),
            "s": Varied(
                events.weights, np.stack([1 - moved, moved], axis=1), np.ones(250, np.bool_)
            ),
        }
        results = variations(events, varied, TASK, [0.5]).values()
        numbers = [
            first
            for result in results
            for first in (result["auc"], result["working_points"][0]["efficiencies"]["QCD"])
        ]
        shifts.append([shift["shift"] for shift in numbers])
        errors.append([shift["error"] for shift in numbers])
    np.testing.assert_allclose(np.mean(errors, axis=0), np.std(shifts, axis=0), rtol=0.12)
