"""One bootstrap for all errors of an evaluation, with the same replicas for all models.

A bootstrap replica is a copy of the sample with other weights; the spread of a number over replicas
is its error. A replica gives every event a random weight of its own, exponential with mean 1
(Rubin's Bayesian bootstrap, 1981), and each sample keeps its share of its class. So errors follow
from the weights of the events, whatever these are correlated with. All models share the random
weights, so differences between models are paired.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

from hep_core.weight_sums import ROUNDING
from models.errors import UndefinedMetricError
from models.evaluation.intervals import (
    FEW,
    ONE_SIGMA,
    Efficiency,
    Floats,
    Labels,
    WeightSums,
    effective_numbers,
)
from models.evaluation.scored_events import joined_samples
from models.evaluation.strata import Stratum, draw_stratum, usable_replicas, with_fractions

NUM_REPLICAS: Final = 2000
#: Highest number of independent random weights in a replica. More events share weights in random
#: groups, which gives the same errors to 2 %, since the rows of a dataset are in random order.
_MOST_GROUPS: Final = 4000


class Estimate(NamedTuple):
    """A number with its statistical error."""

    value: float
    error: float


class ReplicatedInterval(NamedTuple):
    """Shares or rates in all replicas, for the lower and for the upper end of their intervals."""

    value: Floats
    """(num_points,) measured numbers."""
    low: Floats
    """(num_points, num_replicas) numbers whose quantile is the lower end."""
    high: Floats
    """(num_points, num_replicas) numbers whose quantile is the upper end."""

    def scaled(self, factor: float) -> ReplicatedInterval:
        """Multiply all numbers by a factor."""
        value = self.value * factor
        low = self.low * factor
        high = self.high * factor
        return ReplicatedInterval(value, low, high)

    def interval(self, point: int) -> Efficiency:
        """Return the measured value of a point, with its central one-sigma interval.

        Without replicas its ends are NaN.
        """
        low = lower_end(self.low[point])
        high = upper_end(self.high[point])
        return Efficiency(float(self.value[point]), float(low), float(high))


class Replicas:
    """Bootstrap replicas of all events of an evaluation.

    Its arguments are the class, the name of the sample and the weight of each event, (num_events,)
    each. The events are split into strata, one for each class in each sample. The same seed and
    events give the same replicas. If the weights of a stratum do not add up to more than 0, it is
    an `UndefinedMetricError`, which names the class by `classes`, if given.
    """

    def __init__(
        self,
        labels: Labels,
        samples: NDArray[np.str_],
        weights: Floats,
        *,
        seed: int,
        num: int = NUM_REPLICAS,
        classes: Sequence[str] = (),
    ) -> None:
        self._class_names = dict(enumerate(classes))
        self.weights = weights
        """(num_events,) weights of all events."""
        # A sample without positive weight joins another one of its class.
        joined = joined_samples(labels, samples, weights)
        names = set(zip(labels.tolist(), samples.tolist(), joined.tolist(), strict=True))
        self.stratum_names = {(label, sample): stratum for label, sample, stratum in names}
        """Name of the sample with which a sample of a class counts, by (label, sample)."""
        keys = sorted({(label, stratum) for label, _, stratum in names})
        # The strata share the highest number of independent random weights.
        most_groups = max(1, _MOST_GROUPS // len(keys))
        strata = []
        for index, (label, sample) in enumerate(keys):
            is_in_stratum = (labels == label) & (joined == sample)
            rows = np.flatnonzero(is_in_stratum)
            stratum_weights = weights[rows]
            if not WeightSums.of(stratum_weights).is_positive:
                raise _no_weight(self._name_class(label), samples[rows])
            # Each stratum has its own random numbers.
            rng = np.random.default_rng([seed, index])
            stratum = draw_stratum(label, sample, rows, stratum_weights, num, most_groups, rng)
            strata.append(stratum)
        self.strata = with_fractions(usable_replicas(strata))
        """Events of one class in one sample each, with their random weights."""

    def _name_class(self, label: int) -> str:
        return self._class_names.get(label, f"class {label}")

    def strata_of_class(self, label: int) -> list[Stratum]:
        """Return the strata of a class, one for each of its samples.

        A class without events has no share of anything: it is an `UndefinedMetricError`.
        """
        strata = [stratum for stratum in self.strata if stratum.label == label]
        if not strata:
            raise UndefinedMetricError(
                f"there are no test events of {self._name_class(label)}, so nothing that contains "
                "it can be measured. Add files, or leave it out of the signal."
            )
        return strata

    def sums(
        self,
        stratum: Stratum,
        bins: NDArray[np.int64],
        num_bins: int,
        factors: Floats | None = None,
    ) -> Floats:
        """Sum a stratum's weights in bins, in all replicas, (num_bins, 1 + num_replicas).

        A stratum holds the events of one class in one sample. The first column has the weights
        themselves; the others have them times the random weights of a replica.

        Args:
            stratum: The events to sum.
            bins: (num_events,) bin of each event of the evaluation.
            num_bins: Number of bins.
            factors: (num_events,) factors of the weights.
        """
        weights = self.weights[stratum.rows]
        if factors is not None:
            weights = weights * factors[stratum.rows]
        # A sparse (num_bins, num_groups) matrix sums the weights that share bin and random weight.
        cells = bins[stratum.rows], stratum.groups
        shape = num_bins, len(stratum.random_weights)
        weight_of_group = coo_array((weights, cells), shape=shape)
        # The product replaces each event weight by event weight x random weight of its group.
        return np.asarray(weight_of_group.tocsr() @ stratum.random_weights)

    def means(self, label: int, values: Floats) -> Floats:
        """Average (num_events,) values over the events of a class, (1 + num_replicas,).

        A stratum holds the events of the class in one sample. The result is the mean of the means
        of the strata, weighted by their shares in the class.
        """
        # All events are in one bin, so its sum is that of all events.
        one_bin = np.zeros(len(values), dtype=np.int64)
        mean = np.zeros(self.strata[0].totals.shape)
        for stratum in self.strata_of_class(label):
            sums = self.sums(stratum, one_bin, 1, values)[0]
            mean += stratum.fraction * sums / stratum.totals
        return mean

    def shares_passing(
        self, stratum: Stratum, passing: Floats, passing2: Floats, *, few: float = FEW
    ) -> ReplicatedInterval:
        """Compute which share of a stratum passes some cuts, with a margin for events not seen.

        A stratum holds the events of one class in one sample. Each replica adds hypothetical events
        to those that pass and to those that fail. They have the mean weight of the events on their
        side of the cut.

        - With few events on one side, the upper end has one more event that passes, and the lower
          end one more that fails. If weights are 1 that is the interval of Clopper and Pearson.
        - Else both ends have half an event more on each side, as in the interval of Jeffreys.

        Args:
            stratum: The events before the cuts.
            passing: (num_points, 1 + num_replicas) sums of weights that pass.
            passing2: (num_points,) measured sums of the squares of these weights.
            few: With effectively fewer events that pass, or that fail, one event is added; with 0
                it is always half an event.
        """
        total, typical = stratum.totals, stratum.typical
        passing = _without_rounding(passing, total)
        # Column 0 is the measurement, the others are the replicas.
        measured = passing[:, 0]
        failing = total[0] - measured
        failing2 = stratum.weight2 - passing2
        num_passing, weight_passing = _effective_events(measured, passing2, typical)
        num_failing, weight_failing = _effective_events(failing, failing2, typical)
        # The new last axis repeats each point for all replicas.
        is_few = (np.minimum(num_passing, num_failing) < few)[:, None]
        # The index `1:` skips the measurement, which needs no random weights.
        half_passing, one_passing, half_failing, one_failing = stratum.unseen[:, None, 1:]

        def share_with(unseen_passing: Floats, unseen_failing: Floats) -> Floats:
            """Compute the share in each replica, with some more events on either side."""
            more_passing = weight_passing[:, None] * unseen_passing
            more_failing = weight_failing[:, None] * unseen_failing
            all_passing = passing[:, 1:] + more_passing
            all_events = total[1:] + more_passing + more_failing
            return all_passing / all_events

        # The lower end has more events that fail, the upper end more that pass.
        low_passing = np.where(is_few, 0.0, half_passing)
        low_failing = np.where(is_few, one_failing, half_failing)
        high_passing = np.where(is_few, one_passing, half_passing)
        high_failing = np.where(is_few, 0.0, half_failing)
        low = share_with(low_passing, low_failing)
        high = share_with(high_passing, high_failing)
        return ReplicatedInterval(measured / total[0], low, high)


def _no_weight(class_name: str, samples: NDArray[np.str_]) -> UndefinedMetricError:
    """Build the error about a class, or a sample of it, whose weights add up to 0 or less."""
    names = [name for name in np.unique(samples).tolist() if name]
    in_sample = ""
    if names:
        in_sample = f" in sample {' and '.join(names)}"
    return UndefinedMetricError(
        f"the test events of {class_name}{in_sample} cannot be evaluated: their weights add up to "
        "0 or less. Add files, or check the `weight` of the samples."
    )


def _without_rounding(passing: Floats, total: Floats) -> Floats:
    """Remove rounding errors: sums of weights that are nearly 0 or the total become exactly it."""
    tolerance = ROUNDING * total
    is_nothing = np.abs(passing) <= tolerance
    passing = np.where(is_nothing, 0.0, passing)
    is_everything = np.abs(passing - total) <= tolerance
    return np.where(is_everything, total, passing)


def lower_end(replicas: Floats) -> Floats:
    """Return the lower end of the central one-sigma interval of (..., num_replicas) numbers.

    It is NaN without replicas.
    """
    return _quantile(replicas, ONE_SIGMA / 2)


def upper_end(replicas: Floats) -> Floats:
    """Return the upper end of the central one-sigma interval of (..., num_replicas) numbers.

    It is NaN without replicas.
    """
    return _quantile(replicas, 1 - ONE_SIGMA / 2)


def _quantile(replicas: Floats, level: float) -> Floats:
    """Compute the quantile over the replicas, the last axis; NaN without replicas."""
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
    """Add shares or rates of several strata, separately in each replica.

    So fluctuations that are independent partly cancel in the interval of the sum.
    """
    terms = list(terms)
    value = np.sum([term.value for term in terms], axis=0)
    low = np.sum([term.low for term in terms], axis=0)
    high = np.sum([term.high for term in terms], axis=0)
    return ReplicatedInterval(value, low, high)


def estimate(replicas: Floats) -> Estimate:
    """Return the measured number and its error, from (1 + num_replicas,) numbers.

    The first is the measured one. The error is the standard deviation of the others, the replicas;
    it is NaN with fewer than two of them.
    """
    error = math.nan
    if len(replicas) > 2:
        error = float(replicas[1:].std(ddof=1))
    return Estimate(float(replicas[0]), error)


def _effective_events(sums: Floats, squares: Floats, typical: float) -> tuple[Floats, Floats]:
    """Return effective numbers of events, and the weight of one effective event.

    A sum of weights counts as n equal events with the same sum and variance: n = sum^2 / squares,
    each of weight squares / sum. Where a sum is 0 or less, n is 0 and the weight is the typical
    one.
    """
    numbers = effective_numbers(sums, squares)
    typical_weights = np.full_like(sums, typical)
    weights = np.divide(squares, sums, out=typical_weights, where=numbers > 0)
    return numbers, weights
