"""Rates or expected events, and purity, behind a working point, from each sample's efficiency."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from models.evaluation.bootstrap import Estimate, ReplicatedInterval, sum_intervals
from models.evaluation.discriminant import ReplicatedScore
from models.evaluation.intervals import ONE_SIGMA, Floats

#: Mean number of unseen events over its upper limit: the quantile of an exponential distribution.
_MEAN_OF_LIMIT: Final = -1 / math.log(ONE_SIGMA / 2)


class CrossSection(NamedTuple):
    """A cross-section, which all classes of one sample of the config share."""

    name: str
    """Name of that sample."""
    relative_error: float


_EXACT: Final[Mapping[str, CrossSection]] = {}


class Rates(NamedTuple):
    """Rates before the classifier [1/s], or events of an integrated luminosity.

    A sample of the config whose events have several classes is a sample for each class here.
    """

    of_samples: Mapping[str, Estimate]
    """Rate of each sample by its name, with the error of the selection. That of a rate of 0 is its
    upper limit."""
    labels: Mapping[str, int]
    """Class of each sample."""
    are_events: bool = False
    """Whether they are numbers of events, as an offline analysis counts them."""
    cross_sections: Mapping[str, CrossSection] = _EXACT
    """Cross-section of each sample; one that is missing here has no error."""

    @property
    def values(self) -> dict[str, float]:
        """Rates by sample, without their errors."""
        return {name: rate.value for name, rate in self.of_samples.items()}

    def of_class(self, label: int) -> float:
        """Return the rate of a class: the sum over its samples."""
        sample_rates = [
            rate.value for name, rate in self.of_samples.items() if self.labels[name] == label
        ]
        return sum(sample_rates)

    def of_classes(self, classes: Sequence[str]) -> dict[str, float]:
        """Return the rates of the classes that have samples, by name of the class."""
        labels_with_samples = {self.labels[name] for name in self.of_samples}
        rates = {}
        for label, name in enumerate(classes):
            if label in labels_with_samples:
                rates[name] = self.of_class(label)
        return rates


def unmeasured_rates(rates: Rates | None) -> list[str]:
    """Return a sentence about each sample whose rate before the classifier is not measured.

    Such a rate is 0 with an upper limit.
    """
    if rates is None:
        return []
    quantity, unit = ("number of events", "") if rates.are_events else ("rate", "/s")
    return [
        f"the {quantity} of sample {name} before the classifier is not measured: the weights of "
        f"its selected events add up to 0 or less. It counts as 0, and is below {rate.error:.3g}"
        f"{unit}. Add files of this sample."
        for name, rate in rates.of_samples.items()
        if rate.value <= 0
    ]


def rates_behind(
    score: ReplicatedScore, rates: Rates, classes: Sequence[str], *, seed: int
) -> list[dict[str, Any]]:
    """Compute rates or events of each class and in total, and the purity, behind each cut.

    The rate of a class is the sum over its samples of rate before the classifier x efficiency of
    the sample. The purity is the share of the signal in the total; it is None if the total is 0 or
    less.

    Args:
        score: The score and its cuts.
        rates: Rates or numbers of events of the samples before the classifier.
        classes: Names of the classes, by label.
        seed: Seed of the random rates in the replicas.

    Returns:
        For each cut a dictionary, ready for JSON.
    """
    rate_of_class = _rates_of_classes(score, rates, seed=seed)
    signal_rates = [rate_of_class[label] for label in score.signal]
    background_rates = [rate for label, rate in rate_of_class.items() if label not in score.signal]
    total = sum_intervals(rate_of_class.values())
    signal = sum_intervals(signal_rates)
    background = sum_intervals(background_rates)
    # The purity is lowest with little signal and much background, so the ends are crossed.
    purity = ReplicatedInterval(
        _purity(signal.value, background.value),
        _purity(signal.low, background.high),
        _purity(signal.high, background.low),
    )
    points = []
    for point in range(len(score.shares)):
        # A class that cannot be measured has no rate.
        by_class: dict[str, Any] = dict.fromkeys(classes)
        for label, rate in rate_of_class.items():
            by_class[classes[label]] = _rate_json(rate, point)
        if rates.are_events:
            numbers: dict[str, Any] = {
                "events": by_class,
                "signal_events": _rate_json(signal, point),
                "background_events": _rate_json(background, point),
            }
        else:
            numbers = {"rates": by_class, "total_rate": _rate_json(total, point)}
        # Negative weights may make the total 0 or less.
        numbers["purity"] = None
        if total.value[point] > 0:
            numbers["purity"] = purity.interval(point).as_json()
        points.append(numbers)
    return points


def _rates_of_classes(
    score: ReplicatedScore, rates: Rates, *, seed: int
) -> dict[int, ReplicatedInterval]:
    """Compute the rate of each class behind the cuts, by label.

    It is summed over the samples of the class: rate before the cuts x share that passes. In the
    replicas, copies of the events with random weights, both vary: the share by these weights, and
    the rate within its errors. The classes of one cross-section vary with it together.
    """
    # The number 1 separates these random numbers from others of the same seed.
    rng = np.random.default_rng([seed, 1])
    # The first column of all replicas is the measurement.
    num_replicas = len(score.replicas.strata[0].totals) - 1
    factors = _random_cross_sections(rates, num_replicas, rng)
    rates_by_class: dict[int, list[ReplicatedInterval]] = {}
    for sample, rate in rates.of_samples.items():
        label = rates.labels[sample]
        share = score.sample_share(label, sample)
        if share is None:
            # A sample without test events passes with the efficiency of its class.
            share = score.class_share(label)
        # `share.low` is (num_points, num_replicas): there is one random rate for each replica.
        lowest, highest = _random_rates(rate, num_replicas, rng)
        factor = factors.get(sample, 1.0)
        rate_behind = ReplicatedInterval(
            value=share.value * rate.value,
            low=share.low * lowest * factor,
            high=share.high * highest * factor,
        )
        rates_of_class = rates_by_class.setdefault(label, [])
        rates_of_class.append(rate_behind)
    return {label: sum_intervals(rates_by_class[label]) for label in sorted(rates_by_class)}


def _rate_json(rate: ReplicatedInterval, point: int) -> dict[str, Any]:
    """Return the rate at one cut with its interval, for JSON; a rate has no highest value."""
    return rate.interval(point).as_json(most=math.inf)


def _purity(signal: Floats, background: Floats) -> Floats:
    """Compute the share of the signal; 0 where the total is 0 or less."""
    total = signal + background
    no_purity = np.zeros_like(total)
    return np.divide(signal, total, out=no_purity, where=total > 0)


def _random_cross_sections(
    rates: Rates, num: int, rng: np.random.Generator
) -> dict[str, Floats | float]:
    """Draw `num` random factors for each cross-section, and return them by sample.

    Samples that share a cross-section have the same factors.
    """
    # Each cross-section once, in the order of the samples.
    cross_sections = dict.fromkeys(rates.cross_sections.values())
    factors: dict[str, Floats] = {}
    for name, relative_error in cross_sections:
        factors[name] = _random_factors(relative_error, num, rng)
    return {
        sample: factors[cross_section.name]
        for sample, cross_section in rates.cross_sections.items()
    }


def _random_rates(rate: Estimate, num: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Draw `num` random rates for the lower end of an interval, and for the upper end.

    They vary by the error of the selection. The two are the same, but for a rate of 0: then the
    lower ones are 0, and the upper ones have its limit.
    """
    if rate.value <= 0:
        upper_rates = rate.error * _MEAN_OF_LIMIT * rng.standard_exponential(num)
        return np.zeros(num), upper_rates
    random_rates = rate.value * _random_factors(rate.error / rate.value, num, rng)
    return random_rates, random_rates


def _random_factors(relative_error: float, num: int, rng: np.random.Generator) -> Floats:
    """Draw `num` positive random factors with mean 1 and this error; without one, all are 1.

    They are gamma distributed.
    """
    if relative_error <= 0:
        return np.ones(num)
    # A gamma distribution of shape k has the relative error 1 / sqrt(k).
    shape = relative_error**-2
    return np.asarray(rng.standard_gamma(shape, num) / shape)
