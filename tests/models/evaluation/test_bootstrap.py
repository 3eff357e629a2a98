"""The replicas: intervals that cover what they promise whatever weights are correlated with, pairs, limits, speed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import beta, norm

from models.errors import UndefinedMetricError
from models.evaluation.bootstrap import Estimate, Replicas, estimate
from models.evaluation.discriminant import Scored
from models.evaluation.improvement import improvement
from models.evaluation.intervals import WeightSums, efficiency_of_sums
from models.evaluation.rates import Rates, rates_behind
from models.evaluation.scored_events import ScoredEvents

RNG = np.random.default_rng
ONE_SIGMA = 0.6827


def replicas_of(
    labels: np.ndarray, weights: np.ndarray, samples: np.ndarray | None = None, seed: int = 0
) -> Replicas:
    names = np.full(len(labels), "all") if samples is None else samples
    return Replicas(labels, names, weights, seed=seed, num=250)


def area_with_weights_by_score(
    rng: np.random.Generator, *, size: int = 150
) -> tuple[np.ndarray, ...]:
    scores = np.concatenate([rng.normal(1.5, 1, size), rng.normal(0, 1, size)])
    weights = np.exp(np.repeat([0.5, -0.3], size) * scores)
    return np.repeat([1, 0], size), scores, weights


def area(rng: np.random.Generator) -> bool:
    labels, scores, weights = area_with_weights_by_score(rng)
    actual = estimate(
        Scored(replicas_of(labels, weights), scores, {1: 1.0}, np.array([])).area({0: 1.0})
    )
    # A weight exp(a x) moves a normal distribution by a.
    true = norm.cdf((1.5 + 0.5 + 0.3) / np.sqrt(2))
    return bool(abs(actual.value - true) < actual.error)


def sliced_point(rng: np.random.Generator) -> bool:
    """Background left at 90 % of the signal, of a class of two slices with few and many events."""
    sizes, places, shares = (600, 400, 600), (2.0, 0.3, 1.2), (0.7, 0.3)
    scores = np.concatenate(
        [rng.normal(position, 1, size) for position, size in zip(places, sizes, strict=True)]
    )
    samples = np.repeat(["signal", "low", "high"], sizes)
    weights = np.repeat([1.0, 0.7 / 400, 0.3 / 600], sizes) * np.where(
        samples == "signal", rng.uniform(0.5, 1.5, len(samples)), 1
    )
    scored = Scored(
        replicas_of((samples == "signal") * 1, weights, samples), scores, {1: 1.0}, np.array([0.9])
    )
    threshold = norm.isf(0.9, loc=2.0)
    true = sum(
        chunk * norm.sf(threshold, position)
        for chunk, position in zip(shares, places[1:], strict=True)
    )
    found = scored.of_class(0).interval(0)
    return found.low <= true <= found.high


def gain(rng: np.random.Generator) -> bool:
    """Gains that differ between the classes, and weights that are correlated with them."""
    labels = np.repeat([0, 1], 150)
    gains = rng.normal(np.array([0.05, 0.6])[labels], 0.3)
    weights = np.exp(gains)
    old = np.full((300, 2), 0.1)
    new = old * np.exp(gains)[:, None]
    names, hlf = np.full(300, "all"), np.zeros((300, 1), np.float32)
    state_before, state_after = (
        ScoredEvents(labels, probabilities, weights, hlf, names) for probabilities in (old, new)
    )
    actual = improvement(state_before, state_after)
    true = (0.05 + 0.6) / 2 + 0.3**2
    return bool(abs(actual.value - true) < actual.error)


def weighted_share(rng: np.random.Generator) -> bool:
    """Events that pass have other weights than those that fail."""
    passing = rng.random(400) < 0.3
    weights = np.where(passing, rng.exponential(3, 400), rng.uniform(0.5, 1.5, 400))
    actual = efficiency_of_sums(WeightSums.of(weights[passing]), WeightSums.of(weights[~passing]))
    return actual.low <= 0.9 / (0.9 + 0.7) <= actual.high


@pytest.mark.slow
@pytest.mark.parametrize(
    ("covers", "experiments"),
    [(area, 600), (sliced_point, 600), (gain, 1500), (weighted_share, 1500)],
)
def test_intervals_cover_what_they_promise(
    covers: Callable[[np.random.Generator], bool], experiments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "models.evaluation.bootstrap.Replicas.__init__.__kwdefaults__", {"num": 250}
    )
    monkeypatch.setattr("models.evaluation.discriminant._MOST_THRESHOLDS", 200)
    covered = np.mean([covers(RNG([5, index])) for index in range(experiments)])
    assert covered == pytest.approx(ONE_SIGMA, abs=0.03)


def test_with_weights_of_one_a_share_has_the_interval_of_a_binomial() -> None:
    """The replicas give Clopper and Pearson's interval for few events, and Jeffreys' for many."""
    for passed, total in ((0, 31), (3, 40), (60, 200)):
        position = (np.arange(total) >= passed).astype(np.int64)
        replicas = Replicas(
            np.zeros(total, int), np.full(total, "a"), np.ones(total), seed=1, num=5000
        )
        (stratum,) = replicas.strata
        found = replicas.passing(
            stratum, replicas.sums(stratum, position, 2)[:1], np.array([float(passed)])
        ).interval(0)
        few = passed < 10
        low = (
            beta.ppf(0.1587, passed + 0.5 - 0.5 * few, total - passed + 0.5 + 0.5 * few)
            if passed
            else 0.0
        )
        high = beta.ppf(0.8413, passed + 0.5 + 0.5 * few, total - passed + 0.5 - 0.5 * few)
        assert found == pytest.approx((passed / total, low, high), abs=0.005)
        assert found == pytest.approx(
            efficiency_of_sums(
                WeightSums(passed, passed), WeightSums(total - passed, total - passed)
            ),
            abs=0.005,
        )


def two_slices() -> tuple[Scored, Rates]:
    """A soft slice of 1e5 pb that hardly passes, a hard one of 1e2 pb of which half passes; files of equal size."""
    passing = np.array([False] * 99 + [True] + [True] * 50 + [False] * 50 + [True] * 100)
    samples = np.repeat(["soft", "hard", "signal"], 100)
    labels = (samples == "signal").astype(np.int64)
    scored = Scored(
        Replicas(labels, samples, np.ones(300), seed=1, num=500), passing * 1.0, {1: 1.0}, np.array([0.9])
    )  # fmt: skip
    state_before = {
        "soft": Estimate(1e5, 0.0),
        "hard": Estimate(1e2, 0.0),
        "signal": Estimate(10.0, 0.0),
    }
    return scored, Rates(state_before, {"soft": 0, "hard": 0, "signal": 1})


def test_slices_of_a_class_pass_with_their_own_efficiencies() -> None:
    scored, rates = two_slices()
    (actual,) = rates_behind(scored, rates, ["QCD", "ttbar"], seed=1)
    assert actual["rates"]["QCD"]["value"] == pytest.approx(1e5 * 0.01 + 1e2 * 0.5)
    assert actual["total_rate"]["value"] == pytest.approx(1060)
    assert actual["purity"]["value"] == pytest.approx(10 / 1060)
    # The soft slice decides: 1 event of 100.
    assert actual["rates"]["QCD"]["low"] < 400
    assert actual["rates"]["QCD"]["high"] > 2000


def test_where_nothing_passes_there_are_limits() -> None:
    labels = np.repeat([0, 1], [31, 100])
    scores = labels * 1.0
    samples = np.array(["qcd", "ttbar"])[labels]
    scored = Scored(
        Replicas(labels, samples, np.ones(131), seed=1), scores, {1: 1.0}, np.array([0.9])
    )
    rates = Rates(
        {"qcd": Estimate(1000.0, 0.0), "ttbar": Estimate(20.0, 0.0)}, {"qcd": 0, "ttbar": 1}
    )
    (actual,) = rates_behind(scored, rates, ["QCD", "ttbar"], seed=1)
    assert actual["rates"]["QCD"]["value"] == 0
    assert actual["rates"]["QCD"]["high"] == pytest.approx(
        1000 * efficiency_of_sums(WeightSums(0, 0), WeightSums(31, 31)).high, rel=0.05
    )
    assert actual["purity"]["value"] == 1
    assert actual["purity"]["low"] < 20 / (20 + 50)


def test_errors_of_the_rate_before_the_classifier_count() -> None:
    scored, rates = two_slices()
    uncertain = {
        name: rate._replace(error=0.3 * rate.value) for name, rate in rates.of_samples.items()
    }
    (actual,) = rates_behind(scored, rates._replace(of_samples=uncertain), ["QCD", "ttbar"], seed=1)
    signal = actual["rates"]["ttbar"]
    assert (signal["high"] - signal["low"]) / 2 == pytest.approx(0.3 * signal["value"], rel=0.15)


def test_a_sample_without_test_events_passes_as_its_class_does() -> None:
    scored, rates = two_slices()
    more = Rates({**rates.of_samples, "rare": Estimate(100.0, 0.0)}, {**rates.labels, "rare": 1})
    (actual,) = rates_behind(scored, more, ["QCD", "ttbar"], seed=1)
    assert actual["rates"]["ttbar"]["value"] == pytest.approx(110)


def test_the_same_seed_gives_the_same_replicas_and_another_gives_others() -> None:
    labels, scores, weights = area_with_weights_by_score(RNG(3))
    areas = [
        Scored(replicas_of(labels, weights, seed=seed), scores, {1: 1.0}, np.array([])).area(
            {0: 1.0}
        )
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(areas[0], areas[1])
    assert areas[0][0] == areas[2][0]
    assert (areas[0][1:] != areas[2][1:]).all()


@pytest.mark.slow
def test_many_events_in_groups_have_the_same_errors() -> None:
    labels, scores, weights = area_with_weights_by_score(RNG(5), size=20_000)
    replicas = Replicas(labels, np.full(len(labels), "all"), weights, seed=1)
    scored = Scored(replicas, scores, {1: 1.0}, np.array([0.9]))
    actual, point = estimate(scored.area({0: 1.0})), scored.of_class(0).interval(0)
    assert max(len(stratum.counts) for stratum in replicas.strata) <= 2000
    # 133 times the events of the small samples, whose areas spread by 0.0092.
    assert actual.error == pytest.approx(0.0092 / np.sqrt(20_000 / 150), rel=0.15)
    assert 0 < point.low < point.value < point.high
    # Thresholds of points stay exact.
    above = (scores >= scored.thresholds[scored.points[0, 0]]) & (labels == 1)
    retained = np.sort(weights[above])
    assert (
        weights[labels == 1].sum() * 0.9
        <= retained.sum()
        < weights[labels == 1].sum() * 0.9 + weights.max()
    )


def test_one_sample_without_weight_ended_the_evaluation() -> None:
    """It counts with the largest sample of its class; three that need one another to be above 0 count as one."""
    labels = np.array([0] * 50 + [0, 1])
    results = replicas_of(
        labels, np.r_[np.ones(50), -1.0, 1.0], np.array(["a"] * 50 + ["b", "c"])
    ).strata
    assert [
        (result.label, result.sample, len(result.rows), result.totals[0]) for result in results
    ] == [
        (0, "a", 51, 49.0),
        (1, "c", 1, 1.0),
    ]
    (first, _) = replicas_of(
        np.array([0, 0, 0, 1]), np.array([2.0, 1.5, -3.0, 1.0]), np.array(["a", "b", "c", "d"])
    ).strata
    assert (first.sample, first.totals[0]) == ("b", 0.5)


def test_negative_weights_leave_out_the_replicas_without_weight() -> None:
    labels = np.repeat([0, 1], [5, 50])
    weights = np.where(np.arange(55) < 2, -0.9, 1.0)
    replicas = replicas_of(labels, weights)
    assert all((stratum.totals > 0).all() for stratum in replicas.strata)
    assert 50 < len(replicas.strata[0].totals) < 251


def test_of_a_class_without_weight_only_the_sample_that_the_others_were_joined_to_was_named() -> (
    None
):
    samples = np.array(["low", "high", "other"])
    with pytest.raises(
        UndefinedMetricError, match="class 0 in sample high and low cannot be evaluated"
    ):
        Replicas(np.array([0, 0, 1]), samples, np.array([1.0, -2.0, 1.0]), seed=1, num=2)
