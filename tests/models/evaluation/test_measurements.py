"""All numbers of one model: by hand, by slow loops, and against scipy."""

from __future__ import annotations

import json
import math
import sys
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from features.columns import hlf_names
from models.errors import UndefinedMetricError
from models.evaluation.bootstrap import Estimate, Replicas
from models.evaluation.curves import KINEMATIC_EDGES
from models.evaluation.discriminant import discriminant
from models.evaluation.evaluation import Predicted, _variations
from models.evaluation.intervals import efficiency
from models.evaluation.measurements import (
    EvaluationTask,
    accuracy,
    measurable,
    measure,
    mixture_of,
    replicas_of,
)
from models.evaluation.rates import Rates
from models.evaluation.scored_events import ScoredEvents
from models.evaluation.significance import asimov_significance
from models.evaluation.style import NO_LABELS
from models.evaluation.variations import variations, with_weights
from models.prediction import Candidate, Predictor

CLASSES = ["QCD", "ttbar", "W+jets"]


def made_events(count: int, *, seed: int = 1, lightest: float = 1.0) -> ScoredEvents:
    """Events of three classes, scores with ties, and weights from `lightest` to 2; kinematics on bin edges too."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    labels[:3] = range(3)
    raw = rng.exponential(1.0, (count, 3)) + 2 * np.eye(3)[labels]
    scores = np.round(raw / raw.sum(axis=1, keepdims=True), 1)
    hlf = rng.normal(60, 60, (count, len(hlf_names()))).astype(np.float32)
    for name, edges in KINEMATIC_EDGES.items():
        hlf[: count // 2, hlf_names().index(name)] = rng.choice(edges, count // 2)
    weights = np.ones(count) if lightest == 1 else rng.choice([lightest, 0.5, 1.0, 2.0], count)
    return ScoredEvents(labels, scores, weights, hlf, np.array(CLASSES)[labels])


def bare(labels: Any, scores: Any, weights: Any = 1.0) -> ScoredEvents:
    """Events without kinematics, of a sample for each class."""
    nothing = np.zeros((len(labels), len(hlf_names())), np.float32)
    return ScoredEvents(
        labels, scores, np.ones(len(labels)) * weights, nothing, np.array(CLASSES)[labels]
    )


def measured(
    events: ScoredEvents, train: ScoredEvents | None = None, **changes: Any
) -> dict[str, Any]:
    """The numbers; signal is ttbar at an efficiency of 0.5 if nothing else is given."""
    settings: dict[str, Any] = {
        "signals": [1],
        "working_points": [0.5],
        "rates": None,
        "seed": 1,
    } | changes
    task = EvaluationTask(CLASSES, labels=NO_LABELS, **settings)
    return measure(events, train, replicas_of(events, task, num=200), task).numbers


def share(passing: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    """Weighted share, with its interval."""
    return efficiency(passing, weights).as_json()


def same(actual: dict[str, float], expected: dict[str, float]) -> bool:
    return actual == pytest.approx(expected, abs=1e-9)


def known(rates: dict[str, float]) -> Rates:
    """Rates of a sample of each class, named as the class."""
    labels = {name: label for label, name in enumerate(CLASSES)}
    return Rates({name: Estimate(rate, 0.0) for name, rate in rates.items()}, labels)


def test_a_working_point_by_hand() -> None:
    # ttbar from the top: 0.9 (weight 1), 0.7 (weight 2), 0.2 (weight 1): half the weight needs 0.7.
    labels = np.array([1, 1, 1, 0, 0, 2])
    signal_scores = np.array([0.9, 0.7, 0.2, 0.8, 0.1, 0.7])
    weights = np.array([1.0, 2.0, 1.0, 1.0, 3.0, 1.0])
    # Both backgrounds have the same probability, so that their fractions do not matter.
    scores = np.stack([0.5 * (1 - signal_scores), signal_scores, 0.5 * (1 - signal_scores)], axis=1)
    events = bare(labels, scores, weights)
    actual = measured(events, rates=known({"QCD": 100.0, "ttbar": 8.0, "W+jets": 10.0}))
    (point,) = json.loads(json.dumps(actual["working_points"], allow_nan=False))
    assert (point["wanted"], point["measurable"]) == (0.5, False)
    assert point["threshold"] == pytest.approx(0.7 / (0.7 + 0.15))
    assert {name: estimate["value"] for name, estimate in point["rates"].items()} == {
        "QCD": 25.0,
        "ttbar": 6.0,
        "W+jets": 10.0,
    }
    assert point["total_rate"]["value"] == 41
    assert point["num_failing"] == pytest.approx(1)
    assert point["purity"]["value"] == pytest.approx(6 / 41)
    assert same(point["signal"], share(np.array([True, True, False]), weights[:3]))
    assert {name: estimate["value"] for name, estimate in point["backgrounds"].items()} == {
        "QCD": 0.25,
        "W+jets": 1.0,
    }
    assert point["all_backgrounds"]["value"] == pytest.approx((100 * 0.25 + 10 * 1.0) / 110)


def test_the_mixture_is_that_of_the_rates_or_of_equal_parts_and_says_so() -> None:
    assert mixture_of(CLASSES, [0, 2], None) == ({0: 0.5, 2: 0.5}, "QCD and W+jets in equal parts")
    actual = mixture_of(CLASSES, [0, 2], known({"QCD": 100.0, "ttbar": 1.0, "W+jets": 10.0}))
    assert actual.fractions == pytest.approx({0: 100 / 110, 2: 10 / 110})
    assert actual.words == "90.9 % QCD, 9.09 % W+jets, by rate"


@pytest.mark.parametrize("signal", [0, 1])
def test_numbers_of_two_classes_stood_twice(monkeypatch: pytest.MonkeyPatch, signal: int) -> None:
    events, names = made_events(300), ["one", "two"]
    selected = events.chosen(np.flatnonzero(events.labels < 2))
    pair = selected.probabilities[:, :2] / selected.probabilities[:, :2].sum(axis=1, keepdims=True)
    two = selected._replace(
        probabilities=np.nan_to_num(pair, nan=0.5), samples=np.array(names)[selected.labels]
    )
    monkeypatch.setattr(sys.modules[__name__], "CLASSES", names)
    actual = measured(two, two, signals=[signal])
    ours, second = names[signal], names[1 - signal]
    for key in ("auc", "calibration", "train_against_test"):
        assert list(actual[key]) == [ours], key
    assert list(actual["train_against_test"][ours]) == names
    assert list(actual["auc_against"]) == [second]
    assert actual["auc"][ours]["value"] == pytest.approx(actual["auc_against"][second]["value"])


def test_an_offline_analysis_has_signal_background_and_significance_behind_each_point() -> None:
    state_before = {"QCD": 100.0, "ttbar": 80.0, "W+jets": 40.0}
    rates = known(state_before)._replace(are_events=True)
    events = made_events(600)
    actual = measured(
        events, rates=rates, expected=dict(enumerate(state_before.values())), uncertainty=0.1
    )
    (point,) = actual["working_points"]
    assert "rates" not in point
    retained = {name: share["value"] for name, share in point["backgrounds"].items()} | {
        "ttbar": point["signal"]["value"]
    }
    assert {name: index["value"] for name, index in point["events"].items()} == pytest.approx(
        {name: state_before[name] * share for name, share in retained.items()}
    )
    signal, background = point["signal_events"]["value"], point["background_events"]["value"]
    assert background == pytest.approx(100 * retained["QCD"] + 40 * retained["W+jets"])
    assert point["purity"]["value"] == pytest.approx(signal / (signal + background))
    significance = point["significance"]
    expected = asimov_significance(np.array([signal]), np.array([background]), 0.1)
    assert significance["value"] == pytest.approx(float(expected[0]))
    assert significance["low"] < significance["value"] < significance["high"]


def test_without_background_behind_a_cut_the_significance_has_a_lower_limit() -> None:
    labels = np.repeat([0, 1, 2], 100)
    fromkeys_before = dict.fromkeys(CLASSES, 50.0)
    rates = known(fromkeys_before)._replace(are_events=True)
    actual = measured(
        bare(labels, np.eye(3)[labels]),
        rates=rates,
        expected=dict(enumerate(fromkeys_before.values())),
    )
    significance = actual["working_points"][0]["significance"]
    assert (significance["value"], significance["limit"]) == (None, "lower")
    # 50 signal events on less than 1.84 of 200 at 84 %, that is, on less than about one.
    assert significance["low"] == pytest.approx(
        float(asimov_significance(np.array(50.0), np.array(1.0), 0.0)), rel=0.3
    )


def test_without_background_in_many_replicas_the_significance_has_a_lower_limit() -> None:
    labels = np.repeat([0, 0, 1, 2], [86, 300, 100, 100])
    weights = np.repeat([1.0, -1.0, 1.0], [46, 40, 500])
    scores = np.eye(3)[np.repeat([1, 0, 1, 2], [86, 300, 100, 100])]
    fromkeys_before = dict.fromkeys(CLASSES, 50.0)
    rates = known(fromkeys_before)._replace(are_events=True)
    actual = measured(
        bare(labels, scores, weights),
        rates=rates,
        expected=dict(enumerate(fromkeys_before.values())),
    )
    significance = actual["working_points"][0]["significance"]
    assert (significance["high"], significance["limit"]) == (None, "lower")
    assert 0 < significance["low"] < significance["value"]


def test_several_classes_are_the_signal_together() -> None:
    """As if their probabilities and events were those of one class, in equal parts or in the fractions of the rates."""
    events = made_events(600)
    for rates, fractions in (
        (None, {0: 0.5, 2: 0.5}),
        (known({"QCD": 30.0, "ttbar": 1.0, "W+jets": 10.0}), {0: 0.75, 2: 0.25}),
    ):
        actual = measured(events, signals=[0, 2], rates=rates, working_points=[0.8])
        (point,) = actual["working_points"]
        ours = sum(chunk * events.probabilities[:, label] for label, chunk in fractions.items())
        score = ours / (ours + events.probabilities[:, 1])

        def kept(
            label: int, threshold: float = point["threshold"], score: np.ndarray = score
        ) -> float:
            return float((score[events.labels == label] >= threshold - 1e-12).mean())

        together = sum(chunk * kept(label) for label, chunk in fractions.items())
        assert together == pytest.approx(point["signal"]["value"])
        assert together >= 0.8
        assert {name: estimate["value"] for name, estimate in point["backgrounds"].items()} == {
            "ttbar": kept(1)
        }
        pairs = score[events.labels == 1]
        area = sum(
            chunk
            * np.mean(
                [
                    (estimate > pairs).mean() + (estimate == pairs).mean() / 2
                    for estimate in score[events.labels == label]
                ]
            )
            for label, chunk in fractions.items()
        )
        assert actual["auc_against"]["ttbar"]["value"] == pytest.approx(area)
        if rates:
            behind = {name: estimate["value"] for name, estimate in point["rates"].items()}
            assert point["purity"]["value"] == pytest.approx(
                1 - behind["ttbar"] / sum(behind.values())
            )


def test_the_signal_at_a_background_efficiency_of_one_in_a_thousand() -> None:
    """The lowest cut that at most this share of the backgrounds passes; honest where too few do."""
    rng = np.random.default_rng(4)
    labels = np.repeat([0, 1, 2], [16_000, 4_000, 16_000])
    ours = 1 / (1 + np.exp(-rng.normal(np.where(labels == 1, 2.0, -2.0), 1.5)))
    scores = np.stack([(1 - ours) / 2, ours, (1 - ours) / 2], axis=1)
    events = bare(labels, scores)
    results = measured(events, background_points=[1e-3, 1e-4])["background_points"]
    assert [result["measurable"] for result in results] == [True, False]
    point = results[0]
    passing = np.sort(ours[labels != 1])[::-1]
    assert point["num_passing"] == pytest.approx(32)
    # The 33rd background would be too many.
    assert 0.95e-3 <= point["all_backgrounds"]["value"] <= 1e-3
    retained = float((ours[labels == 1] > passing[32]).mean())
    assert point["signal"]["value"] == pytest.approx(retained, abs=0.01)
    # The cut itself is uncertain: sqrt(32) events of the background, times the slope of the ROC curve.
    low, high = (float((ours[labels == 1] > passing[rank]).mean()) for rank in (26, 38))
    assert 0.5 * (high - low) < point["signal"]["high"] - point["signal"]["low"] < 2 * (high - low)


def test_significances_are_those_of_the_events_behind_each_cut_that_has_enough_background() -> None:
    events = made_events(600)
    expected = {0: 100.0, 1: 30.0, 2: 50.0}
    actual = measured(events, expected=expected, uncertainty=0.1)["significance"]
    score = discriminant(events.probabilities, signal={1: 1.0}, fractions={0: 0.5, 2: 0.5})
    for position, threshold in enumerate(actual["threshold"]):
        passing = score >= threshold
        leftovers = {label: float(passing[events.labels == label].mean()) for label in range(3)}
        assert actual["signal"][position] == pytest.approx(30 * leftovers[1])
        background = 100 * leftovers[0] + 50 * leftovers[2]
        assert actual["background"][position] == pytest.approx(background)
        assert actual["simple"][position] == pytest.approx(
            30 * leftovers[1] / math.sqrt(background)
        )
        assert actual["low"][position] < actual["asimov"][position] < actual["high"][position]
        assert actual["asimov"][position] < actual["simple"][position]
        assert passing[events.labels != 1].sum() >= 9
    assert actual["asimov"][actual["best"]] == max(actual["asimov"])
    certain = measured(events, expected=expected)["significance"]["asimov"]
    assert all(np.array(certain) > actual["asimov"])
    # Without an expectation: the events of the test split.
    plain = measured(events)["significance"]
    assert plain["signal"][-1] == pytest.approx((events.labels == 1).sum())
    assert (actual["of"], plain["of"]) == ("expected events", "test events")


def binary(labels: Any, score: Any, weights: Any = 1.0) -> ScoredEvents:
    """Events whose class 1 has a probability, and the others the rest in equal parts."""
    num_others = labels.max()
    shares = np.repeat((1 - score)[:, None] / num_others, num_others + 1, axis=1)
    shares[:, 1] = score
    return bare(labels, shares, weights)


def test_the_background_behind_a_cut_was_counted_in_other_parts_than_it_is_expected_in() -> None:
    # Nearly all of the background is of class 2, of which few events are left.
    labels = np.repeat([0, 1, 2], [3000, 500, 40])
    score = np.random.default_rng(4).beta(*np.array([(2, 2), (4, 1), (2, 2)])[labels].T)
    events = binary(labels, score)
    actual = measured(events, expected={0: 1.0, 1: 30.0, 2: 1000.0})["significance"]
    order = discriminant(events.probabilities, signal={1: 1.0}, fractions={0: 0.5, 2: 0.5})
    few = [int((order[labels == 2] >= threshold).sum()) for threshold in actual["threshold"]]
    assert min(few) == 10
    assert actual["effective"] == pytest.approx(few, rel=0.1)


def test_negative_weights_left_numbers_that_json_lacks_in_the_band() -> None:
    # In few replicas the weights of the 1000 background events above the cut add up to 0 or less.
    labels = np.repeat([0, 1, 0, 0, 1], [2000, 200, 550, 450, 200])
    score = np.repeat([0.1, 0.9], [2200, 1200])
    task = EvaluationTask(
        ["QCD", "ttbar"], [1], [0.5], None, NO_LABELS, 1, expected={0: 100.0, 1: 10.0}
    )
    events = binary(labels, score, np.repeat([1.0, -1.0, 1.0], [2750, 450, 200]))
    actual = measure(events, None, replicas_of(events, task), task).numbers["significance"]
    assert len(json.loads(json.dumps(actual, allow_nan=False))["low"]) > 3


def test_a_highest_significance_at_the_end_of_the_scan_says_so() -> None:
    labels = np.repeat([0, 1, 2], [2000, 2000, 2000])
    events = binary(
        labels, np.random.default_rng(4).beta(*np.array([(1, 1), (9, 1), (1, 1)])[labels].T)
    )
    tight, loose = (
        measured(events, expected={0: size, 1: 10.0, 2: size}, uncertainty=error)["significance"]
        for size, error in ((1e5, 0.5), (1e-3, 0.0))
    )
    assert tight["best_is_at_end"]
    assert (loose["best"] > 10, loose["best_is_at_end"]) == (True, False)


def test_efficiencies_were_those_of_a_point_that_is_not_measurable() -> None:
    events = made_events(300)
    actual = measured(events, working_points=[0.999, 0.6, 0.5])
    assert [point["measurable"] for point in actual["working_points"]] == [False, True, True]
    assert 0.5 < actual["measurable_to"] < 0.999
    assert (
        actual["efficiency_against"]
        == measured(events, working_points=[0.6])["efficiency_against"]
        != {}
    )
    assert measured(events, working_points=[0.999])["efficiency_against"] == {}


def test_a_purity_of_no_events_is_null_and_not_a_word_that_json_lacks() -> None:
    events = made_events(90, lightest=-0.5)
    actual = measured(
        events, rates=known({"QCD": 0.0, "ttbar": 0.0, "W+jets": 1e-300}), working_points=[0.01]
    )
    (point,) = json.loads(json.dumps(actual["working_points"], allow_nan=False))
    assert point["purity"] is None or 0 <= point["purity"]["value"] <= 1


def test_accuracy_counts_classes_alike_and_has_an_error_at_1() -> None:
    labels = np.repeat([0, 1, 2], [100, 50, 10])
    right = np.eye(3)[labels]
    actual = measured(bare(labels, right))["accuracy"]
    assert actual["value"] == 1
    assert actual["error"] > 0.01
    wrong = np.where(labels[:, None] == 2, np.eye(3)[0], right)
    actual = measured(bare(labels, wrong))
    assert actual["accuracy"]["value"] == pytest.approx(2 / 3)
    assert actual["confusion"]["events"] == [[100, 0, 0], [0, 50, 0], [10, 0, 0]]


def test_the_error_of_an_accuracy_counted_an_unseen_event_in_each_class() -> None:
    # It was 1.5 times the spread, and covered 85 %.
    rng, truth = np.random.default_rng(3), np.array([0.92, 0.95, 0.89])
    labels = np.repeat([0, 1, 2], [31, 49, 59])
    results = []
    for _ in range(200):
        guess = np.where(rng.random(len(labels)) < truth[labels], labels, (labels + 1) % 3)
        events = bare(labels, np.eye(3)[guess])
        results.append(
            accuracy(events, Replicas(labels, events.samples, events.weights, seed=1, num=200))
        )
    errors = np.array([result.error for result in results])
    covered = np.mean([abs(result.value - truth.mean()) <= result.error for result in results])
    assert covered == pytest.approx(0.683, abs=0.07)
    assert errors.mean() == pytest.approx(np.std([result.value for result in results]), rel=0.1)


def test_right_probabilities_of_a_mixture_of_classes_alike_are_calibrated_whatever_the_sample_has() -> (
    None
):
    rng = np.random.default_rng(3)
    labels = np.repeat([0, 1, 2], [20_000, 4000, 2000])
    # One feature with two values; only its share distinguishes the third class.
    is_high = rng.random(len(labels)) < np.array([0.2, 0.8, 0.5])[labels]
    likelihood = np.where(is_high[:, None], [0.2, 0.8, 0.5], [0.8, 0.2, 0.5])
    scores = likelihood / likelihood.sum(axis=1, keepdims=True)
    actual = measured(bare(labels, scores))
    assert max(calibration["error"] for calibration in actual["calibration"].values()) < 0.01


@pytest.mark.parametrize("lightest", [1.0, -0.25])
def test_efficiencies_against_kinematics_are_those_of_a_slow_loop(lightest: float) -> None:
    events = made_events(400, lightest=lightest)
    numbers = measured(events, working_points=[0.6, 0.9])
    threshold = numbers["working_points"][0]["threshold"]
    score = discriminant(events.probabilities, signal={1: 1.0}, fractions={0: 0.5, 2: 0.5})
    assert list(numbers["efficiency_against"]) == list(KINEMATIC_EDGES)
    empty = 0
    for variable, edges in KINEMATIC_EDGES.items():
        actual = numbers["efficiency_against"][variable]
        assert actual["edges"] == list(edges)
        values = events.hlf[:, hlf_names().index(variable)]
        for position, name in enumerate(CLASSES):
            for index, bin_ in enumerate(actual["classes"][name]):
                low = -math.inf if index == 0 else edges[index]
                high = math.inf if index == len(edges) - 2 else edges[index + 1]
                inside = [
                    row for row in range(400) if events.labels[row] == position and low <= float(values[row]) < high
                ]  # fmt: skip
                weights = events.weights[inside]
                if math.fsum(weights) <= 0:
                    empty += 1
                    assert bin_ is None
                else:
                    assert same(bin_, share(score[inside] >= threshold, weights))
    assert (empty > 0) == (lightest < 0)


def test_negative_weights_give_numbers_that_json_knows() -> None:
    numbers = measured(made_events(200, lightest=-0.5), made_events(100, seed=4, lightest=-0.5))
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers


def without_class(events: ScoredEvents, label: int, kind_name: str) -> ScoredEvents:
    """The events, of which a class has no events, or weights that cancel."""
    is_class = events.labels == label
    if kind_name == "no events":
        return events.chosen(np.flatnonzero(~is_class))
    weights = np.ones(len(events.labels))
    weights[np.flatnonzero(is_class)[0]] = 1 - is_class.sum()
    return events._replace(weights=weights)


@pytest.mark.parametrize(
    ("kind_name", "message"),
    [
        ("no events", "there are no W+jets test events. No number counts this class."),
        (
            "cancelling weights",
            "there are no W+jets test events that count: 21 events with weights of -20, 1, which",
        ),
    ],
)
@pytest.mark.parametrize("rates", [None, {"QCD": 100.0, "ttbar": 8.0, "W+jets": 10.0}])
def test_a_class_without_test_events_that_count_is_named_and_no_number_counts_it(
    kind_name: str, message: str, rates: dict[str, float] | None
) -> None:
    events = made_events(60)
    task = EvaluationTask(CLASSES, [1], [0.5], rates and known(rates), NO_LABELS, 1)
    counted, less, (sentence,) = measurable(without_class(events, 2, kind_name), task)
    assert sentence.startswith(message)
    assert less.mixture == mixture_of(CLASSES, [0], None)
    numbers = measure(counted, events, replicas_of(counted, less, num=200), less).numbers
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    assert numbers["events_per_class"]["W+jets"] == 0
    # Of two classes one area is both, and an accuracy is the mean over two.
    assert list(numbers["auc"]) == ["ttbar"]
    confusion = np.array(numbers["confusion"]["by_truth"])
    assert numbers["accuracy"]["value"] == pytest.approx(confusion.diagonal()[:2].mean())
    if rates:
        (point,) = numbers["working_points"]
        assert point["rates"]["W+jets"] is None
        total = point["rates"]["QCD"]["value"] + point["rates"]["ttbar"]["value"]
        assert point["total_rate"]["value"] == pytest.approx(total)
    # A second model has the same classes.
    assert (
        measurable(without_class(events, 2, kind_name), less)[0].labels.tolist()
        == counted.labels.tolist()
    )


def test_events_of_a_class_that_is_not_measured_are_scored_with_its_rates() -> None:
    """Those of the training split, and of a second model, of a class of two samples."""
    events = made_events(60)
    events.samples[np.flatnonzero(events.labels == 2)[::2]] = "hard"
    labels = {"QCD": 0, "ttbar": 1, "W+jets": 2, "hard": 2}
    rates = Rates({name: Estimate(10.0, 0.0) for name in labels}, labels)
    task = EvaluationTask(CLASSES, [1], [0.5], rates, NO_LABELS, 1)
    _, less, _ = measurable(without_class(events, 2, "no events"), task)
    assert (
        less.scored(table_of(events)).weights.tolist()
        == task.scored(table_of(events)).weights.tolist()
    )


@pytest.mark.parametrize("label", [0, 1])
def test_without_signal_or_background_nothing_can_be_measured(label: int) -> None:
    task = EvaluationTask(CLASSES[:2], [1], [0.5], None, NO_LABELS, 1)
    pair = made_events(60)
    pair = pair.chosen(np.flatnonzero(pair.labels < 2))
    with pytest.raises(
        UndefinedMetricError,
        match=f"there are no {CLASSES[label]} test events that count: .*Add files",
    ):
        measurable(without_class(pair, label, "cancelling weights"), task)


@pytest.mark.parametrize("kind_name", ["no events", "cancelling weights"])
def test_a_class_without_training_events_that_count_is_not_compared_and_all_else_is_measured(
    kind_name: str,
) -> None:
    complete = made_events(60)
    numbers = measured(complete, without_class(complete, 2, kind_name))
    comparison = numbers["train_against_test"]["ttbar"]
    assert comparison["W+jets"] == {"distance": None, "p_value": None}
    assert comparison["QCD"]["p_value"] > 0.5
    (sentence,) = numbers["not_measurable"]
    assert "of W+jets cannot be compared" in sentence
    assert {**numbers, "train_against_test": {}, "not_measurable": []} == measured(complete)


def test_a_class_of_weights_that_nearly_cancel_is_named_with_its_weights_and_the_rest_is_measured() -> (
    None
):
    """150 events of weights +1, -1 and 3 add up to 10."""
    rng = np.random.default_rng(5)
    signed = rng.permutation(np.repeat([1.0, -1.0, 3.0], [53, 88, 15]))
    assert signed.sum() == 10
    labels = np.concatenate([np.repeat([0, 1], 400), np.full(len(signed), 2)])
    weights = np.concatenate([np.ones(800), signed * len(signed) / signed.sum()])
    events = bare(labels, made_events(len(labels)).probabilities, weights)
    numbers = measured(events, events)
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    comparison = numbers["train_against_test"]["ttbar"]
    assert (comparison["W+jets"]["p_value"], comparison["QCD"]["p_value"]) == (None, 1.0)
    (sentence,) = numbers["not_measurable"]
    assert "of W+jets cannot be compared" in sentence
    assert (
        "156 events with weights of -1, 1, 3, which add up to 10: effectively 0.4 events"
        in sentence
    )
    assert numbers["accuracy"]["error"] > 0


def test_without_usable_replicas_values_are_measured_and_errors_are_null() -> None:
    events = made_events(90)
    task = EvaluationTask(CLASSES, [1], [0.5], known(dict.fromkeys(CLASSES, 1.0)), NO_LABELS, 1)
    none = Replicas(events.labels, events.samples, events.weights, seed=1, num=0)
    numbers = measure(events, None, none, task).numbers
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    some = measure(events, None, replicas_of(events, task), task).numbers
    assert numbers["accuracy"] == {"value": some["accuracy"]["value"], "error": None}
    share_of_all = numbers["working_points"][0]["all_backgrounds"]
    assert share_of_all == {"value": share_of_all["value"], "low": None, "high": None}


def test_slices_of_a_class_had_other_shares_in_some_numbers_than_in_others() -> None:
    """The rates say that the hard slice, which has half of the weight, is nearly nothing of its class."""
    created = made_events(600, lightest=0.25)
    samples = np.where(np.arange(600) % 2, "hard", created.samples)
    samples[created.labels > 0] = created.samples[created.labels > 0]
    hard = samples == "hard"
    created.probabilities[hard] = [0.1, 0.8, 0.1]
    table = table_of(created._replace(samples=samples))
    rates = {"QCD": 999.0, "hard": 1.0, "ttbar": 5.0, "W+jets": 7.0}
    options = Rates(
        {name: Estimate(estimate, 0.0) for name, estimate in rates.items()},
        {"hard": 0, "QCD": 0, "ttbar": 1, "W+jets": 2},
    )
    events = ScoredEvents.of(table, options.values)
    ours = events.labels == 0
    assert events.weights[hard].sum() == pytest.approx(events.weights[ours].sum() / 1000)
    numbers = measured(events, rates=options)
    confusion = np.array(numbers["confusion"]["by_truth"])
    assert numbers["accuracy"]["value"] == pytest.approx(confusion.diagonal().mean())
    (point,) = numbers["working_points"]
    task = EvaluationTask(CLASSES, [1], [0.5], options, NO_LABELS, 1)
    repeated = variations(
        events, {"same": with_weights(events, events.weights)}, task, [point["threshold"]]
    )["same"]
    assert repeated["accuracy"]["value"] == pytest.approx(numbers["accuracy"]["value"])
    leftovers = repeated["working_points"][0]["efficiencies"]["QCD"]
    assert leftovers["value"] == pytest.approx(point["backgrounds"]["QCD"]["value"])
    bins = numbers["efficiency_against"]["num_jets"]
    position = np.searchsorted(
        bins["edges"][1:-1], events.hlf[:, hlf_names().index("num_jets")], side="right"
    )
    sums = np.bincount(position[ours], events.weights[ours], len(bins["classes"]["QCD"]))
    values = [0.0 if estimate is None else estimate["value"] for estimate in bins["classes"]["QCD"]]
    assert np.average(values, weights=sums) == pytest.approx(leftovers["value"])
    # Other weights of the generator leave the proportions of the samples alone.
    predictions = table.append_column("weight_same", table["weight"]).append_column(
        "weight_too", table["weight"]
    )
    candidate = Candidate("a", cast("Predictor", SimpleNamespace(inputs=())))
    actual = _variations(
        Predicted(candidate, events, events, numbers, {}, np.zeros(1)), predictions, {}, [], task
    )
    assert actual["weights"]["same"]["accuracy"]["shift"] == pytest.approx(0, abs=1e-12)
    assert actual["weights_envelope"]["accuracy"]["up"] == pytest.approx(0, abs=1e-12)
    assert actual["weights"]["same"]["accuracy"]["value"] == pytest.approx(
        numbers["accuracy"]["value"]
    )


def table_of(events: ScoredEvents) -> pa.Table:
    return pa.table(
        {
            "label": events.labels,
            "weight": events.weights,
            "sample": events.samples,
            "hlf": pa.array(list(events.hlf)),
            "probability": pa.array(list(events.probabilities)),
        }
    )
