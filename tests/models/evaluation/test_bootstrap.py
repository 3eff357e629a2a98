"""The replicas: intervals that cover the truth, also if weights are correlated with scores, pairs,
and limits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import beta, norm

from models.errors import UndefinedMetricError
from models.evaluation.bootstrap import Estimate, Replicas, estimate
from models.evaluation.discriminant import ReplicatedScore
from models.evaluation.improvement import improvement
from models.evaluation.intervals import WeightSums, efficiency_of_sums
from models.evaluation.rates import Rates, rates_behind
from models.evaluation.scored_events import ScoredEvents

ONE_SIGMA = 0.6827
SIGNAL, BACKGROUND = {1: 1.0}, {0: 1.0}


def replicas_of(
    labels: np.ndarray, weights: np.ndarray, samples: np.ndarray | None = None, seed: int = 0
) -> Replicas:
    if samples is None:
        samples = np.full(len(labels), "all")
    return Replicas(labels, samples, weights, seed=seed, num=250)


def weighted_by_score(
    rng: np.random.Generator, *, events_per_class: int = 150
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, normal scores, and weights that are exponential functions of the scores."""
    labels = np.repeat([1, 0], events_per_class)
    scores = rng.normal(1.5 * labels, 1)
    weights = np.exp(np.where(labels == 1, 0.5, -0.3) * scores)
    return labels, scores, weights


def area_covers(rng: np.random.Generator) -> bool:
    labels, scores, weights = weighted_by_score(rng)
    score = ReplicatedScore(replicas_of(labels, weights), scores, SIGNAL, np.array([]))
    area = estimate(score.area(BACKGROUND))
    # A weight exp(a x) moves a normal distribution by a.
    distance = 1.5 + 0.5 + 0.3
    truth = norm.cdf(distance / np.sqrt(2))
    return bool(abs(area.value - truth) < area.error)


def efficiency_covers(rng: np.random.Generator) -> bool:
    """Background at 90 % of the signal, of a class of two slices with few and many events."""
    samples = np.repeat(["signal", "low", "high"], [600, 400, 600])
    is_signal = samples == "signal"
    labels = is_signal.astype(np.int64)
    mean_scores = np.repeat([2.0, 0.3, 1.2], [600, 400, 600])
    scores = rng.normal(mean_scores, 1)
    # The slices are 70 % and 30 % of the background.
    weights = np.repeat([1.0, 0.7 / 400, 0.3 / 600], [600, 400, 600])
    weights[is_signal] = rng.uniform(0.5, 1.5, 600)

    replicas = replicas_of(labels, weights, samples)
    score = ReplicatedScore(replicas, scores, SIGNAL, np.array([0.9]))
    share = score.class_share(0).interval(0)

    threshold = norm.isf(0.9, loc=2.0)
    share_of_low = norm.sf(threshold, 0.3)
    share_of_high = norm.sf(threshold, 1.2)
    truth = 0.7 * share_of_low + 0.3 * share_of_high
    return share.low <= truth <= share.high


def gain_covers(rng: np.random.Generator) -> bool:
    """Gains that differ between the classes, and weights that are correlated with them."""
    labels = np.repeat([0, 1], 150)
    mean_gains = np.repeat([0.05, 0.6], 150)
    gains = rng.normal(mean_gains, 0.3)
    weights = np.exp(gains)
    hlf = np.zeros((300, 1), np.float32)
    samples = np.full(300, "all")
    old_probabilities = np.full((300, 2), 0.1)
    new_probabilities = 0.1 * np.exp(gains)[:, np.newaxis] * np.ones(2)

    old = ScoredEvents(labels, old_probabilities, weights, hlf, samples)
    new = old._replace(probabilities=new_probabilities)
    gain = improvement(old, new)

    # A weight exp(x) moves a normal distribution by its variance.
    truth = (0.05 + 0.6) / 2 + 0.3**2
    return bool(abs(gain.value - truth) < gain.error)


def weighted_share_covers(rng: np.random.Generator) -> bool:
    """Events that pass have other weights than those that fail."""
    passes = rng.random(400) < 0.3
    weights_if_passing = rng.exponential(3, 400)
    weights_if_failing = rng.uniform(0.5, 1.5, 400)
    passing = WeightSums.of(weights_if_passing[passes])
    failing = WeightSums.of(weights_if_failing[~passes])

    share = efficiency_of_sums(passing, failing)

    # 30 % pass with a mean weight of 3, 70 % fail with one of 1.
    truth = 0.9 / (0.9 + 0.7)
    return share.low <= truth <= share.high


