"""Physics weights: each sample counts by its cross-section, not by the size of its files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self

from features.errors import FeatureError
from hep_core.weight_sums import without_rounding

#: Two sums of the same weights may differ by this share.
_ROUNDING: Final = 1e-6
#: Weights of both signs may add up to less for all events than for a part of them, by this many
#: standard deviations of the sum.
_DEVIATIONS: Final = 5.0


class GeneratedSample(NamedTuple):
    """A sample before any selection."""

    label: int
    """Its class, an index."""
    cross_section_pb: float | None
    """Cross-section [pb]; None if unknown."""
    num_events: int
    """Number of generated events that were read."""
    sum_of_weights: float
    """Sum of their weights, with signs."""
    stated_sum: float | None = None
    """Sum of the weights of all generated events, also those that a skim dropped, if the user
    states it."""

    @classmethod
    def from_counters(
        cls,
        name: str,
        labels: Mapping[str, int | None],
        ingested: Mapping[str, Any],
        *,
        cross_section_pb: float | None,
        sum_of_weights: float | str | None,
    ) -> dict[str, Self]:
        """The parts of a sample that have a class, by name.

        A sample whose events have several classes (`label_by`) has a part for each; any other
        sample is one part. Copies of events, which ingest drops, do not count.

        Args:
            name: Name of the sample.
            labels: Class of each part, None for events without one, by the name of the part.
            ingested: Counters of ingest: `samples` and `weights` by part, `generated` by sample.
            cross_section_pb: Cross-section of all parts together [pb].
            sum_of_weights: As in the config.

        Raises:
            FeatureError: `sum_of_weights` cannot be the sum of all generated events.
        """
        num_events = {}
        read_sums = {}
        squares_in_files = 0.0
        squares_read = 0.0
        has_negative_weights = False
        for part_name in labels:
            counts = ingested["samples"][part_name]
            weights = ingested["weights"][part_name]
            num_events[part_name] = counts["entries"] - counts["rejected_copy"]
            read_sum = weights["entries"][0] - weights["rejected_copy"][0]
            # A sum that is not 0 by rounding alone would normalise to any size. Rounding has the
            # scale of all events in the files, also of copies.
            read_sums[part_name] = without_rounding(read_sum, weights["entries"][1])
            squares_in_files += weights["entries"][1]
            squares_read += weights["entries"][1] - weights["rejected_copy"][1]
            has_negative_weights |= bool(counts["events_of_negative_weight"])

        signed_squares = squares_read if has_negative_weights else 0.0
        sum_read = without_rounding(sum(read_sums.values()), squares_in_files)
        stated_sum = _stated_sum(name, ingested, sum_of_weights)
        if stated_sum is None:
            # The cross-section belongs to all parts together, so the sum does too.
            if len(labels) > 1 and cross_section_pb is not None:
                stated_sum = sum_read
        elif sum_read - stated_sum > _allowed_excess(stated_sum, signed_squares):
            raise FeatureError(
                f"sample '{name}': the weights of the events read add up to {sum_read:g}, more "
                f"than those of all generated events, {stated_sum:g} "
                f"(sum_of_weights: {sum_of_weights}). Correct it: it has the scale of "
                "`weight`, and counts the events of all files."
            )
        samples = {}
        for part_name, label in labels.items():
            if label is not None:
                samples[part_name] = cls(
                    label, cross_section_pb, num_events[part_name], read_sums[part_name], stated_sum
                )
        return samples


def _allowed_excess(stated_sum: float, signed_squares: float) -> float:
    """By how much the weights of a part of the events may add up to more than those of all.

    Without negative weights it is only rounding. With them, the events that a skim dropped may add
    up to less than 0 by chance, but not by more than a few standard deviations.

    Args:
        stated_sum: Sum of the weights of all events.
        signed_squares: Sum of the squared weights of the events read; 0 if no weight is negative.
    """
    # Copies are subtracted from the squares, so that rounding may leave less than 0.
    standard_deviation = math.sqrt(max(0.0, signed_squares))
    return stated_sum * _ROUNDING + _DEVIATIONS * standard_deviation


def _stated_sum(
    name: str, ingested: Mapping[str, Any], sum_of_weights: float | str | None
) -> float | None:
    """The sum of weights of all generated events, if the config states it.

    `sum_of_weights` is this number, the name by which ingest read it from the files, or None.

    Raises:
        FeatureError: Ingest read no sum of this name.
    """
    if not isinstance(sum_of_weights, str):
        return sum_of_weights
    sums_by_sample = ingested.get("generated", {})
    sums_in_files: Mapping[str, float] = sums_by_sample.get(name, {})
    if sum_of_weights not in sums_in_files:
        raise FeatureError(
            f"sample '{name}' was ingested with another sum_of_weights. Run `ingest` first."
        )
    return sums_in_files[sum_of_weights]


def physics_factors(samples: Mapping[str, GeneratedSample], luminosity: float) -> dict[str, float]:
    """Factor of each sample that turns the weight of an event into a physics weight.

    The physics weight is the event's weight x cross-section [pb] x luminosity [1/pb] / sum of
    weights of the sample: of all generated events if it is stated, else of those read. So the
    physics weights of these events add up to the number that the luminosity gives. If a class has a
    sample without cross-section, all samples of this class count by their numbers of events
    instead: the mean weight of each becomes 1, whatever sum is stated.

    Raises:
        FeatureError: Weights of a sample add up to 0 or less.
    """
    labels_without_rate = {
        sample.label for sample in samples.values() if sample.cross_section_pb is None
    }
    factors = {}
    for name, sample in samples.items():
        counts_by_events = sample.label in labels_without_rate
        generated_sum = sample.sum_of_weights
        if sample.stated_sum is not None and not counts_by_events:
            generated_sum = sample.stated_sum
        # Both sums must be positive: one divides, the other gives the class its total weight.
        smaller_sum = min(sample.sum_of_weights, generated_sum)
        if not smaller_sum > 0:
            raise FeatureError(
                f"the event weights of sample '{name}' add up to {smaller_sum:g} over its "
                f"{sample.num_events} events; its normalisation needs a positive sum. State "
                "another `weight` of the sample: a branch, or `none` if every event counts 1; or "
                "add files."
            )
        expected_events: float = sample.num_events
        if sample.cross_section_pb is not None and not counts_by_events:
            expected_events = sample.cross_section_pb * luminosity
        factors[name] = expected_events / generated_sum
    return factors
