"""Efficiencies of some events, and thresholds that keep a share of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from models.errors import UndefinedMetricError
from models.evaluation.intervals import Efficiency, WeightSums, share

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


def efficiency(passing: NDArray[np.bool_], weights: Floats) -> Efficiency:
    """Weighted share of events that pass, with the interval of `share`.

    Args:
        passing: (num_events,) whether each event passes.
        weights: (num_events,) event weights; with negative ones the value may lie outside 0 to 1.

    Raises:
        UndefinedMetricError: The weights do not add up to more than 0.
    """
    return share(WeightSums.of(weights[passing]), WeightSums.of(weights[~passing]))


def thresholds(scores: Floats, weights: Floats, wanted: Floats) -> Floats:
    """The highest threshold for each wanted share: at least this share of the weight has scores at or above it.

    With negative weights, several thresholds may give the same share; the highest one counts.

    Args:
        scores: (num_events,) finite scores.
        weights: (num_events,) event weights; some may be negative.
        wanted: (num_points,) wanted shares, above 0 and at most 1, in any order.

    Raises:
        UndefinedMetricError: The weights do not add up to more than 0.

    Examples:
        >>> thresholds(np.array([0.9, 0.8, 0.8, 0.1]), np.ones(4), np.array([0.5, 1.0])).tolist()
        [0.8, 0.1]
    """
    total = weights.sum()
    if not total > 0:
        raise UndefinedMetricError("there is no signal, or its weights add up to 0 or less: no threshold exists")
    values, place = np.unique(scores, return_inverse=True)
    # Events with the same score pass or fail together.
    kept = np.cumsum(np.bincount(place, weights, minlength=len(values))[::-1]) / total
    # The highest share of any threshold down to this one always rises, unlike the share itself with negative weights.
    return np.asarray(values[::-1][first_kept(np.maximum.accumulate(kept), wanted)], dtype=np.float64)


def first_kept(kept: Floats, wanted: Floats) -> NDArray[np.int64]:
    """Index of the highest threshold that keeps each wanted share.

    Args:
        kept: (num_thresholds,) highest share kept at this threshold or a higher one, from the highest threshold down.
        wanted: (num_points,) shares.
    """
    # The lowest score keeps all events, but rounding may make the sum of many weights a little less than 1.
    return np.minimum(np.searchsorted(kept, wanted - 1e-12), len(kept) - 1)
