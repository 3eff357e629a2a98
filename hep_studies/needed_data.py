"""What would decide a claim that is open: seeds, test events, hours, or checked times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from scipy.special import ndtri

from hep_studies.comparisons import Comparison
from hep_studies.study_result import StudyResult
from hep_studies.verdicts import Verdict, combine_verdicts

#: Probability with which the needed data decide a claim.
_POWER: Final = 0.8
#: No more than this factor of the present seeds and of the present test events is asked for.
_LARGEST_GROWTH: Final = 10
#: Number of the studies, with equally likely errors, whose decided share is that probability.
_NUM_STUDIES: Final = 100
#: What would remove the errors of times, first one of them and then both.
_REMEDIES: Final = {
    ("of_checks",): "a closer check of the simulated times",
    ("of_validations",): "validating more often than once an epoch",
    ("of_checks", "of_validations"): "a closer check of the simulated times and validating more "
    "often than once an epoch",
}
_CORES: Final = 2
_SECONDS_PER_HOUR: Final = 3600


class NeededData(NamedTuple):
    """The data that decide a claim with a probability of 80 % if the measured effect is true."""

    num_seeds: int
    num_events: int
    """Number of test events; 0 where none are compared."""
    without_errors: tuple[str, ...] = ()
    """Names of the errors of times, of `TimeErrors`, that must be removed too."""


def needed_data(comparisons: Sequence[Comparison], share: float) -> NeededData | None:
    """Return the least data that would decide an open claim; None if ten times these would not.

    More seeds are tried first, then more test events where these are part of the error, and at last
    exact times.

    Args:
        comparisons: Those of the claim that have no obstacle.
        share: Share of the comparisons in which the claim must hold.
    """
    needed = _fewest_seeds_and_events(comparisons, share)
    if needed is not None or not any(map(_has_inexact_times, comparisons)):
        return needed

    for errors in _REMEDIES:
        exact = [comparison.without_errors(*errors) for comparison in comparisons]
        if not _is_open(exact, share):
            return NeededData(_num_seeds(comparisons), _num_events(comparisons), errors)
        needed = _fewest_seeds_and_events(exact, share)
        if needed is not None:
            return needed._replace(without_errors=errors)
    return None


def _fewest_seeds_and_events(comparisons: Sequence[Comparison], share: float) -> NeededData | None:
    """Return the fewest seeds that would decide a claim, with more test events if these must be.

    None if ten times the present seeds and events would not decide it.
    """
    present = NeededData(_num_seeds(comparisons), _num_events(comparisons))
    seed_numbers = _numbers_to_try(present.num_seeds)
    event_numbers = [present.num_events]
    if any(comparison.difference.event_variance > 0 for comparison in comparisons):
        event_numbers = _numbers_to_try(present.num_events)

    for num_events in event_numbers:
        most_seeds = NeededData(seed_numbers[-1], num_events)
        if _probability_to_decide(comparisons, share, most_seeds) < _POWER:
            continue
        for num_seeds in seed_numbers:
            data = NeededData(num_seeds, num_events)
            # The present data left the claim open.
            if data == present:
                continue
            if _probability_to_decide(comparisons, share, data) >= _POWER:
                return data
    return None


def _numbers_to_try(present: int) -> list[int]:
    """Return the numbers of one digit and zeros from a present number to ten times it, and both.

    Examples:
        >>> _numbers_to_try(45)
        [45, 50, 60, 70, 80, 90, 100, 200, 300, 400, 450]
    """
    if present == 0:
        return [0]
    step: int = 10 ** (len(str(present)) - 1)
    largest = _LARGEST_GROWTH * present
    counts = [present]
    next_count = (present // step + 1) * step
    while next_count < largest:
        counts.append(next_count)
        if next_count == 10 * step:
            step = next_count
        next_count += step
    return [*counts, largest]


def _probability_to_decide(
    comparisons: Sequence[Comparison], share: float, data: NeededData
) -> float:
    """Return the probability that new runs with these data decide a claim.

    The true effects and variances are taken to be the measured ones, so that the means of the new
    runs scatter around the measured means by their standard errors. The errors of the comparisons
    are taken as independent.
    """
    # The midpoints of equally likely parts of a normal distribution.
    errors = ndtri((np.arange(_NUM_STUDIES) + 0.5) / _NUM_STUDIES)
    rng = np.random.default_rng(0)
    studies: list[list[Comparison]] = [[] for _ in range(_NUM_STUDIES)]
    for comparison in comparisons:
        grown = _grown(comparison, data)
        for study, error in zip(studies, rng.permutation(errors), strict=True):
            study.append(_moved(grown, error))
    num_decided = sum(not _is_open(study, share) for study in studies)
    return num_decided / _NUM_STUDIES


def _grown(comparison: Comparison, data: NeededData) -> Comparison:
    """Return a comparison with the same mean and variances, of more seeds and test events."""
    more_data = comparison.difference._replace(num_seeds=data.num_seeds, num_events=data.num_events)
    return comparison._replace(difference=more_data)


def _moved(comparison: Comparison, num_errors: float) -> Comparison:
    """Return a comparison whose mean is moved by a number of its standard errors."""
    difference = comparison.difference
    mean = difference.mean + num_errors * difference.standard_error
    return comparison._replace(difference=difference._replace(mean=mean))


def _is_open(comparisons: Sequence[Comparison], share: float) -> bool:
    verdicts = [comparison.verdict for comparison in comparisons]
    return combine_verdicts(verdicts, share=share) is Verdict.UNDECIDED


def _has_inexact_times(comparison: Comparison) -> bool:
    return comparison.difference.shifts != (0.0, 0.0)


def _num_seeds(comparisons: Sequence[Comparison]) -> int:
    return max(comparison.difference.num_seeds for comparison in comparisons)


def _num_events(comparisons: Sequence[Comparison]) -> int:
    return max(comparison.difference.num_events for comparison in comparisons)


def text_of_needed_data(
    result: StudyResult, comparisons: Sequence[Comparison], needed: NeededData | None
) -> str:
    """Return needed data as text, such as "about 40 seeds (now 10; 1 h)".

    The hours are those of two cores for the further seeds. What makes times exact comes first.
    """
    if needed is None:
        return "more than ten times these data"
    texts = []
    if needed.without_errors:
        texts.append(_REMEDIES[needed.without_errors])
    present_seeds = _num_seeds(comparisons)
    if needed.num_seeds > present_seeds:
        hours = (needed.num_seeds - present_seeds) * _hours_per_seed(result)
        rounded_hours = float(f"{hours:.1g}")
        present_text = f"now {present_seeds:,}; {rounded_hours:,g} h"
        texts.append(f"about {needed.num_seeds:,} seeds ({present_text})")
    present_events = _num_events(comparisons)
    if needed.num_events > present_events:
        texts.append(f"about {needed.num_events:,} test events (now {present_events:,})")
    return " and ".join(texts)


def _hours_per_seed(result: StudyResult) -> float:
    """Return the hours of two cores that all runs of a seed take.

    They are those of the stored runs; where these have no durations, those that the study expects.
    """
    num_seeds = len({run.seed for run in result.runs})
    durations = [run.wall_seconds for run in result.runs if run.wall_seconds is not None]
    if len(durations) == len(result.runs):
        # Each run has a core of its own.
        return sum(durations) / _CORES / num_seeds / _SECONDS_PER_HOUR
    return result.study.minutes / 60 / result.study.seeds