@pytest.mark.slow
@pytest.mark.parametrize(
    ("covers", "num_experiments"),
    [
        (area_covers, 600),
        (efficiency_covers, 600),
        (gain_covers, 1500),
        (weighted_share_covers, 1500),
    ],
)
def test_intervals_cover_the_truth(
    covers: Callable[[np.random.Generator], bool],
    num_experiments: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(Replicas.__init__.__kwdefaults__, "num", 250)
    monkeypatch.setattr("models.evaluation.discriminant._MOST_THRESHOLDS", 200)

    is_covered = [covers(np.random.default_rng([5, index])) for index in range(num_experiments)]

    assert np.mean(is_covered) == pytest.approx(ONE_SIGMA, abs=0.03)


@pytest.mark.parametrize(("num_passing", "num_events"), [(0, 31), (3, 40), (60, 200)])
def test_with_weights_of_one_a_share_has_the_interval_of_a_binomial(
    num_passing: int, num_events: int
) -> None:
    """The intervals are those of Clopper and Pearson for few events, and of Jeffreys for many."""
    num_failing = num_events - num_passing
    labels = np.zeros(num_events, int)
    samples = np.full(num_events, "a")
    weights = np.ones(num_events)
    replicas = Replicas(labels, samples, weights, seed=1, num=5000)
    (stratum,) = replicas.strata
    fails = np.repeat([0, 1], [num_passing, num_failing])
    total_passing = np.array([float(num_passing)])

    weight_passing = replicas.sums(stratum, fails, 2)[:1]
    shares = replicas.shares_passing(stratum, weight_passing, total_passing)
    interval = shares.interval(0)

    # Half an event more of each, or one more that fails or passes.
    shift = 0.5 if num_passing < 10 else 0.0
    low = 0.0
    if num_passing:
        low = beta.ppf(0.1587, num_passing + 0.5 - shift, num_failing + 0.5 + shift)
    high = beta.ppf(0.8413, num_passing + 0.5 + shift, num_failing + 0.5 - shift)
    binomial = (num_passing / num_events, low, high)
    assert interval == pytest.approx(binomial, abs=0.005)
    passing = WeightSums(num_passing, num_passing)
    failing = WeightSums(num_failing, num_failing)
    exact = efficiency_of_sums(passing, failing)
    assert interval == pytest.approx(exact, abs=0.005)


def two_slices() -> tuple[ReplicatedScore, Rates]:
    """A soft slice of 1e5/s of which 1 % passes, and a hard one of 1e2/s of which half passes."""
    samples = np.repeat(["soft", "hard", "signal"], 100)
    labels = (samples == "signal").astype(np.int64)
    scores = np.repeat([0.0, 1.0, 0.0, 1.0], [99, 51, 50, 100])
    weights = np.ones(300)
    replicas = Replicas(labels, samples, weights, seed=1, num=500)
    score = ReplicatedScore(replicas, scores, SIGNAL, np.array([0.9]))

    rates_of_samples = {
        "soft": Estimate(1e5, 0.0),
        "hard": Estimate(1e2, 0.0),
        "signal": Estimate(10.0, 0.0),
    }
    labels_of_samples = {"soft": 0, "hard": 0, "signal": 1}
    return score, Rates(rates_of_samples, labels_of_samples)


def test_slices_of_a_class_pass_with_their_own_efficiencies() -> None:
    score, rates = two_slices()

    (point,) = rates_behind(score, rates, ["QCD", "ttbar"], seed=1)

    qcd_rate = point["rates"]["QCD"]
    assert qcd_rate["value"] == pytest.approx(1e5 * 0.01 + 1e2 * 0.5)
    # The signal of 10/s passes as a whole.
    assert point["total_rate"]["value"] == pytest.approx(1060)
    assert point["purity"]["value"] == pytest.approx(10 / 1060)
    # The soft slice decides: 1 event of 100.
    assert qcd_rate["low"] < 400
    assert qcd_rate["high"] > 2000


def test_where_nothing_passes_there_are_limits() -> None:
    labels = np.repeat([0, 1], [31, 100])
    samples = np.repeat(["qcd", "ttbar"], [31, 100])
    weights = np.ones(131)
    scores = np.repeat([0.0, 1.0], [31, 100])
    replicas = Replicas(labels, samples, weights, seed=1)
    score = ReplicatedScore(replicas, scores, SIGNAL, np.array([0.9]))
    rates_of_samples = {"qcd": Estimate(1000.0, 0.0), "ttbar": Estimate(20.0, 0.0)}
    rates = Rates(rates_of_samples, {"qcd": 0, "ttbar": 1})

    (point,) = rates_behind(score, rates, ["QCD", "ttbar"], seed=1)

    qcd_rate, purity = point["rates"]["QCD"], point["purity"]
    none_of_31 = efficiency_of_sums(WeightSums(0, 0), WeightSums(31, 31))
    upper_limit = 1000 * none_of_31.high
    assert qcd_rate["value"] == 0
    assert qcd_rate["high"] == pytest.approx(upper_limit, rel=0.05)
    assert purity["value"] == 1
    assert purity["low"] < 20 / (20 + 50)


def test_errors_of_the_rate_before_the_classifier_count() -> None:
    score, rates = two_slices()
    uncertain = {name: Estimate(rate, 0.3 * rate) for name, rate in rates.values.items()}
    uncertain_rates = rates._replace(of_samples=uncertain)

    (point,) = rates_behind(score, uncertain_rates, ["QCD", "ttbar"], seed=1)

    signal = point["rates"]["ttbar"]
    error = (signal["high"] - signal["low"]) / 2
    assert error == pytest.approx(0.3 * signal["value"], rel=0.15)


def test_a_sample_without_test_events_passes_as_its_class_does() -> None:
    score, rates = two_slices()
    rates_of_samples = {**rates.of_samples, "rare": Estimate(100.0, 0.0)}
    labels_of_samples = {**rates.labels, "rare": 1}
    rates_with_rare = Rates(rates_of_samples, labels_of_samples)

    (point,) = rates_behind(score, rates_with_rare, ["QCD", "ttbar"], seed=1)

    # All of the signal passes: 10/s of the sample with events, 100/s of the rare one.
    assert point["rates"]["ttbar"]["value"] == pytest.approx(110)


def test_the_same_seed_gives_the_same_replicas() -> None:
    labels, scores, weights = weighted_by_score(np.random.default_rng(3))

    def area(seed: int) -> np.ndarray:
        replicas = replicas_of(labels, weights, seed=seed)
        score = ReplicatedScore(replicas, scores, SIGNAL, np.array([]))
        return score.area(BACKGROUND)

    first = area(1)
    same_seed = area(1)
    other_seed = area(2)

    np.testing.assert_array_equal(first, same_seed)
    assert first[0] == other_seed[0]
    assert (first[1:] != other_seed[1:]).all()


@pytest.mark.slow
def test_many_events_in_groups_have_the_same_errors() -> None:
    rng = np.random.default_rng(5)
    labels, scores, weights = weighted_by_score(rng, events_per_class=20_000)
    samples = np.full(len(labels), "all")
    replicas = Replicas(labels, samples, weights, seed=1)
    score = ReplicatedScore(replicas, scores, SIGNAL, np.array([0.9]))

    area = estimate(score.area(BACKGROUND))
    share = score.class_share(0).interval(0)

    for stratum in replicas.strata:
        assert len(stratum.random_weights) <= 2000
    # 133 times the events of the small samples, whose areas spread by 0.0092.
    expected_error = 0.0092 / np.sqrt(20_000 / 150)
    assert area.error == pytest.approx(expected_error, rel=0.15)
    assert 0 < share.low < share.value < share.high
    # Thresholds of cuts stay exact.
    threshold = score.thresholds[score.cuts[0, 0]]
    is_signal = labels == 1
    weight_of_signal = weights[is_signal].sum()
    weight_passing = weights[is_signal & (scores >= threshold)].sum()
    excess = weight_passing - 0.9 * weight_of_signal
    assert 0 <= excess < weights.max()


@pytest.mark.parametrize(
    ("samples", "weights", "expected"),
    [
        (["a"] * 4 + ["b"], [1.0, 1.0, 1.0, 1.0, -1.0], ("a", 5, 3.0)),
        # Three samples that are above 0 only together count as one.
        (["a", "b", "c"], [2.0, 1.5, -3.0], ("a", 3, 0.5)),
        # The weights of a sample cancel but for rounding.
        (["a", "b", "b", "b"], [1.0, 0.1, 0.2, -0.3], ("a", 4, 1.0)),
    ],
)
def test_a_sample_without_weight_counts_with_that_of_the_most_events(
    samples: list[str], weights: list[float], expected: tuple[str, int, float]
) -> None:
    labels = np.array([0] * len(samples) + [1])
    all_weights = np.array([*weights, 1.0])
    all_samples = np.array([*samples, "signal"])

    replicas = replicas_of(labels, all_weights, all_samples)

    background, signal = replicas.strata
    sample, num_events, weight = expected
    assert background.sample == sample
    assert len(background.rows) == num_events
    assert background.totals[0] == pytest.approx(weight)
    assert signal.sample == "signal"


def test_replicas_without_weight_are_left_out() -> None:
    labels = np.repeat([0, 1], [5, 50])
    # Two of the five events of class 0 are negative.
    weights = np.repeat([-0.9, 1.0], [2, 53])

    replicas = replicas_of(labels, weights)

    for stratum in replicas.strata:
        assert (stratum.totals > 0).all()
    # 251 are the nominal one and its 250 replicas.
    num_replicas = len(replicas.strata[0].totals)
    assert 50 < num_replicas < 251


def test_a_class_without_weight_is_an_error_that_names_its_samples() -> None:
    labels = np.array([0, 0, 1])
    samples = np.array(["low", "high", "other"])
    weights = np.array([1.0, -2.0, 1.0])

    expected = "events of QCD in sample high and low cannot be evaluated"
    with pytest.raises(UndefinedMetricError, match=expected):
        Replicas(labels, samples, weights, seed=1, num=2, classes=["QCD", "top"])
