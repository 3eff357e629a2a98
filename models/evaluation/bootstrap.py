"""One bootstrap for all errors of an evaluation: replicas of the events of each sample, the same for all models.

A replica gives every event a random weight of its own, exponential with mean 1 (Rubin's Bayesian bootstrap, 1981), and
each sample keeps its share of its class. So errors follow from the events' weights, whatever these are correlated
with, and differences between models on the same events are paired.
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
from models.evaluation.scored_events import joined

NUM_REPLICAS: Final = 2000
#: Highest number of independent random weights in a replica. More events share weights in random groups, which gives
#: the same errors to 2 %, since the rows of a dataset are mixed.
_MOST_GROUPS: Final = 4000


class Estimate(NamedTuple):
    """A number with its statistical error."""

    value: float
    error: float


class Ends(NamedTuple):
    """A share in all replicas, twice: for the lower and for the upper end of its interval."""

    value: Floats
    """(num_points,) measured."""
    low: Floats
    """(num_points, num_replicas)"""
    high: Floats
    """(num_points, num_replicas)"""

    def times(self, factor: float | Floats) -> Ends:
        """Multiplied by a number, or by a number for each replica whose first is the measured one."""
        first, others = (
            (factor, factor)
            if np.ndim(factor) == 0
            else (np.asarray(factor)[0], np.asarray(factor)[1:])
        )
        return Ends(self.value * first, self.low * others, self.high * others)

    def interval(self, point: int) -> Efficiency:
        """The measured value of a point, with its central interval; without replicas its ends are not numbers."""
        low = lower_end(self.low[point])
        high = upper_end(self.high[point])
        return Efficiency(float(self.value[point]), float(low), float(high))


class Stratum(NamedTuple):
    """The events of a class in a sample, and their replicas; the first replica is what was measured."""

    label: int
    sample: str
    fraction: float
    """Of its class."""
    rows: NDArray[np.int64]
    """(num_events,) places of its events."""
    groups: NDArray[np.int64]
    """(num_events,) group of each event."""
    counts: Floats
    """(num_groups, 1 + num_replicas) random weights."""
    totals: Floats
    """(1 + num_replicas,) sums of weights."""
    weight2: float
    """Sum of the squares of the weights."""
    typical: float
    """Weight of an event that was not seen."""
    pseudo: Floats
    """(4, 1 + num_replicas): weight of half an event and of one event that pass, and of such that fail."""


class Replicas:
    """Replicas of events, of which (num_events,) labels, names of samples and weights are given.

    The same seed and events give the same replicas. If the weights of a class do not add up to more than 0, it is an
    `UndefinedMetricError`.
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
        together = joined(labels, samples, weights)
        keys = sorted(set(zip(labels.tolist(), together.tolist(), strict=True)))
        made = []
        for place, (label, sample) in enumerate(keys):
            rows = np.flatnonzero((labels == label) & (together == sample))
            if not WeightSums.of(weights[rows]).is_positive:
                names = " and ".join(filter(None, np.unique(samples[rows]).tolist()))
                raise UndefinedMetricError(
                    f"the test events of class {label}{f' in sample {names}' if names else ''} cannot be evaluated: "
                    f"their weights add up to 0 or less. Add files, or check the `weight` of the samples."
                )
            rng = np.random.default_rng([seed, place])
            made.append(
                _stratum(
                    label, sample, rows, weights[rows], num, max(1, _MOST_GROUPS // len(keys)), rng
                )
            )
        # Negative weights may leave a sample without weight in a replica.
        usable = np.all([each.totals > 1e-9 * each.totals[0] for each in made], axis=0)
        sizes = [float(each.totals[0]) for each in made]
        of_class = np.bincount([each.label for each in made], sizes)
        self.strata = [
            each._replace(
                fraction=size / of_class[each.label],
                counts=each.counts[:, usable],
                totals=each.totals[usable],
                pseudo=each.pseudo[:, usable],
            )
            for each, size in zip(made, sizes, strict=True)
        ]

    def of_class(self, label: int) -> list[Stratum]:
        """The samples of a class."""
        return [each for each in self.strata if each.label == label]

    def sums(
        self,
        stratum: Stratum,
        place: NDArray[np.int64],
        num_bins: int,
        values: Floats | None = None,
    ) -> Floats:
        """Sums of weights in bins, (num_bins, 1 + num_replicas).

        `place` is the bin of each event of the evaluation, `values` a factor of its weight.
        """
        factors = self.weights if values is None else self.weights * values
        table = coo_array(
            (factors[stratum.rows], (place[stratum.rows], stratum.groups)),
            shape=(num_bins, len(stratum.counts)),
        )
        return np.asarray(table.tocsr() @ stratum.counts)

    def means(self, label: int, values: Floats) -> Floats:
        """Mean of the (num_events,) values over the events of a class, (1 + num_replicas,)."""
        nowhere = np.zeros(len(values), dtype=np.int64)
        found = (
            each.fraction * self.sums(each, nowhere, 1, values)[0] / each.totals
            for each in self.of_class(label)
        )
        return np.asarray(sum(found))

    def passing(self, stratum: Stratum, kept: Floats, kept2: Floats, *, few: float = FEW) -> Ends:
        """Share that passes some cuts, with room for events that were not seen.

        In each replica some events of the observed weight pass or fail beside the observed ones. Where few pass or
        fail, the interval's upper end has one more event that passes, its lower end one more that fails, which is
        Clopper and Pearson's interval if weights are 1. Else both have half an event more of each, as in Jeffreys'.

        `kept` are the sums of weights that pass, (num_points, 1 + num_replicas), `kept2` the measured sums of their
        squares, (num_points,). `few` is an effective number that pass or fail; with 0 it is always half an event.
        """
        total, typical = stratum.totals, stratum.typical
        kept = _without_rounding(kept, total)
        num_passing, of_passing = _counted(kept[:, 0], kept2, typical)
        num_failing, of_failing = _counted(total[0] - kept[:, 0], stratum.weight2 - kept2, typical)
        is_few = (np.minimum(num_passing, num_failing) < few)[:, None]
        half_passing, one_passing, half_failing, one_failing = stratum.pseudo[:, None, 1:]

        def with_more(passing: Floats, failing: Floats) -> Floats:
            more = of_passing[:, None] * passing
            return (kept[:, 1:] + more) / (total[1:] + more + of_failing[:, None] * failing)

        return Ends(
            kept[:, 0] / total[0],
            with_more(
                np.where(is_few, 0.0, half_passing), np.where(is_few, one_failing, half_failing)
            ),
            with_more(
                np.where(is_few, one_passing, half_passing), np.where(is_few, 0.0, half_failing)
            ),
        )


def _without_rounding(kept: Floats, total: Floats) -> Floats:
    """Sums of weights, of which those that are nothing, or all, but for rounding are exactly that."""
    from_nothing = np.where(np.abs(kept) <= ROUNDING * total, 0.0, kept)
    return np.where(np.abs(kept - total) <= ROUNDING * total, total, from_nothing)


def lower_end(replicas: Floats) -> Floats:
    """Lower end of the central interval of (..., num_replicas) numbers; not a number without replicas."""
    return _quantile(replicas, ONE_SIGMA / 2)


def upper_end(replicas: Floats) -> Floats:
    """Upper end of the central interval; as `lower_end`."""
    return _quantile(replicas, 1 - ONE_SIGMA / 2)


def _quantile(replicas: Floats, level: float) -> Floats:
    if replicas.shape[-1] == 0:
        return np.full(replicas.shape[:-1], np.nan)
    with np.errstate(invalid="ignore"):
        between = np.quantile(replicas, level, axis=-1)
    is_between = np.isnan(between)
    if is_between.any():
        # Between a number and an infinite one there is none.
        between = np.where(
            is_between, np.quantile(replicas, level, axis=-1, method="higher"), between
        )
    return np.asarray(between)


def added(parts: Iterable[Ends]) -> Ends:
    """The sum of some shares or rates in each replica."""
    value, low, high = (np.sum(each, axis=0) for each in zip(*parts, strict=True))
    return Ends(value, low, high)


def estimate(replicas: Floats) -> Estimate:
    """The measured number, the first one, with the standard deviation of the others; not a number without others."""
    error = float(replicas[1:].std(ddof=1)) if len(replicas) > 2 else math.nan
    return Estimate(float(replicas[0]), error)


def _stratum(
    label: int,
    sample: str,
    rows: NDArray[np.int64],
    weights: Floats,
    num: int,
    most: int,
    rng: np.random.Generator,
) -> Stratum:
    num_groups = min(len(rows), most)
    groups = np.arange(len(rows)) % num_groups
    counts = np.ones((num_groups, 1 + num))
    counts[:, 1:] = rng.standard_exponential((num_groups, num))
    of_group = np.bincount(groups, weights, minlength=num_groups)
    totals = of_group @ counts
    pseudo = rng.standard_gamma(np.array([[0.5], [1.0]] * 2), (4, 1 + num))
    weight2 = float(np.square(weights).sum())
    return Stratum(
        label, sample, 0.0, rows, groups, counts, totals, weight2, typical_weight(weights), pseudo
    )


def _counted(sums: Floats, squares: Floats, typical: float) -> tuple[Floats, Floats]:
    """Effective numbers of events, and their weights; 0 and the typical weight where a sum is 0 or less."""
    numbers = effective_numbers(sums, squares)
    weights = np.divide(squares, sums, out=np.full_like(sums, typical), where=numbers > 0)
    return numbers, weights
