"""Physics weights: every sample of a class counts by its cross-section, not by the size of its files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self

from features.errors import FeatureError

#: Two sums of the same weights may differ by this share.
_ROUNDING: Final = 1e-6


class GeneratedSample(NamedTuple):
    """A sample before any selection."""

    label: int
    cross_section_pb: float | None
    num_events: int
    """Generated events that were read."""
    sum_of_weights: float
    """Sum of their weights, with signs."""
    stated_sum: float | None = None
    """Sum of the weights of all generated events, also those that a skim dropped, if the user states it."""

    @classmethod
    def from_counters(
        cls,
        name: str,
        parts: Mapping[str, int | None],
        ingested: Mapping[str, Any],
        *,
        cross_section_pb: float | None,
        sum_of_weights: float | str | None,
    ) -> dict[str, Self]:
        """The parts of a sample that have a class, by name; `parts` are from `ingestion.expressions.sample_labels`.

        `ingested` are the counters of ingest. The cross-section is that of all parts together [pb], `sum_of_weights` as
        in the config; it is refused if it cannot be that of all generated events.
        """
        counts, weights = (
            {part: ingested[key][part] for part in parts} for key in ("samples", "weights")
        )
        read = {
            part: each["entries"][0] - each["rejected_copy"][0] for part, each in weights.items()
        }
        whole = sum(read.values())
        stated = sum_of_weights
        if isinstance(stated, str):
            stated = ingested.get("generated", {}).get(name, {}).get(sum_of_weights)
            if stated is None:
                raise FeatureError(
                    f"sample '{name}' was ingested with another sum_of_weights. Run `ingest` first."
                )
        has_negative = any(each["events_of_negative_weight"] for each in counts.values())
        if stated is not None and whole > stated * (1 + _ROUNDING) and not has_negative:
            raise FeatureError(
                f"sample '{name}': the weights of the events read add up to {whole:g}, more than those of all "
                f"generated events, {stated:g} (sum_of_weights: {sum_of_weights}). Correct it: it has the scale of "
                f"`weight`, and counts the events of all files."
            )
        if len(parts) > 1 and cross_section_pb is not None:
            # The cross-section is that of all classes together.
            stated = whole if stated is None else stated
        return {
            part: cls(
                label,
                cross_section_pb,
                counts[part]["entries"] - counts[part]["rejected_copy"],
                read[part],
                stated,
            )
            for part, label in parts.items()
            if label is not None
        }


def physics_factors(samples: Mapping[str, GeneratedSample], luminosity: float) -> dict[str, float]:
    """Factor of each sample that turns `Event.Weight` into a physics weight.

    The physics weight is `Event.Weight` x cross-section [pb] x luminosity [1/pb] / sum of weights of the sample: of all
    generated events if it is stated, else of those read. If a class has a sample without cross-section, its samples
    count by their numbers of events: the mean weight of each becomes 1. Weights that add up to 0 or less are refused.
    """
    uncertain = {each.label for each in samples.values() if each.cross_section_pb is None}
    factors = {}
    for name, each in samples.items():
        generated = each.sum_of_weights if each.stated_sum is None else each.stated_sum
        if not (lower := min(each.sum_of_weights, generated)) > 0:
            raise FeatureError(
                f"the event weights of sample '{name}' add up to {lower:g} over its {each.num_events} events; its "
                f"normalisation needs a positive sum. State another `weight` of the sample: a branch, or `none` if "
                f"every event counts 1; or add files."
            )
        known = None if each.label in uncertain else each.cross_section_pb
        expected = each.num_events if known is None else known * luminosity
        factors[name] = expected / generated
    return factors
