"""Numbers of events and sums of their weights by step of the cutflow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol, Self, TypedDict

import numpy as np
from numpy.typing import NDArray

#: Counter of the events of which ingest wraps an azimuth to [-pi, pi].
WRAPPED_AZIMUTHS: Final = "events_with_wrapped_azimuths"
#: Counter of the events that a condition of `label_by` leaves out.
NO_CLASS: Final = "rejected_no_class"
#: Counters of kept events: with a tagged jet, with an untagged jet, and with a charge of a lepton
#: or track other than -1 and 1.
TAGGED_JETS: Final = "events_with_tagged_jets"
UNTAGGED_JETS: Final = "events_with_untagged_jets"
OTHER_CHARGES: Final = "events_with_other_charges"
#: Prefixes of the counters of kept events with momenta as large as if they were in MeV, and with
#: any momenta, before the name of the collection. Only parts with large momenta have them.
LARGE_MOMENTA: Final = "events_of_large_momenta "
ANY_MOMENTA: Final = "events_of_any_momenta "
#: Prefix of the counters of kept events with an eta just below pi, before the name of the
#: collection, where no eta is above pi.
LIKE_AZIMUTHS: Final = "eta_like_azimuth "
#: Prefix of the counters of kept events without one of `ingest.weights`, before its name.
WITHOUT_WEIGHT: Final = "without_weight "
#: Prefix of the counters of events with a number that is not finite, before the branch.
NOT_FINITE: Final = "not_finite "


class Counted(Protocol):
    """An object with the number and the weights of events by step of the cutflow."""

    @property
    def counts(self) -> dict[str, int]:
        """Number of events by step."""

    @property
    def weights(self) -> dict[str, list[float]]:
        """Sum of weights and of squared weights by step."""


class CountedSample(Counted, Protocol):
    """An object with the number and the weights of events of one sample, by step."""

    @property
    def sample(self) -> str:
        """Name of the sample."""


class StepCounts(NamedTuple):
    """The number and the weights of events by step of the cutflow."""

    counts: dict[str, int]
    """Number of events by step."""
    weights: dict[str, list[float]]
    """[sum of weights, sum of squared weights] by step."""

    @classmethod
    def from_steps(cls, steps: Mapping[str, Any], weights: NDArray[np.float64]) -> Self:
        """The tally of some events.

        `steps` has the mask (num_events,) or slice of the events of each step; `weights` is
        (num_events,).
        """
        tally = cls({}, {})
        for step, rows in steps.items():
            step_weights = weights[rows]
            tally.counts[step] = len(step_weights)
            tally.weights[step] = [float(step_weights.sum()), float(np.square(step_weights).sum())]
        return tally


class SampleSums(TypedDict):
    """Sums by sample, as manifests hold them."""

    samples: dict[str, dict[str, int]]
    """Numbers of events by sample and step."""
    weights: dict[str, dict[str, list[float]]]
    """Sums of weights and of squared weights by sample and step."""


def sum_counts(tallies: Iterable[Counted]) -> StepCounts:
    """Add up some tallies, step by step; a step that a tally lacks counts 0 there.

    Examples:
        >>> two = StepCounts({"events": 2}, {"events": [3.0, 5.0]})
        >>> sum_counts([StepCounts({"events": 1}, {"events": [2.0, 4.0]}), two])
        StepCounts(counts={'events': 3}, weights={'events': [5.0, 9.0]})
    """
    total = StepCounts({}, {})
    for tally in tallies:
        for step, (weight, weight2) in tally.weights.items():
            total.counts.setdefault(step, 0)
            total.counts[step] += tally.counts[step]
            sums = total.weights.setdefault(step, [0.0, 0.0])
            sums[0] += weight
            sums[1] += weight2
    return total


def sums_by_sample(tallies: Iterable[CountedSample]) -> SampleSums:
    """Add up the tallies of each sample; `tallies` has one for each part of the events."""
    tallies_by_sample: dict[str, list[CountedSample]] = {}
    for tally in tallies:
        tallies_of_sample = tallies_by_sample.setdefault(tally.sample, [])
        tallies_of_sample.append(tally)
    sums: SampleSums = {"samples": {}, "weights": {}}
    for sample, tallies_of_sample in tallies_by_sample.items():
        total = sum_counts(tallies_of_sample)
        sums["samples"][sample] = total.counts
        sums["weights"][sample] = total.weights
    return sums
