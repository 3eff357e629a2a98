"""Compares two cells of a study for a claim: their paired difference and its systematic shift."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pandas as pd

from hep_studies.cells import Cell
from hep_studies.measures import measure_of
from hep_studies.shares import SMALLEST_SPREAD, SharePair
from hep_studies.study import Claim, key_label
from hep_studies.study_result import StudyResult
from hep_studies.time_errors import TimeErrors, time_errors, unchecked_times
from hep_studies.verdicts import LEVEL, OPEN, Difference, Verdict, verdict_of

_LEARNING_RATE: Final = "train.learning_rate"


class Comparison(NamedTuple):
    """The comparison of two cells of a study, a treatment and its control, for a claim.

    A cell holds the runs of a method at some values of the varied keys, one run per seed.
    """

    treatment: Cell
    control: Cell
    claim: Claim
    difference: Difference
    """Treatment less control, of logarithms for times and rates.

    It is positive where the treatment is better, or, for a claim of kind `grows`, higher.
    """
    num_pairs: int
    """Number of seeds for which both have a number."""
    num_seeds: int
    """Number of seeds that the claim uses, for which at least one of them was run."""
    obstacle: str
    """Why the two cannot be compared; empty if they can."""
    is_at_edge: bool
    """Whether the best settings of either cell are at an edge of those tried."""
    divergence: str = ""
    """At how many seeds of both runs diverged, so that the difference is not known; else empty."""
    unchecked_times: str = ""
    """Why the check of the simulated times was refused; empty if it was not."""
    time_errors: TimeErrors = TimeErrors()
    """The errors of times, of which the shifts of the difference are the sum."""
    level: float = LEVEL
    """Level of the interval after Holm's correction."""

    @property
    def verdict(self) -> Verdict:
        """Verdict from the interval at the level of the comparison, shifts included."""
        return self.verdict_at(self.level)

    def without_errors(self, *names: str) -> Comparison:
        """Return the comparison as if times had none of these errors, of `TimeErrors`."""
        errors = self.time_errors.without(*names)
        difference = self.difference._replace(shifts=errors.shifts)
        return self._replace(time_errors=errors, difference=difference)

    def verdict_at(self, level: float) -> Verdict:
        """Return the verdict from the interval at a level, with its ends moved by the shifts.

        A comparison with an obstacle is not decidable.
        """
        if self.obstacle:
            return Verdict.NOT_DECIDABLE
        # The interval of shares is not symmetric: its nearer end counts as moved to the mean.
        below, above = self.difference.widths(level)
        half_width = max(below, above)
        lowest_shift, highest_shift = self.difference.shifts
        moves = (half_width - below + lowest_shift, above - half_width + highest_shift)
        return verdict_of(
            self.difference.mean,
            half_width,
            decision_threshold(self.claim),
            shifts=moves,
            is_equivalence=self.claim.is_equivalence,
            largest=largest_effect(self.claim),
        )

    def is_decided_at(self, level: float) -> bool:
        """Tell whether the interval at a level decides the comparison, in either direction."""
        return self.verdict_at(level) not in OPEN


def decision_threshold(claim: Claim) -> float:
    """Return the smallest difference that confirms a claim, in logarithms for times and rates.

    The margin of a claim is the largest difference that counts as none. The threshold is the
    claimed size less the margin, and at least the margin. A claim of equivalence has no size, so
    that its threshold is the margin.
    """
    size, margin = claim.size, claim.equivalence_margin
    if measure_of(claim.measure).is_ratio:
        # The size is a factor such as 2; the margin is relative, so that 0.1 is the factor 1.1.
        log_margin = math.log1p(margin)
        log_size = math.log(size) if size else 0.0
        return max(log_size - log_margin, log_margin)
    return max((size or 0.0) - margin, margin)


def largest_effect(claim: Claim) -> float:
    """Return the largest difference of the claimed size; infinite if the size is a least one.

    It is the size and the margin, in logarithms for times and rates.
    """
    if claim.size is None or claim.size_is == "at least":
        return math.inf
    if measure_of(claim.measure).is_ratio:
        return math.log(claim.size) + math.log1p(claim.equivalence_margin)
    return claim.size + claim.equivalence_margin


