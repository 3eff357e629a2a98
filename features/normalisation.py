"""Physics weights: every sample of a class counts by its cross-section, not by the size of its files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from features.errors import FeatureError


class GeneratedSample(NamedTuple):
    """A sample before any selection."""

    label: int
    cross_section_pb: float | None
    num_events: int
    """Generated events that were read."""
    sum_of_weights: float
    """Sum of their `Event.Weight`, with signs."""


def physics_factors(samples: Mapping[str, GeneratedSample], luminosity: float) -> dict[str, float]:
    """Factor of each sample that turns `Event.Weight` into a physics weight.

    The physics weight is `Event.Weight` x cross-section x luminosity / sum of weights of the sample. If a class has a
    sample without cross-section, its samples count by their numbers of events: the mean weight of each becomes 1.

    Args:
        samples: The samples by name.
        luminosity: Integrated luminosity [1/pb].

    Raises:
        FeatureError: The weights of a sample add up to 0 or less.

    Examples:
        >>> slices = {"low": GeneratedSample(0, 1e6, 100, 100.0), "high": GeneratedSample(0, 1.0, 100, 50.0)}
        >>> physics_factors(slices, 1.0)
        {'low': 10000.0, 'high': 0.02}
    """
    uncertain = {each.label for each in samples.values() if each.cross_section_pb is None}
    factors = {}
    for name, each in samples.items():
        if not each.sum_of_weights > 0:
            raise FeatureError(
                f"the event weights of sample '{name}' add up to {each.sum_of_weights:g} over its {each.num_events} "
                f"events; its normalisation needs a positive sum. State another `weight` of the sample: a branch, or "
                f"`none` if every event counts 1; or add files."
            )
        known = None if each.label in uncertain else each.cross_section_pb
        expected = each.num_events if known is None else known * luminosity
        factors[name] = expected / each.sum_of_weights
    return factors
