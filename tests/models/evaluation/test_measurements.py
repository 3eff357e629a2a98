"""All numbers of one model: by hand, by slow loops, and against scipy."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import expit
from scored_examples import (
    CLASSES,
    certain_rates,
    events_with,
    events_with_signal,
    example_task,
    numbers_of,
    random_events,
    values,
)

from features.columns import hlf_names
from models.evaluation.bootstrap import Estimate, Replicas
from models.evaluation.curves import KINEMATIC_EDGES
from models.evaluation.discriminant import discriminant
from models.evaluation.evaluated_model import EvaluatedModel
from models.evaluation.evaluation import _variations
from models.evaluation.evaluation_task import mixture_of
from models.evaluation.intervals import efficiency
from models.evaluation.measurements import accuracy, measure, replicas_of
from models.evaluation.rates import Rates
from models.evaluation.scored_events import ScoredEvents
from models.evaluation.variations import variations, with_weights


def test_a_working_point_by_hand() -> None:
    # ttbar from the top: 0.9 (weight 1), 0.7 (weight 2), 0.2 (weight 1): half the weight needs 0.7.
    labels = np.array([1, 1, 1, 0, 0, 2])
    signal = np.array([0.9, 0.7, 0.2, 0.8, 0.1, 0.7])
    weights = np.array([1.0, 2.0, 1.0, 1.0, 3.0, 1.0])
    # Both backgrounds have the same probability, so that their fractions do not matter.
    events = events_with_signal(labels, signal, weights)
    rates = certain_rates({"QCD": 100.0, "ttbar": 8.0, "W+jets": 10.0})

    numbers = numbers_of(events, rates=rates)

    (point,) = numbers["working_points"]
    assert point["wanted"] == 0.5
    assert not point["measurable"]
    assert point["threshold"] == pytest.approx(0.7 / (0.7 + 0.15))
    assert values(point["rates"]) == {"QCD": 25.0, "ttbar": 6.0, "W+jets": 10.0}
    assert point["total_rate"]["value"] == 41
    assert point["num_failing"] == pytest.approx(1)
    assert point["purity"]["value"] == pytest.approx(6 / 41)
    two_of_three_pass = np.array([True, True, False])
    signal_share = efficiency(two_of_three_pass, weights[:3])
    assert point["signal"] == pytest.approx(signal_share.as_json(), abs=1e-9)
    assert values(point["backgrounds"]) == {"QCD": 0.25, "W+jets": 1.0}
    background_share = (100 * 0.25 + 10 * 1.0) / 110
    assert point["all_backgrounds"]["value"] == pytest.approx(background_share)


def test_the_mixture_has_the_fractions_of_the_rates_or_equal_parts() -> None:
    rates = certain_rates({"QCD": 100.0, "ttbar": 1.0, "W+jets": 10.0})

    by_rate = mixture_of(CLASSES, [0, 2], rates)

    assert by_rate.fractions == pytest.approx({0: 100 / 110, 2: 10 / 110})
    assert by_rate.description == "90.9 % QCD, 9.09 % W+jets, by rate"
    equal_parts = mixture_of(CLASSES, [0, 2], None)
    assert equal_parts == ({0: 0.5, 2: 0.5}, "QCD and W+jets in equal parts")


@pytest.mark.parametrize("signal", [0, 1])
def test_two_classes_have_one_output(signal: int) -> None:
    names = ["one", "two"]
    all_events = random_events(300)
    (rows,) = np.nonzero(all_events.labels < 2)
    events = all_events.select(rows)
    outputs = events.probabilities[:, :2] + 1e-9
    probabilities = outputs / outputs.sum(axis=1, keepdims=True)
    samples = np.array(names)[events.labels]
    events = events._replace(probabilities=probabilities, samples=samples)

    numbers = numbers_of(events, events, classes=names, signals=[signal])

    signal_name, background_name = names[signal], names[1 - signal]
    for key in ("auc", "calibration", "train_against_test"):
        assert list(numbers[key]) == [signal_name], key
    assert list(numbers["train_against_test"][signal_name]) == names
    assert list(numbers["auc_against"]) == [background_name]
    area = numbers["auc"][signal_name]["value"]
    area_against_background = numbers["auc_against"][background_name]["value"]
    assert area == pytest.approx(area_against_background)


@pytest.mark.parametrize(
    ("rates", "fractions"),
    [
        (None, {0: 0.5, 2: 0.5}),
        ({"QCD": 30.0, "ttbar": 1.0, "W+jets": 10.0}, {0: 0.75, 2: 0.25}),
    ],
)
def test_several_classes_count_as_one_signal(
    rates: dict[str, float] | None, fractions: dict[int, float]
) -> None:
    events = random_events(600)
    rates_before = None if rates is None else certain_rates(rates)

    numbers = numbers_of(events, signals=[0, 2], rates=rates_before, working_points=[0.8])

    (point,) = numbers["working_points"]
    score = discriminant(events.probabilities, signal=fractions, fractions={1: 1.0})
    passes = score >= point["threshold"] - 1e-12
    share_passing = [float(passes[events.labels == label].mean()) for label in range(3)]
    background_scores = score[events.labels == 1]
    signal_share = 0.0
    area = 0.0
    for label, fraction in fractions.items():
        signal_share += fraction * share_passing[label]
        above = np.subtract.outer(score[events.labels == label], background_scores)
        # Ties count a half.
        share_above = float(np.heaviside(above, 0.5).mean())
        area += fraction * share_above
    assert signal_share >= 0.8
    assert signal_share == pytest.approx(point["signal"]["value"])
    assert values(point["backgrounds"]) == {"ttbar": share_passing[1]}
    assert numbers["auc_against"]["ttbar"]["value"] == pytest.approx(area)
    if rates is not None:
        rates_behind = values(point["rates"])
        purity = 1 - rates_behind["ttbar"] / sum(rates_behind.values())
        assert point["purity"]["value"] == pytest.approx(purity)


def test_a_background_point_has_the_lowest_cut_that_this_share_passes() -> None:
    rng = np.random.default_rng(4)
    labels = np.repeat([0, 1, 2], [16_000, 4_000, 16_000])
    mean_logits = np.repeat([-2.0, 2.0, -2.0], [16_000, 4_000, 16_000])
    signal = expit(rng.normal(mean_logits, 1.5))
    events = events_with_signal(labels, signal)

    numbers = numbers_of(events, background_points=[1e-3, 1e-4])

    # Too few events of the background pass at the second point.
    measured, unmeasured = numbers["background_points"]
    assert measured["measurable"]
    assert not unmeasured["measurable"]

    signal_scores = signal[labels == 1]
    background_scores = np.sort(signal[labels != 1])[::-1]

    def signal_share(num_background: int) -> float:
        return float((signal_scores > background_scores[num_background]).mean())

    # 32 are 1e-3 of 32,000 events; the 33rd background would be too many.
    assert measured["num_passing"] == pytest.approx(32)
    assert 0.95e-3 <= measured["all_backgrounds"]["value"] <= 1e-3
    share = measured["signal"]
    assert share["value"] == pytest.approx(signal_share(32), abs=0.01)
    # The cut is uncertain: sqrt(32) events of the background, times the slope of the ROC curve.
    cut_error = signal_share(38) - signal_share(26)
    interval = share["high"] - share["low"]
    assert 0.5 * cut_error < interval < 2 * cut_error


def test_efficiencies_against_kinematics_are_those_of_the_first_measurable_point() -> None:
    events = random_events(300)

    numbers = numbers_of(events, working_points=[0.999, 0.6, 0.5])

    measurable = [point["measurable"] for point in numbers["working_points"]]
    assert measurable == [False, True, True]
    assert 0.5 < numbers["measurable_to"] < 0.999
    first_measurable = numbers_of(events, working_points=[0.6])
    not_measurable = numbers_of(events, working_points=[0.999])
    assert numbers["efficiency_against"] == first_measurable["efficiency_against"] != {}
    assert not_measurable["efficiency_against"] == {}


@pytest.mark.parametrize("lightest", [1.0, -0.25])
def test_efficiencies_against_kinematics_are_those_of_a_slow_loop(lightest: float) -> None:
    events = random_events(400, lightest=lightest)

    numbers = numbers_of(events, working_points=[0.6, 0.9])

    threshold = numbers["working_points"][0]["threshold"]
    score = discriminant(events.probabilities, signal={1: 1.0}, fractions={0: 0.5, 2: 0.5})
    num_empty = 0
    for variable, edges in KINEMATIC_EDGES.items():
        efficiencies = numbers["efficiency_against"][variable]
        assert efficiencies["edges"] == list(edges)
        column = events.hlf[:, hlf_names().index(variable)]
        # The outer bins hold all events outside the axis.
        lower_edges = [-math.inf, *edges[1:-1]]
        upper_edges = [*edges[1:-1], math.inf]
        for label, name in enumerate(CLASSES):
            shares = efficiencies["classes"][name]
            for low, high, share in zip(lower_edges, upper_edges, shares, strict=True):
                is_in_bin = (column >= low) & (column < high)
                rows = is_in_bin & (events.labels == label)
                weights = events.weights[rows]
                if math.fsum(weights) <= 0:
                    num_empty += 1
                    assert share is None
                else:
                    expected = efficiency(score[rows] >= threshold, weights)
                    assert share == pytest.approx(expected.as_json(), abs=1e-9)
    assert (num_empty > 0) == (lightest < 0)


def test_negative_weights_give_a_purity_between_0_and_1_or_none() -> None:
    rates = certain_rates({"QCD": 0.0, "ttbar": 0.0, "W+jets": 1e-300})
    events = random_events(90, lightest=-0.5)
    train = random_events(100, seed=4, lightest=-0.5)

    numbers = numbers_of(events, train, rates=rates, working_points=[0.01])

    (point,) = numbers["working_points"]
    assert point["purity"] is None or 0 <= point["purity"]["value"] <= 1


def test_accuracy_counts_classes_alike_and_has_an_error_at_1() -> None:
    labels = np.repeat([0, 1, 2], [100, 50, 10])
    predicted = np.repeat([0, 1, 0], [100, 50, 10])
    all_right = events_with(labels, np.eye(3)[labels])
    one_class_wrong = events_with(labels, np.eye(3)[predicted])

    certain = numbers_of(all_right)["accuracy"]
    numbers = numbers_of(one_class_wrong)

    assert certain["value"] == 1
    assert certain["error"] > 0.01
    assert numbers["accuracy"]["value"] == pytest.approx(2 / 3)
    assert numbers["confusion"]["events"] == [[100, 0, 0], [0, 50, 0], [10, 0, 0]]


def test_the_error_of_an_accuracy_covers_the_truth() -> None:
    # An unseen event in each class would make it 1.5 times the spread.
    rng = np.random.default_rng(3)
    accuracies = np.array([0.92, 0.95, 0.89])
    labels = np.repeat([0, 1, 2], [31, 49, 59])

    estimates = []
    for _ in range(200):
        is_right = rng.random(len(labels)) < accuracies[labels]
        predicted = np.where(is_right, labels, (labels + 1) % 3)
        events = events_with(labels, np.eye(3)[predicted])
        replicas = replicas_of(events, example_task(), num=200)
        estimates.append(accuracy(events, replicas))

    measured, errors = np.array(estimates).T
    distances = np.abs(measured - accuracies.mean())
    share_covered = np.mean(distances <= errors)
    assert share_covered == pytest.approx(0.683, abs=0.07)
    assert errors.mean() == pytest.approx(measured.std(), rel=0.1)


def test_probabilities_for_classes_in_equal_parts_are_calibrated_in_any_sample() -> None:
    rng = np.random.default_rng(3)
    labels = np.repeat([0, 1, 2], [20_000, 4000, 2000])
    # One feature with two values.
    share_high = np.array([0.2, 0.8, 0.5])
    is_high = rng.random(len(labels)) < share_high[labels]
    likelihood = np.where(is_high[:, None], share_high, 1 - share_high)
    probabilities = likelihood / likelihood.sum(axis=1, keepdims=True)

    numbers = numbers_of(events_with(labels, probabilities))

    for output in numbers["calibration"].values():
        assert output["error"] < 0.01


def test_without_replicas_values_are_measured_and_errors_are_null() -> None:
    events = random_events(90)
    task = example_task(rates=certain_rates(dict.fromkeys(CLASSES, 1.0)))
    no_replicas = Replicas(events.labels, events.samples, events.weights, seed=1, num=0)

    numbers = measure(events, None, no_replicas, task).numbers

    accuracy_value = numbers_of(events)["accuracy"]["value"]
    assert numbers["accuracy"] == {"value": accuracy_value, "error": None}
    share = numbers["working_points"][0]["all_backgrounds"]
    assert share == {"value": share["value"], "low": None, "high": None}


def sliced_class() -> tuple[ScoredEvents, pa.Table, Rates]:
    """Events of which a hard slice has half of the weight of QCD, and a thousandth of its rate."""
    events = random_events(600, lightest=0.25)
    is_hard = (np.arange(600) % 2 == 1) & (events.labels == 0)
    events.probabilities[is_hard] = [0.1, 0.8, 0.1]
    table = pa.table(
        {
            "label": events.labels,
            "weight": events.weights,
            "sample": np.where(is_hard, "hard", events.samples),
            "probability": list(events.probabilities),
            "hlf": list(events.hlf),
        }
    )
    rates = {"QCD": 999.0, "hard": 1.0, "ttbar": 5.0, "W+jets": 7.0}
    labels = {"QCD": 0, "hard": 0, "ttbar": 1, "W+jets": 2}
    estimates = {name: Estimate(rate, 0.0) for name, rate in rates.items()}
    scored_events = ScoredEvents.from_predictions(table, rates)
    return scored_events, table, Rates(estimates, labels)


def test_slices_of_a_class_have_the_proportions_of_their_rates_in_all_numbers() -> None:
    events, _, rates = sliced_class()

    numbers = numbers_of(events, rates=rates)

    is_qcd = events.labels == 0
    qcd_weights = events.weights[is_qcd]
    hard_weight = events.weights[events.samples == "hard"].sum()
    assert hard_weight == pytest.approx(qcd_weights.sum() / 1000)

    accuracy_of_events = numbers["accuracy"]["value"]
    confusion = np.array(numbers["confusion"]["by_truth"])
    assert accuracy_of_events == pytest.approx(confusion.diagonal().mean())

    (point,) = numbers["working_points"]
    share = point["backgrounds"]["QCD"]["value"]
    task = example_task(rates=rates)
    same_weights = {"same": with_weights(events, events.weights)}
    varied = variations(events, same_weights, task, [point["threshold"]])["same"]
    (varied_point,) = varied["working_points"]
    assert varied["accuracy"]["value"] == pytest.approx(accuracy_of_events)
    assert varied_point["efficiencies"]["QCD"]["value"] == pytest.approx(share)

    # The mean over the bins of a variable is the efficiency at the point.
    efficiencies = numbers["efficiency_against"]["num_jets"]
    num_jets = events.hlf[is_qcd, hlf_names().index("num_jets")]
    shares_of_bins = efficiencies["classes"]["QCD"]
    shares = [0.0 if bin_ is None else bin_["value"] for bin_ in shares_of_bins]
    bin_of_event = np.searchsorted(efficiencies["edges"][1:-1], num_jets, side="right")
    sums = np.bincount(bin_of_event, qcd_weights, len(shares))
    assert np.average(shares, weights=sums) == pytest.approx(share)


def test_other_weights_of_the_generator_keep_the_proportions_of_slices() -> None:
    events, table, rates = sliced_class()
    numbers = numbers_of(events, rates=rates)
    predictions = table.append_column("weight_a", table["weight"])
    predictions = predictions.append_column("weight_b", table["weight"])
    candidate: Any = SimpleNamespace(model=SimpleNamespace(inputs=()))
    model = EvaluatedModel(candidate, events, events, numbers, {}, np.zeros(1))

    varied = _variations(model, predictions, {}, [], example_task(rates=rates))

    accuracy_shift = varied["weights"]["a"]["accuracy"]
    assert accuracy_shift["shift"] == pytest.approx(0, abs=1e-12)
    assert accuracy_shift["value"] == pytest.approx(numbers["accuracy"]["value"])
    assert varied["weights_envelope"]["accuracy"]["up"] == pytest.approx(0, abs=1e-12)
