"""Rates behind a cut: errors of cross-sections, and samples whose rate before it is 0."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evaluated_candidates import TASK, separable_dataset
from networks import small_network
from numpy.typing import NDArray

from models.evaluation import evaluation
from models.evaluation.bootstrap import Estimate, Replicas
from models.evaluation.discriminant import ReplicatedScore
from models.evaluation.evaluation import evaluate
from models.evaluation.evaluation_task import mixture_of
from models.evaluation.rates import CrossSection, Rates, rates_behind
from models.evaluation.scored_events import joined_samples, mixing_factors, within_classes
from models.prediction import Candidate

CLASSES = ["QCD", "ttbar"]


def score_of_samples(events: dict[str, int], scores: dict[str, float]) -> ReplicatedScore:
    """The score of events of weight 1, one score a sample; `signal` is the only signal."""
    samples = np.repeat(list(events), list(events.values()))
    labels = (samples == "signal").astype(np.int64)
    weights = np.ones(len(samples))
    scores_of_events = np.array([scores[name] for name in samples])
    replicas = Replicas(labels, samples, weights, seed=1, num=2000)
    return ReplicatedScore(replicas, scores_of_events, {1: 1.0}, np.array([0.9]))


def point_of(score: ReplicatedScore, rates: Rates) -> dict[str, Any]:
    (point,) = rates_behind(score, rates, CLASSES, seed=1)
    return point


def test_a_sample_of_rate_0_adds_its_upper_limit_to_the_interval_only() -> None:
    events = {"low": 500, "high": 500, "signal": 500}
    score = score_of_samples(events, {"low": 2.0, "high": 2.0, "signal": 1.0})
    labels = {"low": 0, "high": 0, "signal": 1}
    of_samples = {name: Estimate(0.0, 0.0) for name in labels}
    of_samples["low"] = Estimate(0.0, 40.0)

    only_limit = point_of(score, Rates(of_samples, labels))
    of_samples["high"] = Estimate(100.0, 0.0)
    point = point_of(score, Rates(of_samples, labels))

    # Everything passes the cut.
    limit = only_limit["rates"]["QCD"]
    assert limit["value"] == 0
    assert limit["low"] == 0
    assert limit["limit"] == "upper"
    assert limit["high"] == pytest.approx(40, rel=0.1)
    rate = point["rates"]["QCD"]
    assert rate["value"] == pytest.approx(100)
    assert rate["high"] == pytest.approx(140, rel=0.05)


def relative_error(interval: dict[str, float]) -> float:
    error = (interval["high"] - interval["low"]) / 2
    return error / interval["value"]


@pytest.mark.parametrize(
    ("names", "expected"), [(("top", "top"), 0.2), (("top", "qcd"), 0.2 / np.sqrt(2))]
)
def test_classes_of_one_cross_section_have_its_error_together(
    names: tuple[str, str], expected: float
) -> None:
    """Equal rates, of which everything passes."""
    score = score_of_samples({"top.0": 5000, "signal": 5000}, {"top.0": 2.0, "signal": 1.0})
    labels = {"top.0": 0, "signal": 1}
    of_samples = {name: Estimate(50.0, 0.0) for name in labels}
    uncertain = [CrossSection(name, 0.2) for name in names]
    cross_sections = dict(zip(labels, uncertain, strict=True))
    rates = Rates(of_samples, labels, cross_sections=cross_sections)

    point = point_of(score, rates)

    assert point["rates"]["QCD"]["value"] == pytest.approx(50)
    assert relative_error(point["rates"]["QCD"]) == pytest.approx(0.2, rel=0.06)
    assert relative_error(point["total_rate"]) == pytest.approx(expected, rel=0.06)
    # A common factor of signal and background leaves their share.
    shares_factor = names[0] == names[1]
    purity_is_certain = relative_error(point["purity"]) < 0.01
    assert purity_is_certain == shares_factor


def test_errors_of_selection_and_cross_section_add_in_quadrature() -> None:
    score = score_of_samples({"low": 5000, "signal": 5000}, {"low": 2.0, "signal": 1.0})
    labels = {"low": 0, "signal": 1}
    of_samples = {"low": Estimate(100.0, 10.0), "signal": Estimate(1.0, 0.0)}
    cross_sections = {"low": CrossSection("low", 0.15)}
    rates = Rates(of_samples, labels, cross_sections=cross_sections)

    point = point_of(score, rates)

    expected = np.hypot(0.1, 0.15)
    assert relative_error(point["rates"]["QCD"]) == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize("unit", [1e-9, 1e-14])
def test_small_rates_and_purities_are_not_0(unit: float) -> None:
    score = score_of_samples({"low": 500, "signal": 500}, {"low": 2.0, "signal": 1.0})
    labels = {"low": 0, "signal": 1}
    of_samples = {"low": Estimate(1e4 * unit, 0.0), "signal": Estimate(1e-6 * unit, 0.0)}

    point = point_of(score, Rates(of_samples, labels))

    # Everything passes the cut.
    expected_rates = {"ttbar": 1e-6 * unit, "QCD": 1e4 * unit}
    for name, rate in expected_rates.items():
        interval = point["rates"][name]
        assert interval["value"] == pytest.approx(rate, rel=1e-9)
        assert 0.5 * rate < interval["low"] <= interval["high"] < 2 * rate
        assert "limit" not in interval
    purity = point["purity"]
    assert purity["value"] == pytest.approx(1e-10, rel=1e-9)
    assert 0 < purity["low"] < purity["high"] < 2e-10
    assert "limit" not in purity


def weighted_samples(
    rng: np.random.Generator, sums: dict[str, tuple[int, float]]
) -> tuple[NDArray[np.str_], NDArray[np.float64]]:
    """Samples of some numbers of events, whose random weights have these sums."""
    samples, weights = [], []
    for name, (num_events, total) in sums.items():
        samples += [name] * num_events
        signed = rng.normal(1, 2, num_events)
        shift = (total - signed.sum()) / num_events
        weights.append(signed + shift)
    return np.array(samples), np.concatenate(weights)


def test_the_rate_behind_a_cut_is_that_before_times_the_efficiency_of_joined_samples() -> None:
    """The joined sample has most of the rate of its class, and other scores than all others."""
    rng = np.random.default_rng(1)
    sums = {"soft": (120, 200.0), "negative": (20, -3.0), "hard": (80, 90.0), "signal": (100, 90.0)}
    samples, weights = weighted_samples(rng, sums)
    labels = (samples == "signal").astype(np.int64)
    rates_before = {"soft": 10.0, "negative": 40.0, "hard": 500.0, "signal": 5.0}
    factors = mixing_factors(labels, samples, weights, rates_before)
    mixed = within_classes(labels, weights * factors)
    replicas = Replicas(labels, samples, mixed, seed=1, num=100)
    mean_scores = {"soft": 0.5, "negative": 3.0, "hard": -1.0, "signal": 2.0}
    mean_score_of_events = [mean_scores[name] for name in samples]
    scores = rng.normal(mean_score_of_events, 0.7)
    score = ReplicatedScore(replicas, scores, {1: 1.0}, np.array([0.5, 0.9]))
    estimates = {name: Estimate(rate, 0.0) for name, rate in rates_before.items()}
    labels_of_samples = {"soft": 0, "negative": 0, "hard": 0, "signal": 1}
    rates = Rates(estimates, labels_of_samples)

    points = rates_behind(score, rates, CLASSES, seed=1)

    # The rates of QCD add up to 550.
    expected = 550 * score.class_share(0).value
    rates_of_qcd = [point["rates"]["QCD"]["value"] for point in points]
    assert rates_of_qcd == pytest.approx(expected.tolist())
    # The mixed weights of a stratum are the rates of its samples.
    fractions = {stratum.sample: stratum.fraction for stratum in replicas.strata_of_class(0)}
    assert fractions == pytest.approx({"soft": 50 / 550, "hard": 500 / 550})


@pytest.mark.parametrize("seed", range(50))
def test_mixed_weights_join_the_same_samples(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sums = {}
    for name in "abcdef":
        num_events = int(rng.integers(3, 9))
        total = float(rng.normal(2, 5))
        sums[name] = (num_events, total)
    samples, weights = weighted_samples(rng, sums)
    labels = np.zeros(len(samples), np.int64)
    random_rates = rng.exponential(1, len(sums))
    rates = dict(zip(sums, random_rates, strict=True))

    mixed = weights * mixing_factors(labels, samples, weights, rates)

    joined = joined_samples(labels, samples, weights)
    joined_when_mixed = joined_samples(labels, samples, mixed)
    assert joined_when_mixed.tolist() == joined.tolist()


def test_classes_whose_rates_are_all_0_are_mixed_in_equal_parts() -> None:
    rate_of_0 = Estimate(0.0, 1.0)
    rates = Rates({"a": rate_of_0, "b": rate_of_0}, {"a": 0, "b": 1})

    mixture = mixture_of(["QCD", "W"], [0, 1], rates)

    equal_parts = mixture_of(["QCD", "W"], [0, 1], None)
    assert mixture == equal_parts


def test_samples_of_a_class_whose_rates_are_all_0_count_by_their_weights() -> None:
    labels = np.zeros(3, np.int64)
    samples = np.array(["a", "a", "b"])
    weights = np.ones(3)

    factors = mixing_factors(labels, samples, weights, {"a": 0.0, "b": 0.0})

    assert factors.tolist() == [1, 1, 1]


def test_a_sample_without_measured_rate_is_named_by_every_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "saving_in_processes", lambda: nullcontext(lambda *_: None))
    assert TASK.rates is not None
    of_samples = {**TASK.rates.of_samples, "W+jets": Estimate(0.0, 12.0)}
    rates = TASK.rates._replace(of_samples=of_samples)
    task = TASK._replace(rates=rates)
    files = separable_dataset(tmp_path / "data").files("test")
    candidates = [
        Candidate("first", small_network("hlf", dtype=torch.float32)),
        Candidate("second", small_network("hlf", dtype=torch.float32)),
    ]
    out = tmp_path / "out"
    out.mkdir()

    metrics = evaluate(candidates, files, [], task, out, train_events=0)

    assert metrics["rates_before"] == {"QCD": 4000, "ttbar": 10, "W+jets": 0}
    for run in metrics["runs"].values():
        (sentence,) = run["not_measurable"]
        assert sentence.startswith(
            "the rate of sample W+jets before the classifier is not measured"
        )
        assert "It counts as 0, and is below 12/s." in sentence


def test_the_reasons_why_there_are_no_rates_stand_with_each_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "plot_model", lambda *_: None)
    monkeypatch.setattr(evaluation, "plot_models", lambda *_: None)
    monkeypatch.setattr(evaluation, "saving_in_processes", lambda: nullcontext(lambda *_: None))
    files = separable_dataset(tmp_path / "data").files("test")
    candidate = Candidate("first", small_network("hlf", dtype=torch.float32))
    out = tmp_path / "out"
    out.mkdir()
    reason = "there are no rates: the config has no cross_section_pb of qcd."
    task = TASK._replace(rates=None, reasons_without_rates=[reason])

    metrics = evaluate([candidate], files, [], task, out, train_events=0)

    assert metrics["rates_before"] is None
    assert metrics["runs"]["first"]["not_measurable"] == [reason]