def comparisons_of(result: StudyResult, claim: Claim) -> Iterator[Comparison]:
    """Yield the comparisons of all pairs of cells that a claim speaks of.

    For `better` and `equivalent`, each treatment has as control the cell of the control's selection
    with the same values of all other keys. For `flat` and `grows`, the values of the key `over` are
    compared with each other.
    """
    # Cells of the claimed method that have the selected values, one for each set of other values.
    treatments = result.cells([claim.treatment["method"]], claim.treatment)
    for treatment in treatments:
        for selection in claim.control:
            control = result.matching_cell(treatment, selection)
            if control is not None and control != treatment:
                yield compare_cells(result, treatment, control, claim)
    if claim.over is not None:
        yield from _comparisons_over_key(result, treatments, claim, claim.over)


def _comparisons_over_key(
    result: StudyResult, treatments: Sequence[Cell], claim: Claim, key: str
) -> Iterator[Comparison]:
    """Yield comparisons of cells that differ only in a key; the control has the key's first value.

    A claim that a measure is `flat` compares each later value, one that it `grows` only the last.
    """
    # Cells of a group are equal without the key, and in the order of its values.
    groups: dict[Cell, list[Cell]] = {}
    for cell in treatments:
        groups.setdefault(cell.without(key), []).append(cell)
    for first, *later in groups.values():
        compared = later if claim.comparison == "flat" else later[-1:]
        for cell in compared:
            yield compare_cells(result, cell, first, claim)


def compare_cells(result: StudyResult, treatment: Cell, control: Cell, claim: Claim) -> Comparison:
    """Compare two cells over the seeds for which both have a number.

    Differences are taken seed by seed, since a seed gives both the same order of events. The test
    accuracy is also paired test event by test event. A claim may limit the number of seeds; then
    the lowest ones count. If the cells cannot be compared, `obstacle` says why. If runs of one of
    them diverged, `divergence` says so, and the difference is not known.
    """
    cells = (treatment, control)
    all_seeds = {run.seed for cell in cells for run in result.runs_of(cell, claim.tuning)}
    seeds = sorted(all_seeds)[: claim.seeds]
    # Column 0 is the treatment, column 1 the control; a row is a seed that both have.
    columns = [result.numbers(cell, claim.measure, claim.tuning) for cell in cells]
    numbers = pd.concat(columns, axis=1, join="inner")
    numbers = numbers[numbers.index.isin(seeds)].sort_index()

    obstacle = _obstacle(result, cells, claim)
    errors = time_errors(result, cells, claim, numbers)
    if claim.measure == "test_accuracy":
        difference = _difference_of_events(result, cells, claim, numbers.index)
    else:
        if measure_of(claim.measure).is_ratio:
            obstacle = obstacle or _obstacle_to_ratio(result, cells, numbers)
        smallest_spread = _smallest_spread(result, claim)
        difference = _difference_of_numbers(claim, numbers, errors, smallest_spread)
    divergence = _divergence_of_one_side(result, cells, claim, seeds)
    if divergence:
        difference = Difference(math.nan, math.nan, len(numbers))
    is_at_edge = any(edges_of_claim(result, cell, claim) for cell in cells)
    return Comparison(
        treatment,
        control,
        claim,
        difference,
        len(numbers),
        len(seeds),
        obstacle,
        is_at_edge,
        divergence,
        unchecked_times(result, cells, claim),
        errors,
    )


def edges_of_claim(result: StudyResult, cell: Cell, claim: Claim) -> dict[str, str]:
    """Return the keys of which a claim takes a cell at the lowest or highest value that was tried.

    A better value may lie beyond. By key: which edge. The learning rate is no such key for a
    measure that does not depend on learning, such as the time of a step.
    """
    if claim.protocol == "equal settings":
        return {}
    edges = result.edges(cell, claim.tuning.best_in)
    if not measure_of(claim.measure).depends_on_learning:
        edges.pop(_LEARNING_RATE, None)
    return edges


def _difference_of_events(
    result: StudyResult, cells: Sequence[Cell], claim: Claim, seeds: Iterable[int]
) -> Difference:
    """Return the difference of the test accuracies, paired by seed and by test event.

    An event counts its relative weight if it is predicted correctly, else 0, so that the mean over
    the events is the weighted accuracy.
    """
    treatment, control = [result.correct_weights(cell, claim.tuning) for cell in cells]
    return Difference.from_events([treatment[seed] - control[seed] for seed in seeds])


