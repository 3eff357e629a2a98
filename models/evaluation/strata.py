"""Strata of the bootstrap: the events of one class in one sample, with their random weights."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.evaluation.intervals import Floats, typical_weight

#: Shapes of the gamma distribution for half an event and for one event: the random weight of n
#: events is the sum of n exponential numbers, which is gamma distributed with shape n.
_HALF_AND_ONE: Final = (0.5, 1.0)


class Stratum(NamedTuple):
    """The events of one class in one sample, and their replicas.

    Arrays of 1 + num_replicas entries have the measurement first, in which all random weights are
    1.
    """

    label: int
    sample: str
    fraction: float
    """Share of this sample in the weight of its class."""
    rows: NDArray[np.int64]
    """(num_events,) rows of its events among those of the evaluation."""
    groups: NDArray[np.int64]
    """(num_events,) index of the group of each event; events of a group share their random
    weight."""
    random_weights: Floats
    """(num_groups, 1 + num_replicas) factor of the weights of the events of each group."""
    totals: Floats
    """(1 + num_replicas,) sums of the weights of all its events."""
    weight2: float
    """Sum of the squares of the weights."""
    typical: float
    """Weight that an event of this kind would have where none was seen."""
    unseen: Floats
    """(4, 1 + num_replicas) random weights of hypothetical events: half an event and one event that
    pass, half an event and one event that fail."""


def draw_stratum(
    label: int,
    sample: str,
    rows: NDArray[np.int64],
    weights: Floats,
    num_replicas: int,
    most_groups: int,
    rng: np.random.Generator,
) -> Stratum:
    """Draw the random weights of the replicas of a stratum, the events of a class in a sample.

    The events are assigned in turn to at most `most_groups` groups. In each replica a group gets
    one exponential random weight, which all its events share. The `fraction` is set later, by
    `with_fractions`.
    """
    num_groups = min(len(rows), most_groups)
    groups = np.arange(len(rows)) % num_groups
    # Column 0 keeps the factor 1: it is the measurement.
    random_weights = np.ones((num_groups, 1 + num_replicas))
    random_weights[:, 1:] = rng.standard_exponential((num_groups, num_replicas))
    weight_of_group = np.bincount(groups, weights, minlength=num_groups)
    weight2 = np.square(weights).sum()
    # The column of four shapes is for half an event and one event that pass, then that fail.
    shapes = np.array([_HALF_AND_ONE * 2]).T
    unseen = rng.standard_gamma(shapes, (4, 1 + num_replicas))
    return Stratum(
        label=label,
        sample=sample,
        fraction=0.0,
        rows=rows,
        groups=groups,
        random_weights=random_weights,
        totals=weight_of_group @ random_weights,
        weight2=float(weight2),
        typical=typical_weight(weights),
        unseen=unseen,
    )


def usable_replicas(strata: list[Stratum]) -> list[Stratum]:
    """Drop the replicas in which a stratum has no weight, as happens with negative weights.

    A stratum holds the events of one class in one sample; a column of its arrays is a replica. All
    strata drop the same replicas, so that they stay paired.
    """
    # A replica is usable if every stratum keeps more than a billionth of its measured weight.
    is_usable = np.ones(strata[0].totals.shape, dtype=np.bool_)
    for stratum in strata:
        least_weight = 1e-9 * stratum.totals[0]
        is_usable &= stratum.totals > least_weight
    usable_strata = []
    for stratum in strata:
        usable_stratum = stratum._replace(
            random_weights=stratum.random_weights[:, is_usable],
            totals=stratum.totals[is_usable],
            unseen=stratum.unseen[:, is_usable],
        )
        usable_strata.append(usable_stratum)
    return usable_strata


def with_fractions(strata: list[Stratum]) -> list[Stratum]:
    """Set the `fraction` of each stratum, the events of one class in one sample.

    It is the stratum's share of the measured weight of its class, the first entry of `totals`.
    """
    labels = [stratum.label for stratum in strata]
    weights = [float(stratum.totals[0]) for stratum in strata]
    weight_of_class = np.bincount(labels, weights)
    strata_with_fractions = []
    for stratum, weight in zip(strata, weights, strict=True):
        fraction = weight / weight_of_class[stratum.label]
        strata_with_fractions.append(stratum._replace(fraction=fraction))
    return strata_with_fractions
