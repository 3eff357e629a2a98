"""What would decide a claim that is open: seeds, test events, hours, or checked times."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from hep_studies.comparisons import Comparison
from hep_studies.study_result import StudyResult
from hep_studies.verdicts import OPEN, combine_verdicts

#: More seeds than this decide nothing in practice: the mean lies at the limit of two verdicts.
_MOST_SEEDS: Final = 10_000
#: If more than this factor of the seeds is needed, more test events are looked for.
_LARGEST_GROWTH: Final = 10
#: Factors by which the number of test events may grow, up to about a hundred.
_EVENT_FACTORS: Final = [1.5**power for power in range(1, 13)]
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
    """The data with which the present means would decide a claim."""

    num_seeds: int
    event_factor: float
    """Factor by which the number of test events grows; 1: the present ones suffice."""


def needed_data(comparisons: Sequence[Comparison], share: float) -> NeededData | None:
    """Return the fewest seeds that would decide a claim if the means stayed as they are.

    If more than ten times the seeds were needed, and the test events are part of the error, the
    events grow too. None if no such number decides, as where a mean is at the limit of a verdict.

    Args:
        comparisons: Those of the claim, all with finite differences.
        share: Share of the comparisons in which the claim must hold.
    """

    def decides(num_seeds: int, event_factor: float) -> bool:
        grown = [_grown(comparison, num_seeds, event_factor) for comparison in comparisons]
        verdicts = [comparison.verdict for comparison in grown]
        return combine_verdicts(verdicts, share=share) not in OPEN

    present = max(comparison.difference.num_seeds for comparison in comparisons)
    by_seeds = _fewest_seeds(partial(decides, event_factor=1), present, _MOST_SEEDS)
    few_seeds = _LARGEST_GROWTH * present
    if by_seeds is not None and by_seeds <= few_seeds:
        return NeededData(by_seeds, 1)

    has_event_error = any(comparison.difference.event_variance > 0 for comparison in comparisons)
    if has_event_error:
        for factor in _EVENT_FACTORS:
            num_seeds = _fewest_seeds(partial(decides, event_factor=factor), present, few_seeds)
            if num_seeds is not None:
                return NeededData(num_seeds, factor)
    return None if by_seeds is None else NeededData(by_seeds, 1)


def _grown(comparison: Comparison, num_seeds: int, event_factor: float) -> Comparison:
    """Return a comparison with the same mean and variances, of more seeds and test events."""
    difference = comparison.difference
    num_events = round(event_factor * difference.num_events)
    more_data = difference._replace(num_seeds=num_seeds, num_events=num_events)
    return comparison._replace(difference=more_data)


def _fewest_seeds(decides: Callable[[int], bool], lowest: int, highest: int) -> int | None:
    """Return the fewest seeds, from the lowest number to the highest, that decide; None if none."""
    if not decides(highest):
        return None
    # Half of the remaining numbers is left out each time; `highest` always decides.
    while lowest < highest:
        middle = (lowest + highest) // 2
        if decides(middle):
            highest = middle
        else:
            lowest = middle + 1
    return highest


def data_that_decide(result: StudyResult, comparisons: Sequence[Comparison], share: float) -> str:
    """Return as text what would decide a claim that is open because of its errors.

    It is a number of seeds, of test events, and the hours of two cores for the further seeds; or a
    closer check of the simulated times, or more frequent validation; or both.
    """
    if not all(math.isfinite(comparison.difference.mean) for comparison in comparisons):
        return "longer runs or another goal: here a run diverged or did not reach it"
    needed = needed_data(comparisons, share)
    if needed is not None:
        return _data_text(result, comparisons, needed)
    for errors, remedy in _REMEDIES.items():
        exact = [comparison.without_errors(*errors) for comparison in comparisons]
        needed = needed_data(exact, share)
        if needed is not None:
            further_data = _data_text(result, exact, needed)
            return f"{remedy} and {further_data}" if further_data else remedy
    return "no feasible amount of data: the measured effect is near the limit of two verdicts"


def _num_seeds(comparisons: Sequence[Comparison]) -> int:
    return max(comparison.difference.num_seeds for comparison in comparisons)


def _data_text(result: StudyResult, comparisons: Sequence[Comparison], needed: NeededData) -> str:
    """Return needed data as text, such as "45 seeds (now 10; 1.2 h)".

    The hours are those of two cores for the further seeds.
    """
    present = _num_seeds(comparisons)
    texts = []
    if needed.num_seeds > present:
        hours = (needed.num_seeds - present) * _hours_per_seed(result)
        hours_text = f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"
        texts.append(f"{needed.num_seeds:,} seeds (now {present:,}; {hours_text} h)")
    if needed.event_factor > 1:
        num_events = max(comparison.difference.num_events for comparison in comparisons)
        needed_events = round(needed.event_factor * num_events, -2)
        texts.append(f"{needed_events:,.0f} test events (now {num_events:,})")
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