def _smallest_spread(result: StudyResult, claim: Claim) -> float:
    """Return the lower limit of the spread of a measure's difference over the seeds.

    A share of events is known no better than to one event.
    """
    split = measure_of(claim.measure).split
    if not split:
        return SMALLEST_SPREAD
    # The last count of a split is that of all classes.
    num_events = result.events["counts"][split][-1]
    return 1 / num_events


def _difference_of_numbers(
    claim: Claim, numbers: pd.DataFrame, errors: TimeErrors, smallest_spread: float
) -> Difference:
    """Return the difference of a measure between two cells, positive in the claim's direction.

    Times and rates are compared by their logarithms. The sign turns where a lower number is the
    better one.

    Args:
        claim: The claim, which has the measure.
        numbers: The measure (num_seeds, 2) of treatment and control.
        errors: The errors of times that all seeds share.
        smallest_spread: Lower limit of the standard deviation of the difference over the seeds.
    """
    measure = measure_of(claim.measure)
    if measure.is_ratio:
        # The logarithm of 0 or less is not finite; `_obstacle_to_ratio` reports such numbers.
        with np.errstate(all="ignore"):
            numbers = np.log(numbers)
    is_better_lower = measure.lower_is_better and claim.comparison != "grows"
    sign = -1.0 if is_better_lower else 1.0
    differences = sign * (numbers[0] - numbers[1])
    difference = Difference.from_seeds(
        differences, shifts=errors.shifts, smallest_spread=smallest_spread
    )
    if not measure.in_percent or numbers.empty:
        return difference
    first, second = (numbers[1], numbers[0]) if sign < 0 else (numbers[0], numbers[1])
    shares = SharePair.from_numbers(
        first, second, is_outcome=measure.is_outcome, smallest_spread=smallest_spread
    )
    return difference._replace(shares=shares)


def _divergence_of_one_side(
    result: StudyResult, cells: Sequence[Cell], claim: Claim, seeds: Sequence[int]
) -> str:
    """Return at how many seeds of two cells runs diverged, if these are not the same seeds.

    The runs of a method that finish are the better ones, so that their mean says nothing of the
    method. Empty if both cells lack a number at the same seeds, or if the measure does not depend
    on what is learnt, as the time of a step.
    """
    if not measure_of(claim.measure).depends_on_learning:
        return ""
    treatment_seeds, control_seeds = [
        result.diverged_seeds(cell, claim.measure, claim.tuning).intersection(seeds)
        for cell in cells
    ]
    if treatment_seeds == control_seeds:
        return ""
    treatment, control = [result.title(cell) for cell in cells]
    num_seeds = len(seeds)
    return (
        f"runs diverged at {len(treatment_seeds)} of {num_seeds} seeds of {treatment} and "
        f"{len(control_seeds)} of {num_seeds} of {control}"
    )


def _obstacle(result: StudyResult, cells: Sequence[Cell], claim: Claim) -> str:
    """Return why two cells cannot be compared; empty if they can.

    A cell has no runs at the values that the claim names. Or it never did what its settings ask
    for, such as an average or a push. Or the runs of the two cells trained on different numbers of
    events.
    """
    for cell in cells:
        if not result.runs_of(cell, claim.tuning):
            values = [f"{key_label(key)} {value}" for key, value in claim.at.items()]
            return f"no runs of {result.title(cell)} at {', '.join(values)}"
        idle_counters = result.idle_counters(cell, claim.tuning)
        if idle_counters:
            names = ", ".join(idle_counters).replace("_", " ")
            return f"no {names} of {result.title(cell)}"
    num_events = [result.events_seen(cell, tuning=claim.tuning) for cell in cells]
    differ = all(num_events) and num_events[0] != num_events[1]
    if result.study.times_only is None and differ:
        return f"{' and '.join(num_events)} events were seen"
    return ""


def _obstacle_to_ratio(result: StudyResult, cells: Sequence[Cell], numbers: pd.DataFrame) -> str:
    """Return a sentence that names the cells with a number of 0 or less; empty if none has one.

    `numbers`: (num_seeds, 2), a column for each cell.
    """
    has_zero = (numbers <= 0).any()
    titles = [result.title(cell) for cell, is_zero in zip(cells, has_zero, strict=True) if is_zero]
    return f"a ratio to 0 says nothing, {' and '.join(titles)}" if titles else ""
