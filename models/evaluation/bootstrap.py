"""One bootstrap for all errors of an evaluation, with the same replicas for all models.

A replica gives every event a random weight of its own, exponential with mean 1 (Rubin's Bayesian
bootstrap, 1981), and each sample keeps its share of its class. So errors follow from the weights of
the events, whatever these are correlated with, and differences between models are paired.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

from models.errors import UndefinedMetricError
from models.evaluation.intervals import (
    FEW,
    ONE_SIGMA,
    ROUNDING,
    Efficiency,
    Floats,
    Labels,
    WeightSums,
    effective_numbers,
    typical_weight,
)
from models.evaluation.scored_events import joined_samples

NUM_REPLICAS: Final = 2000
#: Highest number of independent random weights in a replica. More events share weights in random
#: groups, which gives the same errors to 2 %, since the rows of a dataset are mixed.
_MOST_GROUPS: Final = 4000
#: Shapes of the gamma distribution for half an event and for one event.
_HALF_AND_ONE: Final = (0.5, 1.0)


class Estimate(NamedTuple):
    """A number with its statistical error."""

    value: float
    error: float


class ReplicatedInterval(NamedTuple):
    """Shares or rates in all replicas, for the lower and for the upper end of their intervals."""

    value: Floats
    """(num_points,) measured."""
    low: Floats
    """(num_points, num_replicas)"""
    high: Floats
    """(num_points, num_replicas)"""

    def scaled(self, factor: float) -> ReplicatedInterval:
        """Multiply all numbers by a factor."""
        return ReplicatedInterval(self.value * factor, self.low * factor, self.high * factor)

    def interval(self, point: int) -> Efficiency:
        """The measured value of a point, with its central interval.

        Without replicas its ends are NaN.
        """
        low = lower_end(self.low[point])
        high = upper_end(self.high[point])
        return Efficiency(float(self.value[point]), float(low), float(high))


class Stratum(NamedTuple):
    """The events of a class in a sample, and their replicas.

    The first replica is the measurement.
    """

    label: int
    sample: str
    fraction: float
    """Share of this sample in the weight of its class."""
    rows: NDArray[np.int64]
    """(num_events,) rows of its events."""
    groups: NDArray[np.int64]
    """(num_events,) group of each event."""
    random_weights: Floats
    """(num_groups, 1 + num_replicas)"""
    totals: Floats
    """(1 + num_replicas,) sums of weights."""
    weight2: float
    """Sum of the squares of the weights."""
    typical: float
    """Weight of an event that was not seen."""
    unseen: Floats
    """(4, 1 + num_replicas) random weight of half an event and of one event that pass, and of such
    that fail."""


class Replicas:
    """Replicas of events with (num_events,) labels, names of samples and weights.

    The same seed and events give the same replicas. If the weights of a class do not add up to more
    than 0, it is an `UndefinedMetricError`.
    """

    def __init__(
        self,
        labels: Labels,
        samples: NDArray[np.str_],
        weights: Floats,
        *,
        seed: int,
        num: int = NUM_REPLICAS,
    ) -> None:
        self.weights = weights
        joined = joined_samples(labels, samples, weights)
        keys = sorted(set(zip(labels.tolist(), joined.tolist(), strict=True)))
        most_groups = max(1, _MOST_GROUPS // len(keys))
        strata = []
        for index, (label, sample) in enumerate(keys):
            rows = np.flatnonzero((labels == label) & (joined == sample))
            if not WeightSums.of(weights[rows]).is_positive:
                raise _no_weight(label, samples[rows])
            rng = np.random.default_rng([seed, index])
            strata.append(_stratum(label, sample, rows, weights[rows], num, most_groups, rng))
        self.strata = _with_fractions(_usable_replicas(strata))

    def strata_of_class(self, label: int) -> list[Stratum]:
        """The samples of a class."""
        return [stratum for stratum in self.strata if stratum.label == label]

    def sums(
        self,
        stratum: Stratum,
        bins: NDArray[np.int64],
        num_bins: int,
        factors: Floats | None = None,
    ) -> Floats:
        """Sums of weights in bins, (num_bins, 1 + num_replicas).

        Args:
            stratum: The events to sum.
            bins: (num_events,) bin of each event of the evaluation.
            num_bins: Number of bins.
            factors: (num_events,) factors of the weights.
        """
        weights = self.weights[stratum.rows]
        if factors is not None:
            weights = weights * factors[stratum.rows]
        weight_of_group = coo_array(
            (weights, (bins[stratum.rows], stratum.groups)),
            shape=(num_bins, len(stratum.random_weights)),
        )
        return np.asarray(weight_of_group.tocsr() @ stratum.random_weights)

    def means(self, label: int, values: Floats) -> Floats:
        """Mean of the (num_events,) values over the events of a class, (1 + num_replicas,)."""
        one_bin = np.zeros(len(values), dtype=np.int64)
        mean = np.zeros(self.strata[0].totals.shape)
        for stratum in self.strata_of_class(label):
            sums = self.sums(stratum, one_bin, 1, values)[0]
            mean += stratum.fraction * sums / stratum.totals
        return mean

    def shares_passing(
        self, stratum: Stratum, passing: Floats, passing2: Floats, *, few: float = FEW
    ) -> ReplicatedInterval:
        """Share of a stratum that passes some cuts, with a margin for events that were not seen.

        In each replica some events of the observed weight pass or fail beside the observed ones.
        Where few pass or fail, the upper end of the interval has one more event that passes, its
        lower end one more that fails. If weights are 1 that is the interval of Clopper and Pearson.
        Else both ends have half an event more of each, as in the interval of Jeffreys.

        Args:
            stratum: The events before the cuts.
            passing: (num_points, 1 + num_replicas) sums of weights that pass.
            passing2: (num_points,) measured sums of the squares of these weights.
            few: An effective number that pass or fail; with 0 it is always half an event.
        """
        total, typical = stratum.totals, stratum.typical
        passing = _without_rounding(passing, total)
        measured = passing[:, 0]
        num_passing, weight_passing = _effective_events(measured, passing2, typical)
        num_failing, weight_failing = _effective_events(
            total[0] - measured, stratum.weight2 - passing2, typical
        )
        is_few = (np.minimum(num_passing, num_failing) < few)[:, None]
        half_passing, one_passing, half_failing, one_failing = stratum.unseen[:, None, 1:]

        def share_with(unseen_passing: Floats, unseen_failing: Floats) -> Floats:
            more_passing = weight_passing[:, None] * unseen_passing
            more_failing = weight_failing[:, None] * unseen_failing
            return (passing[:, 1:] + more_passing) / (total[1:] + more_passing + more_failing)

        low = share_with(
            np.where(is_few, 0.0, half_passing), np.where(is_few, one_failing, half_failing)
        )
        high = share_with(
            np.where(is_few, one_passing, half_passing), np.where(is_few, 0.0, half_failing)
        )
        return ReplicatedInterval(measured / total[0], low, high)


def _no_weight(label: int, samples: NDArray[np.str_]) -> UndefinedMetricError:
    names = " and ".join(filter(None, np.unique(samples).tolist()))
    in_sample = f" in sample {names}" if names else ""
    return UndefinedMetricError(
        f"the test events of class {label}{in_sample} cannot be evaluated: their weights add up to "
        "0 or less. Add files, or check the `weight` of the samples."
    )


def _usable_replicas(strata: list[Stratum]) -> list[Stratum]:
    """Drop the replicas that leave a sample without weight, as negative weights may."""
    is_usable = np.all([stratum.totals > 1e-9 * stratum.totals[0] for stratum in strata], axis=0)
    return [
        stratum._replace(
            random_weights=stratum.random_weights[:, is_usable],
            totals=stratum.totals[is_usable],
            unseen=stratum.unseen[:, is_usable],
        )
        for stratum in strata
    ]


def _with_fractions(strata: list[Stratum]) -> list[Stratum]:
    """Set the share of each sample in the weight of its class."""
    sizes = [float(stratum.totals[0]) for stratum in strata]
    size_of_class = np.bincount([stratum.label for stratum in strata], sizes)
    return [
        stratum._replace(fraction=size / size_of_class[stratum.label])
        for stratum, size in zip(strata, sizes, strict=True)
    ]


def _without_rounding(passing: Floats, total: Floats) -> Floats:
    """Set sums of weights that are nothing, or all, but for rounding to exactly that."""
    passing = np.where(np.abs(passing) <= ROUNDING * total, 0.0, passing)
    return np.where(np.abs(passing - total) <= ROUNDING * total, total, passing)


def lower_end(replicas: Floats) -> Floats:
    """Lower end of the central interval of (..., num_replicas) numbers; NaN without replicas."""
    return _quantile(replicas, ONE_SIGMA / 2)


def upper_end(replicas: Floats) -> Floats:
    """Upper end of the central interval; as `lower_end`."""
    return _quantile(replicas, 1 - ONE_SIGMA / 2)


def _quantile(replicas: Floats, level: float) -> Floats:
    if replicas.shape[-1] == 0:
        return np.full(replicas.shape[:-1], np.nan)
    with np.errstate(invalid="ignore"):
        quantile = np.quantile(replicas, level, axis=-1)
    is_undefined = np.isnan(quantile)
    if is_undefined.any():
        # Numpy cannot interpolate between a number and an infinite one.
        higher = np.quantile(replicas, level, axis=-1, method="higher")
        quantile = np.where(is_undefined, higher, quantile)
    return np.asarray(quantile)


def sum_intervals(terms: Iterable[ReplicatedInterval]) -> ReplicatedInterval:
    """Add shares or rates in each replica."""
    terms = list(terms)
    return ReplicatedInterval(
        np.sum([term.value for term in terms], axis=0),
        np.sum([term.low for term in terms], axis=0),
        np.sum([term.high for term in terms], axis=0),
    )


def estimate(replicas: Floats) -> Estimate:
    """The measured number, which is the first, and the standard deviation of the others.

    The error is NaN with fewer than two others.
    """
    error = float(replicas[1:].std(ddof=1)) if len(replicas) > 2 else math.nan
    return Estimate(float(replicas[0]), error)


def _stratum(
    label: int,
    sample: str,
    rows: NDArray[np.int64],
    weights: Floats,
    num_replicas: int,
    most_groups: int,
    rng: np.random.Generator,
) -> Stratum:
    num_groups = min(len(rows), most_groups)
    groups = np.arange(len(rows)) % num_groups
    random_weights = np.ones((num_groups, 1 + num_replicas))
    random_weights[:, 1:] = rng.standard_exponential((num_groups, num_replicas))
    weight_of_group = np.bincount(groups, weights, minlength=num_groups)
    shapes = np.array([_HALF_AND_ONE * 2]).T
    return Stratum(
        label=label,
        sample=sample,
        fraction=0.0,
        rows=rows,
        groups=groups,
        random_weights=random_weights,
        totals=weight_of_group @ random_weights,
        weight2=float(np.square(weights).sum()),
        typical=typical_weight(weights),
        unseen=rng.standard_gamma(shapes, (4, 1 + num_replicas)),
    )


def _effective_events(sums: Floats, squares: Floats, typical: float) -> tuple[Floats, Floats]:
    """Effective numbers of events, and their weights.

    They are 0 and the typical weight where a sum is 0 or less.
    """
    numbers = effective_numbers(sums, squares)
    weights = np.divide(squares, sums, out=np.full_like(sums, typical), where=numbers > 0)
    return numbers, weights
