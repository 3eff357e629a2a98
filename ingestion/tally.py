"""Numbers of events and sums of their weights by step of the cutflow; those of all parts of a sample add up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

#: Counter of the events of which ingest wraps an azimuth to [-pi, pi].
WRAPPED_AZIMUTHS: Final = "events_with_wrapped_azimuths"
#: Counter of the events that a condition of `label_by` leaves out.
NO_CLASS: Final = "rejected_no_class"
#: Counters of kept events: with a jet that has a b-tag, with one that has none, and with a charge of a lepton or
#: track other than -1 and 1.
TAGGED_JETS: Final = "events_with_tagged_jets"
UNTAGGED_JETS: Final = "events_with_untagged_jets"
OTHER_CHARGES: Final = "events_with_other_charges"
#: Begin of the counters of kept events with momenta as large as if they were in MeV, before the collection, and of
#: those with any of it, in parts that have such momenta.
LARGE_MOMENTA: Final = "events_of_large_momenta "
ANY_MOMENTA: Final = "events_of_any_momenta "
#: Begin of the counters of kept events with an eta just below pi, before the collection, where none is above pi.
LIKE_AZIMUTHS: Final = "eta_like_azimuth "
#: Begin of the counters of kept events without one of `ingest.weights`, before its name.
WITHOUT_WEIGHT: Final = "without_weight "
#: Begin of the counters of events with a number that is not finite, before the branch.
NOT_FINITE: Final = "not_finite "


class StepCounts(NamedTuple):
    """Numbers and weights of events by step."""

    counts: dict[str, int]
    weights: dict[str, list[float]]
    """[sum of weights, sum of squared weights]."""

    @classmethod
    def from_steps(cls, steps: Mapping[str, Any], weights: NDArray[np.float64]) -> Self:
        """The tally of some events; each step is the mask or slice of those that count in it."""
        chosen = {step: weights[rows] for step, rows in steps.items()}
        return cls(
            {step: len(each) for step, each in chosen.items()},
            {
                step: [float(each.sum()), float(np.square(each).sum())]
                for step, each in chosen.items()
            },
        )


def sum_counts(parts: Iterable[Any]) -> StepCounts:
    """The sum of some tallies, or of what has `counts` and `weights` like one.

    Examples:
        >>> two = StepCounts({"events": 2}, {"events": [3.0, 5.0]})
        >>> sum_counts([StepCounts({"events": 1}, {"events": [2.0, 4.0]}), two])
        StepCounts(counts={'events': 3}, weights={'events': [5.0, 9.0]})
    """
    found = StepCounts({}, {})
    for each in parts:
        for step, (weight, weight2) in each.weights.items():
            before, before2 = found.weights.get(step, (0.0, 0.0))
            found.counts[step] = found.counts.get(step, 0) + each.counts[step]
            found.weights[step] = [before + weight, before2 + weight2]
    return found


def sums_by_sample(parts: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """The sums over the parts of each `sample`, by its name: `samples` are the counts, `weights` the weights."""
    totals = {
        name: sum_counts(part for part in parts if part.sample == name)
        for name in dict.fromkeys(each.sample for each in parts)
    }
    return {
        "samples": {name: each.counts for name, each in totals.items()},
        "weights": {name: each.weights for name, each in totals.items()},
    }
