"""Classes whose test or training events measure nothing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from evaluated_candidates import TASK, separable_dataset
from numpy.typing import NDArray
from scipy.special import expit
from scored_examples import (
    CLASSES,
    certain_rates,
    events_with,
    example_task,
    numbers_of,
    random_events,
)

from features.columns import hlf_names
from models.errors import UndefinedMetricError
from models.evaluation import evaluation
from models.evaluation.bootstrap import Estimate, Replicas
from models.evaluation.discriminant import ReplicatedScore
from models.evaluation.evaluation import evaluate
from models.evaluation.evaluation_task import mixture_of
from models.evaluation.measurements import measurable_events
from models.evaluation.rates import Rates
from models.evaluation.scored_events import ScoredEvents, within_classes
from models.prediction import Candidate


class MetModel:
    """Gives ttbar and W+jets probabilities that rise with MET."""

    inputs = ("hlf",)

    def probabilities(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        met = columns["hlf"][:, hlf_names().index("met")]
        signal = expit(met / 100)
        probabilities = np.stack([1 - signal, 0.7 * signal, 0.3 * signal], axis=1)
        return probabilities.astype(np.float32)


def without_class(events: ScoredEvents, label: int, cause: str) -> ScoredEvents:
    """Events without a class, or with a class whose weights cancel."""
    in_class = events.labels == label
    if cause == "no events":
        return events.select(np.flatnonzero(~in_class))
    weights = np.ones(len(events.labels))
    first_of_class = np.flatnonzero(in_class)[0]
    weights[first_of_class] = 1 - in_class.sum()
    return events._replace(weights=weights)


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        ("no events", "there are no W+jets test events. No number counts this class."),
        (
            "cancelling weights",
            "there are no W+jets test events that count: 21 events with weights of -20, 1, which",
        ),
    ],
)
@pytest.mark.parametrize("has_rates", [False, True])
def test_a_class_without_test_events_is_named_and_not_counted(
    cause: str, expected: str, has_rates: bool
) -> None:
    rates = certain_rates({"QCD": 100.0, "ttbar": 8.0, "W+jets": 10.0}) if has_rates else None
    task = example_task(rates=rates)
    events = random_events(60)
    incomplete = without_class(events, 2, cause)

    measured, restricted, (sentence,) = measurable_events(incomplete, task)
    numbers = numbers_of(measured, events, rates=rates, unmeasured=restricted.unmeasured)

    assert sentence.startswith(expected)
    assert restricted.mixture == mixture_of(CLASSES, [0], None)
    assert numbers["events_per_class"]["W+jets"] == 0
    # The outputs of QCD and ttbar do not add up to 1, and an accuracy is the mean over two classes.
    for key in ("auc", "calibration", "train_against_test"):
        assert list(numbers[key]) == ["QCD", "ttbar"], key
    confusion = np.array(numbers["confusion"]["by_truth"])
    mean_of_two_classes = confusion.diagonal()[:2].mean()
    assert numbers["accuracy"]["value"] == pytest.approx(mean_of_two_classes)
    if has_rates:
        (point,) = numbers["working_points"]
        assert point["rates"]["W+jets"] is None
        total = point["rates"]["QCD"]["value"] + point["rates"]["ttbar"]["value"]
        assert point["total_rate"]["value"] == pytest.approx(total)
    # A second model is measured on the same classes.
    measured_again, _, _ = measurable_events(incomplete, restricted)
    assert measured_again.labels.tolist() == measured.labels.tolist()


def test_events_of_an_unmeasured_class_have_the_weights_of_its_rates() -> None:
    """Training events, and those of a second model, of a class of two samples."""
    events = random_events(60)
    (rows_of_wjets,) = np.nonzero(events.labels == 2)
    events.samples[rows_of_wjets[::2]] = "hard"
    labels = {"QCD": 0, "ttbar": 1, "W+jets": 2, "hard": 2}
    rates = Rates(dict.fromkeys(labels, Estimate(10.0, 0.0)), labels)
    task = example_task(rates=rates)
    predictions = pa.table(
        {
            "label": events.labels,
            "weight": events.weights,
            "sample": events.samples,
            "probability": list(events.probabilities),
            "hlf": list(events.hlf),
        }
    )

    incomplete = without_class(events, 2, "no events")

    _, restricted, _ = measurable_events(incomplete, task)

    weights = task.scored(predictions).weights
    assert restricted.scored(predictions).weights.tolist() == weights.tolist()


def test_a_signal_class_without_test_events_leaves_the_importance_of_the_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "saving_in_processes", lambda: nullcontext(lambda *_: None))
    dataset = separable_dataset(tmp_path / "data")
    for file in dataset.files("test"):
        table = pq.read_table(file)
        pq.write_table(table.filter(pc.field("label") != 2), file)
    candidate = Candidate("met", MetModel())
    importances = []
    for signals in ([1], [1, 2]):
        out_dir = tmp_path / f"{len(signals)}-signals"
        out_dir.mkdir()
        task = TASK._replace(signals=signals)
        metrics = evaluate([candidate], dataset.files("test"), [], task, out_dir, train_events=0)
        importances.append(metrics["runs"]["met"]["importance"])

    only_ttbar, with_missing = importances
    assert with_missing == only_ttbar
    assert only_ttbar["met"]["value"] > 0.01


def test_a_class_of_weights_that_cancel_but_for_rounding_keeps_them() -> None:
    labels = np.repeat([0, 1], 3)
    weights = np.array([0.1, 0.2, -0.3, 1.0, 2.0, 3.0])

    normalised = within_classes(labels, weights)

    assert normalised.tolist() == [0.1, 0.2, -0.3, 0.5, 1.0, 1.5]


def test_a_mixture_with_a_class_without_events_is_refused() -> None:
    labels = np.array([0, 0, 1, 1])
    replicas = Replicas(labels, labels.astype(str), np.ones(4), seed=1, num=2)
    score = ReplicatedScore(replicas, labels * 1.0, {1: 0.5, 2: 0.5}, np.array([]))

    with pytest.raises(UndefinedMetricError, match="no test events of class 2"):
        score.area({0: 1.0})
    with pytest.raises(UndefinedMetricError, match="no test events of class 2"):
        score.class_share(2)


@pytest.mark.parametrize("label", [0, 1])
def test_without_signal_or_background_nothing_can_be_measured(label: int) -> None:
    task = example_task(classes=CLASSES[:2])
    events = random_events(60)
    events = events.select(np.flatnonzero(events.labels < 2))

    expected = f"there are no {CLASSES[label]} test events that count: .*Add files"
    with pytest.raises(UndefinedMetricError, match=expected):
        measurable_events(without_class(events, label, "cancelling weights"), task)


@pytest.mark.parametrize("cause", ["no events", "cancelling weights"])
def test_a_class_without_training_events_is_not_compared(cause: str) -> None:
    events = random_events(60)

    numbers = numbers_of(events, without_class(events, 2, cause))

    comparison = numbers["train_against_test"]["ttbar"]
    assert comparison["W+jets"] == {"distance": None, "p_value": None}
    assert comparison["QCD"]["p_value"] > 0.5
    (sentence,) = numbers["not_measurable"]
    assert "of W+jets cannot be compared" in sentence
    compared_only = {"train_against_test": {}, "not_measurable": []}
    assert {**numbers, **compared_only} == numbers_of(events)


def test_a_class_of_weights_that_nearly_cancel_is_named_with_its_weights() -> None:
    """156 events of weights +1, -1 and 3 add up to 10."""
    rng = np.random.default_rng(5)
    signed = rng.permutation(np.repeat([1.0, -1.0, 3.0], [53, 88, 15]))
    labels = np.repeat([0, 1, 2], [400, 400, len(signed)])
    mean_weight = signed.sum() / len(signed)
    weights = np.concatenate([np.ones(800), signed / mean_weight])
    probabilities = random_events(len(labels)).probabilities
    events = events_with(labels, probabilities, weights)

    numbers = numbers_of(events, events)

    comparison = numbers["train_against_test"]["ttbar"]
    assert comparison["W+jets"]["p_value"] is None
    assert comparison["QCD"]["p_value"] == 1.0
    (sentence,) = numbers["not_measurable"]
    assert "of W+jets cannot be compared" in sentence
    described = "156 events with weights of -1, 1, 3, which add up to 10: effectively 0.4 events"
    assert described in sentence
    assert numbers["accuracy"]["error"] > 0
