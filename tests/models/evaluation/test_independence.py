"""Dependence of a score on columns: distance correlation, flat efficiencies, figure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dcor
import numpy as np
import pyarrow as pa
import pytest
import torch
from drawn_figures import data_outside_axes, legend_texts
from evaluated_candidates import TASK, separable_dataset
from networks import small_network, small_spec
from scipy.stats import chi2_contingency
from scored_examples import example_task

from features.columns import hlf_names
from models.evaluation import evaluation
from models.evaluation.bootstrap import Replicas
from models.evaluation.evaluation import evaluate
from models.evaluation.independence import (
    MOST_EVENTS,
    Independence,
    ScoreCut,
    column_values,
    correlation_in_replicas,
    flatness,
    measure_independence,
)
from models.evaluation.independence_figure import plot_independence
from models.evaluation.measurements import replicas_of
from models.evaluation.scored_events import ScoredEvents
from models.evaluation.style import PlotLabels
from models.prediction import Candidate
from models.saved_model import model_spec
from training.workloads.distance_correlation import distance_correlation

LABELS = PlotLabels("", "technical sample", 13, "hlf")


def make_replicas(weights: np.ndarray, samples: np.ndarray | None = None) -> Replicas:
    """Replicas of events of one class."""
    if samples is None:
        samples = np.full(len(weights), "qcd")
    labels = np.zeros(len(weights), np.int64)
    return Replicas(labels, samples, weights, seed=1, num=300)


def related_columns(num_events: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    column = rng.exponential(size=num_events)
    noise = rng.normal(size=num_events)
    scores = np.tanh(column - 1 + noise)
    return scores, column


def test_the_value_is_that_of_the_loss_with_the_weights_of_the_events() -> None:
    scores, values = related_columns(300, seed=1)
    rng = np.random.default_rng(2)
    weights = rng.uniform(0.2, 3, 300)

    measured = correlation_in_replicas(scores, values, make_replicas(weights), 0)

    loss = distance_correlation(torch.tensor(scores), torch.tensor(values), torch.tensor(weights))
    assert measured["value"] == pytest.approx(float(loss), abs=1e-12)
    assert measured["num_events"] == 300


def test_without_weights_the_value_is_that_of_dcor() -> None:
    scores, values = related_columns(200, seed=3)

    measured = correlation_in_replicas(scores, values, make_replicas(np.ones(200)), 0)

    expected = float(dcor.distance_correlation_sqr(scores, values))
    assert measured["value"] == pytest.approx(expected, abs=1e-12)


def test_the_error_is_the_spread_over_samples_of_events() -> None:
    replicas = make_replicas(np.ones(200))
    correlations = []
    errors = []
    for seed in range(60):
        scores, column = related_columns(200, seed=seed)
        measured = correlation_in_replicas(scores, column, replicas, 0)
        correlations.append(measured["value"])
        errors.append(measured["error"])

    spread = np.std(correlations, ddof=1)
    assert np.mean(errors) == pytest.approx(spread, rel=0.25)


def test_independent_columns_have_the_stated_mean() -> None:
    rng = np.random.default_rng(4)
    scores, values = related_columns(150, seed=4)
    weights = rng.uniform(0.2, 3, 150)
    replicas = make_replicas(weights)

    measured = correlation_in_replicas(scores, values, replicas, 0)

    shuffled_correlations = []
    for _ in range(150):
        shuffled_scores = rng.permutation(scores)
        shuffled_values = rng.permutation(values)
        shuffled = correlation_in_replicas(shuffled_scores, shuffled_values, replicas, 0)
        shuffled_correlations.append(shuffled["value"])
    mean_if_independent = np.mean(shuffled_correlations)
    assert measured["independent"] == pytest.approx(mean_if_independent, rel=0.1)


def test_samples_keep_their_share_and_of_many_events_some_count() -> None:
    num_events = 2 * MOST_EVENTS
    scores, values = related_columns(num_events, seed=5)
    is_low = np.arange(num_events) % 4 == 0
    samples = np.where(is_low, "low", "high")
    replicas = make_replicas(np.ones(num_events), samples)

    measured = correlation_in_replicas(scores, values, replicas, 0)

    assert measured["num_events"] == MOST_EVENTS
    # A quarter of the events are of the first sample.
    first_of_low = np.flatnonzero(is_low)[: MOST_EVENTS // 4]
    first_of_high = np.flatnonzero(~is_low)[: MOST_EVENTS * 3 // 4]
    rows = np.sort(np.concatenate([first_of_low, first_of_high]))
    expected = float(dcor.distance_correlation_sqr(scores[rows], values[rows]))
    assert measured["value"] == pytest.approx(expected, abs=1e-9)


def test_a_constant_column_has_no_correlation() -> None:
    scores, _ = related_columns(50, seed=6)
    constant = np.ones(50)
    replicas = make_replicas(np.ones(50))

    measured = correlation_in_replicas(scores, constant, replicas, 0)

    assert np.isnan(measured["value"])
    assert np.isnan(measured["independent"])


def test_the_chi_square_is_that_of_pearson() -> None:
    rng = np.random.default_rng(7)
    values = rng.exponential(size=900)
    efficiencies = np.where(values > 1, 0.25, 0.2)
    passing = rng.random(900) < efficiencies

    measured = flatness(values, passing, np.ones(900))

    bins = np.searchsorted(measured["edges"][1:-1], values, side="right")
    counts = np.array([np.bincount(bins, passing), np.bincount(bins, ~passing)])
    expected = chi2_contingency(counts, correction=False)
    assert len(measured["edges"]) == 9
    assert measured["chi_square"] == pytest.approx(expected.statistic)
    assert measured["degrees_of_freedom"] == expected.dof
    assert measured["p_value"] == pytest.approx(expected.pvalue)


@pytest.mark.parametrize("are_weighted", [False, True])
def test_a_flat_efficiency_is_rejected_as_often_as_the_p_value_says(are_weighted: bool) -> None:
    num_rejected = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        values = rng.normal(size=400)
        passing = rng.random(400) < 0.3
        weights = np.ones(400)
        if are_weighted:
            weights = rng.uniform(0.5, 2, 400)
        measured = flatness(values, passing, weights)
        num_rejected += measured["p_value"] < 0.1

    # Within four standard deviations of 30.
    assert 10 <= num_rejected <= 50


def test_an_efficiency_that_follows_the_column_is_not_flat() -> None:
    rng = np.random.default_rng(8)
    values = rng.normal(size=400)
    noise = rng.normal(size=400)
    passing = values + noise > 0

    measured = flatness(values, passing, np.ones(400))

    assert measured["p_value"] < 1e-10


def test_bins_hold_whole_values_and_are_as_few_as_the_events_need() -> None:
    rng = np.random.default_rng(9)
    weights = np.ones(300)
    num_jets = rng.integers(2, 5, 300).astype(float)
    half_passes = rng.random(300) < 0.5
    values = rng.random(300)
    first_16_pass = np.arange(300) < 16
    first_9_pass = np.arange(300) < 9

    of_whole_values = flatness(num_jets, half_passes, weights)
    of_few_passing = flatness(values, first_16_pass, weights)
    of_too_few_passing = flatness(values, first_9_pass, weights)

    assert of_whole_values["edges"] == [2, 3, 4, 5]
    assert len(of_few_passing["edges"]) == 4
    assert of_too_few_passing["edges"] == []
    assert of_too_few_passing["p_value"] is None


def test_columns_are_features_by_name_or_columns_of_the_table() -> None:
    num_features = len(hlf_names())
    hlf = np.arange(3 * num_features, dtype=np.float32).reshape(3, num_features)
    table = pa.table({"hlf": pa.array(list(hlf)), "mass": [1, 2, 3]})

    assert column_values(table, hlf_names()[2]).tolist() == hlf[:, 2].tolist()
    assert column_values(table, "mass").tolist() == [1.0, 2.0, 3.0]


def test_an_evaluation_measures_each_column_within_each_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    class Recorder:
        def __enter__(self) -> Any:
            return lambda _, stem: names.append(stem.name)

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(evaluation, "saving_in_processes", Recorder)
    dataset = separable_dataset(tmp_path / "data")
    spec = model_spec(small_spec("hlf").settings, dataset)
    candidate = Candidate("hlf", small_network(spec, dtype=torch.float32))
    task = TASK._replace(
        independent_of=["met", "num_particles", "Jet.Mass"], independent_within=[0, 2]
    )

    metrics = evaluate([candidate], dataset.files("test"), [], task, tmp_path, train_events=5)

    run = metrics["runs"]["hlf"]
    assert list(run["independence"]) == ["met", "num_particles"]
    for by_class in run["independence"].values():
        assert list(by_class) == ["QCD", "W+jets"]
        for numbers in by_class.values():
            assert 0 < numbers["distance_correlation"]["value"] < 1
            assert numbers["distance_correlation"]["error"] > 0
            assert [point["wanted"] for point in numbers["points"]] == [0.5]
    assert any("Jet.Mass is not measured" in text for text in run["not_measurable"])
    assert "independence" in names
    columns = (tmp_path / "hlf" / "predictions.parquet").read_bytes()
    assert b"num_particles" not in columns


def events_of_one_class(scores: np.ndarray) -> ScoredEvents:
    """Events of the first of two classes, and one of the signal; the score is that of the signal."""
    num_events = len(scores) + 1
    labels = np.zeros(num_events, np.int64)
    labels[-1] = 1
    scores = np.append(scores, 0.5)
    probabilities = np.stack([1 - scores, scores], axis=1)
    weights = np.ones(num_events)
    hlf = np.zeros((num_events, len(hlf_names())), np.float32)
    samples = np.where(labels == 0, "qcd", "top")
    return ScoredEvents(labels, probabilities, weights, hlf, samples)


def independence_of(events: ScoredEvents, values: np.ndarray) -> Independence:
    """How the scores of QCD depend on a column x, at the cut at 0.5."""
    table = pa.table({"label": events.labels, "x": np.append(values, 1.0)})
    task = example_task(classes=["QCD", "top"], independent_of=["x"], independent_within=[0])
    replicas = replicas_of(events, task, num=300)
    return measure_independence(table, events, replicas, task, [CUT])


def nulls(numbers: Any) -> int:
    """How many numbers are null in JSON, or lists empty."""
    if isinstance(numbers, dict):
        return sum(nulls(value) for value in numbers.values())
    if isinstance(numbers, list):
        return sum(nulls(value) for value in numbers) if numbers else 1
    return int(numbers is None or not np.isfinite(numbers))


CUT = ScoreCut(wanted=0.9, threshold=0.5)
SCORES = np.random.default_rng(11).uniform(size=300)
MASSES = np.random.default_rng(12).uniform(20, 90, 300)


def test_what_is_measured_has_no_sentence() -> None:
    measured = independence_of(events_of_one_class(SCORES), MASSES)

    assert nulls(measured.numbers) == 0
    assert measured.sentences == []


@pytest.mark.parametrize("mass", [np.nan, np.inf, -np.inf])
def test_a_class_with_a_column_that_is_not_finite_has_a_sentence_in_place_of_numbers(
    mass: float,
) -> None:
    masses = MASSES.copy()
    masses[[5, 7]] = mass

    measured = independence_of(events_of_one_class(SCORES), masses)

    numbers = measured.numbers["x"]["QCD"]
    assert np.isnan(numbers["distance_correlation"]["value"])
    (point,) = numbers["points"]
    assert point["wanted"] == 0.9
    assert point["threshold"] == 0.5
    assert point["edges"] == []
    assert point["chi_square"] is None
    assert point["p_value"] is None
    (sentence,) = measured.sentences
    assert "not measured for QCD: 2 of its 300 test events have no finite x." in sentence


@pytest.mark.parametrize(
    ("scores", "masses", "sentences"),
    [
        (SCORES, np.ones(300), ["distance correlation of score and x", "flat in x .* 90 %"]),
        (np.full(300, 0.7), MASSES, ["distance correlation of score and x", "flat in x .* 90 %"]),
        (SCORES / 2.01, MASSES, ["flat in x .* 90 %: too few events"]),
    ],
    ids=["column is constant", "score is constant", "no event passes"],
)
def test_each_null_has_a_sentence(
    scores: np.ndarray, masses: np.ndarray, sentences: list[str]
) -> None:
    measured = independence_of(events_of_one_class(scores), masses)

    assert nulls(measured.numbers) > 0
    assert len(measured.sentences) == len(sentences)
    for sentence, pattern in zip(measured.sentences, sentences, strict=True):
        assert re.search(pattern, sentence)


def test_a_bin_without_weight_has_a_sentence() -> None:
    events = events_of_one_class(SCORES)
    weights = events.weights.copy()
    # The lowest of eight bins of 37 or 38 events has no weight.
    lightest = np.argsort(MASSES)[:60]
    weights[lightest] = 0

    measured = independence_of(events._replace(weights=weights), MASSES)

    (point,) = measured.numbers["x"]["QCD"]["points"]
    assert point["efficiency"][0] is None
    assert point["p_value"] is not None
    (sentence,) = measured.sentences
    assert "the efficiency of QCD is not measured in all bins of x" in sentence


def test_events_without_weight_do_not_make_a_constant_column_vary() -> None:
    weights = np.ones(50)
    values = np.ones(50)
    weights[0] = 0
    values[0] = 2
    replicas = make_replicas(weights)

    measured = correlation_in_replicas(SCORES[:50], values, replicas, 0)

    assert np.isnan(measured["value"])
    assert np.isnan(measured["independent"])


def test_a_single_bin_with_a_weight_is_not_tested() -> None:
    values = np.repeat([1.0, 2.0], 100)
    weights = np.repeat([1.0, 0.0], 100)
    passing = np.arange(200) % 2 == 0

    measured = flatness(values, passing, weights)

    assert measured["edges"] == []
    assert measured["p_value"] is None


def test_the_figure_shows_each_cut_with_its_p_value_inside_its_axes() -> None:
    rng = np.random.default_rng(10)
    values = 23 + rng.exponential(30, 500)
    weights = np.ones(500)
    points = []
    for efficiency, share_passing in ((0.9, 0.1), (0.99, 0.6), (0.5, 0.001)):
        passing = rng.random(500) < share_passing
        measured = flatness(values, passing, weights)
        points.append({"wanted": efficiency, "threshold": 0.5, **measured})
    correlation = {"value": 0.0312, "error": 0.0064, "independent": 0.01, "num_events": 500}
    numbers = {"distance_correlation": correlation, "points": points}

    numbers_by_column = {"lepton_pt": {"QCD": numbers}, "mass": {"QCD": numbers}}

    figure = plot_independence(numbers_by_column, "$t$", LABELS)

    texts = legend_texts(figure)
    p_value = points[0]["p_value"]
    assert texts[0] == f"90 %: p = {p_value:.2g} for flat"
    assert texts[2] == "50 %: not measurable"
    assert [axes.get_xlabel() for axes in figure.axes] == ["Lepton $p_T$ [GeV]", "mass"]
    assert data_outside_axes(figure) == []
