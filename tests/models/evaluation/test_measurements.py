"""All numbers of one model: by hand, by slow loops, and against scipy."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import beta, ks_2samp

from features.columns import HLF_NAMES, NUM_HLF
from models.errors import UndefinedMetricError
from models.evaluation.curves import KINEMATIC_EDGES
from models.evaluation.efficiencies import ONE_SIGMA, Efficiency, WorkingPoint
from models.evaluation.measurements import Rates, ScoredEvents, importance, measure

CLASSES = ["QCD", "ttbar", "W+jets"]


def made_events(count: int, *, seed: int = 1, lightest: float = 1.0) -> ScoredEvents:
    """Events of three classes, scores with ties, and weights from `lightest` to 2; kinematics on bin edges too."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    labels[:3] = range(3)
    raw = rng.exponential(1.0, (count, 3)) + 2 * np.eye(3)[labels]
    scores = np.round(raw / raw.sum(axis=1, keepdims=True), 1)
    hlf = rng.normal(60, 60, (count, NUM_HLF)).astype(np.float32)
    for name, edges in KINEMATIC_EDGES.items():
        hlf[: count // 2, HLF_NAMES.index(name)] = rng.choice(edges, count // 2)
    weights = np.ones(count) if lightest == 1 else rng.choice([lightest, 0.5, 1.0, 2.0], count)
    return ScoredEvents(labels, scores, weights, hlf, np.array(CLASSES)[labels])


def measured(events: ScoredEvents, train: ScoredEvents | None = None, **changes: Any) -> dict[str, Any]:
    """The numbers; signal is ttbar at an efficiency of 0.5 unless told otherwise."""
    chosen: dict[str, Any] = {"signal": 1, "working_points": [0.5], "rates": None} | changes
    return measure(events, train, CLASSES, **chosen)


def interval(value: float, size: float) -> dict[str, float]:
    """Clopper and Pearson's, from the definition."""
    passed, failed = min(max(value, 0.0), 1.0) * size, (1 - min(max(value, 0.0), 1.0)) * size
    low = beta.ppf(ONE_SIGMA / 2, passed, failed + 1) if passed > 0 else 0.0
    high = beta.ppf(1 - ONE_SIGMA / 2, passed + 1, failed) if failed > 0 else 1.0
    return {"value": value, "low": float(low), "high": float(high)}


def share(passing: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    """Weighted share by a slow loop, with its interval."""
    total = passed = squares = 0.0
    for one, weight in zip(passing, weights, strict=True):
        total, squares = total + weight, squares + weight**2
        passed += weight if one else 0.0
    return interval(passed / total, total**2 / squares)


def same(found: dict[str, float], expected: dict[str, float]) -> bool:
    return found == pytest.approx(expected, abs=1e-9)


def test_a_working_point_by_hand() -> None:
    # ttbar from the top: 0.9 (weight 1), 0.7 (weight 2), 0.2 (weight 1): half the weight needs 0.7.
    labels = np.array([1, 1, 1, 0, 0, 2])
    signal_scores = np.array([0.9, 0.7, 0.2, 0.8, 0.1, 0.7])
    weights = np.array([1.0, 2.0, 1.0, 1.0, 3.0, 1.0])
    scores = np.stack([0.6 * (1 - signal_scores), signal_scores, 0.4 * (1 - signal_scores)], axis=1)
    events = ScoredEvents(labels, scores, weights, np.zeros((6, NUM_HLF), np.float32), np.array(CLASSES)[labels])
    found = measured(events, rates=Rates({"QCD": {"QCD": 100.0}, "ttbar": {"ttbar": 8.0}, "W+jets": {"W+jets": 10.0}}))[
        "working_points"
    ]
    (point,) = json.loads(json.dumps(found))
    assert {key: point[key] for key in ("wanted", "threshold", "measurable", "rates")} == {
        "wanted": 0.5,
        "threshold": 0.7,
        "measurable": False,
        "rates": {"QCD": 25.0, "ttbar": 6.0, "W+jets": 10.0},
    }
    assert point["num_failing"] == pytest.approx(0.5 * 4**2 / 6)
    assert point["purity"] == pytest.approx(6 / 41)
    assert same(point["signal"], interval(0.75, 4**2 / 6))
    assert list(point["backgrounds"]) == ["QCD", "W+jets"]
    assert same(point["backgrounds"]["QCD"], interval(0.25, 4**2 / 10))
    assert same(point["backgrounds"]["W+jets"], {"value": 1.0, "low": ONE_SIGMA / 2, "high": 1.0})


def test_rates_go_to_the_classes_whatever_the_signal_is() -> None:
    point = WorkingPoint(
        0.9, 0.5, Efficiency(0.9, 0, 1), {0: Efficiency(0.1, 0, 1), 1: Efficiency(0.2, 0, 1)}, 20.0
    )  # fmt: skip
    rates = Rates({"QCD": {"a": 600.0, "b": 400.0}, "ttbar": {"a": 50.0}, "W+jets": {"a": 10.0}})
    found = rates.behind(made_events(3), point, CLASSES, 2)
    assert found["rates"] == pytest.approx({"QCD": 100.0, "ttbar": 10.0, "W+jets": 9.0})
    assert found["purity"] == pytest.approx(9 / 119)


@pytest.mark.parametrize(("background", "purity"), [(0.0, 1.0), (-0.05, None), (-0.5, None)])
def test_a_purity_that_is_not_defined_is_null_and_not_a_word_that_json_lacks(
    background: float, purity: float | None
) -> None:
    point = WorkingPoint(0.5, 0.5, Efficiency(0.5, 0, 1), {0: Efficiency(background, 0, 1)}, 20.0)
    found = Rates({"a": {"-": 100.0}, "b": {"-": 10.0}}).behind(made_events(3), point, ["a", "b"], 1)
    assert json.loads(json.dumps(found, allow_nan=False))["purity"] == purity


@pytest.mark.parametrize("lightest", [1.0, 0.25, -0.5])
def test_calibration_counts_classes_alike(lightest: float) -> None:
    events = made_events(300, lightest=lightest)
    found = measured(events)["calibration"]
    sums = [sum(w for w, label in zip(events.weights, events.labels, strict=True) if label == k) for k in range(3)]
    weights = np.array([w / sums[label] for w, label in zip(events.weights, events.labels, strict=True)])
    for place, name in enumerate(CLASSES):
        predicted, distance, total = events.probabilities[:, place], 0.0, 0.0
        bins = iter(found[name]["bins"])
        for edge in range(10):
            # (low, high], the first with its lower edge.
            inside = (predicted > edge / 10) & (predicted <= (edge + 1) / 10)
            if edge == 0:
                inside |= predicted == 0
            weight = math.fsum(weights[inside])
            if weight <= 0:
                continue
            each, mean = next(bins), math.fsum(weights[inside] * predicted[inside]) / weight
            observed = share(events.labels[inside] == place, weights[inside])
            assert (each["low"], each["high"], each["num_events"]) == (edge / 10, (edge + 1) / 10, inside.sum())
            assert (each["weight"], each["mean_predicted"]) == pytest.approx((weight, mean))
            assert same(each["observed"], observed)
            distance, total = distance + weight * abs(observed["value"] - mean), total + weight
        assert next(bins, None) is None
        assert found[name]["error"] == pytest.approx(distance / total)


def test_right_probabilities_of_a_mixture_of_classes_alike_are_calibrated_whatever_the_sample_has() -> None:
    rng = np.random.default_rng(3)
    labels = np.repeat([0, 1, 2], [20_000, 4000, 2000])
    # One feature with two values; only its share distinguishes the third class.
    is_high = rng.random(len(labels)) < np.array([0.2, 0.8, 0.5])[labels]
    likelihood = np.where(is_high[:, None], [0.2, 0.8, 0.5], [0.8, 0.2, 0.5])
    scores = likelihood / likelihood.sum(axis=1, keepdims=True)
    found = measured(
        ScoredEvents(
            labels, scores, np.ones(len(labels)), np.zeros((len(labels), NUM_HLF), np.float32), labels.astype(str)
        )
    )
    assert max(each["error"] for each in found["calibration"].values()) < 0.01


def test_shapes_of_unit_weights_are_those_of_scipy() -> None:
    events, train = made_events(200), made_events(90, seed=2)
    found = measured(events, train)["train_against_test"]
    assert list(found) == CLASSES
    for output, name in enumerate(CLASSES):
        for truth, true_name in enumerate(CLASSES):
            first = train.probabilities[train.labels == truth, output]
            second = events.probabilities[events.labels == truth, output]
            expected = ks_2samp(first, second, method="asymp")
            assert found[name][true_name] == pytest.approx(
                {"distance": expected.statistic, "p_value": expected.pvalue}, abs=1e-12
            )


def test_shapes_of_weighted_events_are_those_of_a_slow_loop_also_with_negative_weights() -> None:
    events, train = made_events(120, lightest=-0.25), made_events(80, seed=2, lightest=-0.25)
    found = measured(events, train)["train_against_test"]["ttbar"]["W+jets"]

    def below(which: ScoredEvents, place: float) -> float:
        rows = [row for row in range(len(which.labels)) if which.labels[row] == 2]
        passing = [row for row in rows if which.probabilities[row, 1] <= place]
        return math.fsum(which.weights[passing]) / math.fsum(which.weights[rows])

    places = np.concatenate([events.probabilities[:, 1], train.probabilities[:, 1]])
    expected = max(abs(below(events, place) - below(train, place)) for place in places)
    assert found["distance"] == pytest.approx(expected)
    assert 0 < found["p_value"] <= 1


def test_the_same_events_do_not_differ() -> None:
    events = made_events(100, lightest=-0.25)
    for tests in measured(events, events)["train_against_test"].values():
        assert all(each == {"distance": 0.0, "p_value": 1.0} for each in tests.values())


@pytest.mark.parametrize("lightest", [1.0, -0.25])
def test_efficiencies_against_kinematics_are_those_of_a_slow_loop(lightest: float) -> None:
    events = made_events(400, lightest=lightest)
    numbers = measured(events, working_points=[0.6, 0.9])
    threshold = numbers["working_points"][0]["threshold"]
    assert list(numbers["efficiency_against"]) == list(KINEMATIC_EDGES)
    empty = 0
    for variable, edges in KINEMATIC_EDGES.items():
        found = numbers["efficiency_against"][variable]
        assert found["edges"] == list(edges)
        values = events.hlf[:, HLF_NAMES.index(variable)]
        for place, name in enumerate(CLASSES):
            for index, bin_ in enumerate(found["classes"][name]):
                low = -math.inf if index == 0 else edges[index]
                high = math.inf if index == len(edges) - 2 else edges[index + 1]
                inside = [
                    row for row in range(400) if events.labels[row] == place and low <= float(values[row]) < high
                ]  # fmt: skip
                weights = events.weights[inside]
                if math.fsum(weights) <= 0:
                    empty += 1
                    assert bin_ is None
                else:
                    assert same(bin_, share(events.probabilities[inside, 1] >= threshold, weights))
    assert (empty > 0) == (lightest < 0)


def test_negative_weights_give_numbers_that_json_knows() -> None:
    numbers = measured(made_events(200, lightest=-0.5), made_events(100, seed=4, lightest=-0.5))
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers


def test_tied_scores_pass_together() -> None:
    events = made_events(60)
    tied = events._replace(probabilities=np.full((60, 3), 1 / 3))
    (point,) = measured(tied)["working_points"]
    assert point["signal"]["value"] == 1
    assert {each["value"] for each in point["backgrounds"].values()} == {1.0}
    assert {each["value"] for each in measured(tied)["auc"].values()} == {0.5}


@pytest.mark.parametrize("kind", ["no events", "no weight"])
@pytest.mark.parametrize("split", ["test", "training"])
def test_a_class_that_cannot_be_measured_is_named(kind: str, split: str) -> None:
    whole = made_events(60)
    if kind == "no events":
        kept = whole.labels != 2
        less = ScoredEvents(*(column[kept] for column in whole))
    else:
        less = whole._replace(weights=np.where(whole.labels == 2, 0.0, 1.0))
    with pytest.raises(UndefinedMetricError, match=rf"there are no W\+jets {split} events"):
        measured(*((less, whole) if split == "test" else (whole, less)))


def test_importance_is_the_area_that_is_lost() -> None:
    class OneFeature:
        """Uses one feature only."""

        inputs = ("hlf",)

        def probabilities(self, columns: Any) -> np.ndarray:
            high = 1 / (1 + np.exp(-columns["hlf"][:, 3].astype(np.float32)))
            return np.stack([1 - high, high], axis=1)

    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 1000)
    hlf = rng.normal(0, 1, (1000, NUM_HLF)).astype(np.float32)
    hlf[:, 3] = 2 * labels - 1
    events = ScoredEvents(labels, np.zeros((1000, 2)), rng.uniform(0.5, 1.5, 1000), hlf, labels.astype(str))
    found = importance(OneFeature(), events, signal=1, generator=np.random.default_rng(2))
    assert list(found) == list(HLF_NAMES)
    # From 1 to what chance gives.
    assert found[HLF_NAMES[3]]["value"] == pytest.approx(0.5, abs=0.05)
    assert all(each == {"value": 0.0, "error": 0.0} for name, each in found.items() if name != HLF_NAMES[3])


def test_events_are_the_columns_of_a_table_and_the_first_of_them() -> None:
    events = made_events(5)
    table = pa.table(
        {
            "label": events.labels,
            "weight": events.weights,
            "sample": events.samples,
            "hlf": pa.array(list(events.hlf)),
            "probability": pa.array(list(events.probabilities)),
        }
    )
    found = ScoredEvents.of(table)
    assert (found.probabilities.dtype, found.weights.dtype) == (np.float64, np.float64)
    for column, expected, first in zip(found, events, found.first(2), strict=True):
        np.testing.assert_array_equal(column, expected)
        np.testing.assert_array_equal(first, expected[:2])
