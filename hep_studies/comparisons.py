"""Compares two cells of a study for a claim: their paired difference and its systematic shift."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from hep_studies.measures import measure_of
from hep_studies.study import Claim
from hep_studies.study_result import Cell, StudyResult
from hep_studies.verdicts import LEVEL, OPEN, Difference, Verdict, verdict_of


class Comparison(NamedTuple):
    """A treatment against its control.

    The difference is positive where the treatment is better, or, for `grows`, higher.
    """

    treatment: Cell
    control: Cell
    claim: Claim
    difference: Difference
    """Of logarithms for times and rates."""
    num_pairs: int
    """Number of seeds for which both have a number."""
    num_seeds: int
    obstacle: str
    """Why the two cannot be compared; empty if they can."""
    level: float = LEVEL
    """Level of the interval after Holm's correction."""

    @property
    def verdict(self) -> Verdict:
        """Verdict at the level of the comparison."""
        return self.verdict_at(self.level, self.difference.shifts)

    @property
    def verdict_without_shifts(self) -> Verdict:
        """Verdict if the simulated times were exact."""
        return self.verdict_at(self.level, (0.0, 0.0))

    def verdict_at(self, level: float, shifts: tuple[float, float]) -> Verdict:
        """Return the verdict at a level of the interval, with these shifts of its ends."""
        if self.obstacle:
            return Verdict.NOT_DECIDABLE
        return verdict_of(
            self.difference.mean,
            self.difference.half_width(level),
            decision_threshold(self.claim),
            shifts=shifts,
            is_equivalence=self.claim.is_equivalence,
        )

    def is_decided_at(self, level: float) -> bool:
        """Tell whether the interval at a level decides the comparison."""
        return self.verdict_at(level, self.difference.shifts) not in OPEN


def decision_threshold(claim: Claim) -> float:
    """Return the smallest difference that confirms a claim, in logarithms for times and rates.

    It is the claimed size less the margin, and at least the margin. For a claim of equivalence, it
    is the margin.
    """
    size, margin = claim.size, claim.equivalence_margin
    if measure_of(claim.measure).is_ratio:
        log_margin = math.log1p(margin)
        log_size = math.log(size) if size else 0.0
        return max(log_size - log_margin, log_margin)
    return max((size or 0.0) - margin, margin)


def comparisons_of(result: StudyResult, claim: Claim) -> Iterator[Comparison]:
    """Compare all pairs of cells that a claim speaks of."""
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
    """Compare values of a key with its first value: all for `flat`, the last for `grows`."""
    groups: dict[Cell, list[Cell]] = {}
    for cell in treatments:
        groups.setdefault(cell.without(key), []).append(cell)
    for first, *later in groups.values():
        compared = later if claim.comparison == "flat" else later[-1:]
        for cell in compared:
            yield compare_cells(result, cell, first, claim)


def compare_cells(result: StudyResult, treatment: Cell, control: Cell, claim: Claim) -> Comparison:
    """Compare two cells over the seeds for which both have a number.

    The test accuracy is compared test event by test event.
    """
    cells = (treatment, control)
    all_seeds = {run.seed for cell in cells for run in result.runs_of(cell, claim.at)}
    seeds = sorted(all_seeds)[: claim.seeds]
    columns = [result.numbers(cell, claim.measure, claim.at) for cell in cells]
    numbers = pd.concat(columns, axis=1, join="inner")
    numbers = numbers[numbers.index.isin(seeds)].sort_index()

    obstacle = _obstacle(result, cells)
    if claim.measure == "test_accuracy":
        difference = _difference_of_events(result, cells, claim, numbers.index)
    else:
        if measure_of(claim.measure).is_ratio:
            obstacle = obstacle or _obstacle_to_ratio(result, cells, numbers)
        difference = _difference_of_numbers(result, cells, claim, numbers)
    return Comparison(treatment, control, claim, difference, len(numbers), len(seeds), obstacle)


def _difference_of_events(
    result: StudyResult, cells: Sequence[Cell], claim: Claim, seeds: Iterable[int]
) -> Difference:
    """Return the difference of the test accuracies, paired by seed and by test event."""
    treatment, control = [result.correct_weights(cell, claim.at) for cell in cells]
    return Difference.from_events([treatment[seed] - control[seed] for seed in seeds])


def _difference_of_numbers(
    result: StudyResult, cells: Sequence[Cell], claim: Claim, numbers: pd.DataFrame
) -> Difference:
    """Return the difference of a measure, (num_seeds, 2), in the direction of the claim."""
    measure = measure_of(claim.measure)
    if measure.is_ratio:
        # A zero or a negative number is an obstacle to the comparison.
        with np.errstate(all="ignore"):
            numbers = np.log(numbers)
    is_better_lower = measure.lower_is_better and claim.comparison != "grows"
    sign = -1.0 if is_better_lower else 1.0
    shifts = _systematic_shifts(result, cells, claim, numbers.mean())
    difference = Difference.from_seeds(sign * (numbers[0] - numbers[1]), shifts=shifts)
    if claim.measure == "diverged" and len(numbers):
        # The numbers are 0 or 1: that all seeds agree is known to one more seed.
        variance = max(difference.seed_variance, 1 / len(numbers))
        difference = difference._replace(seed_variance=variance)
    return difference


def _obstacle(result: StudyResult, cells: Sequence[Cell]) -> str:
    """Return why two cells cannot be compared; empty if they can."""
    for cell in cells:
        idle_counters = result.idle_counters(cell)
        if idle_counters:
            names = ", ".join(idle_counters).replace("_", " ")
            return f"no {names} of {result.title(cell)}"
    num_events = [result.events_seen(cell) for cell in cells]
    differ = all(num_events) and num_events[0] != num_events[1]
    if result.study.times_only is None and differ:
        return f"{' and '.join(num_events)} events were seen"
    return ""


def _obstacle_to_ratio(result: StudyResult, cells: Sequence[Cell], numbers: pd.DataFrame) -> str:
    """Return which of two cells, the columns of the numbers, has a 0; empty if none has."""
    has_zero = (numbers <= 0).any()
    titles = [result.title(cell) for cell, is_zero in zip(cells, has_zero, strict=True) if is_zero]
    return f"a ratio to 0 says nothing, {' and '.join(titles)}" if titles else ""


def _systematic_shifts(
    result: StudyResult, cells: Sequence[Cell], claim: Claim, means: Iterable[float]
) -> tuple[float, float]:
    """Return the lowest and highest error of a difference that comes from the simulated times.

    One end belongs to the simulated times, the other to the checked ones. Different numbers of
    workers are not delayed alike, so that each of the two cells also counts alone. `means`: of
    each cell over its seeds. The errors are of logarithms for ratios, else of the measure.
    """
    measure = measure_of(claim.measure)
    if not (measure.depends_on_times and result.is_simulated):
        return 0.0, 0.0
    delays = [_log_delay(result, cell) for cell in cells]
    if not all(math.isfinite(delay) for delay in delays):
        return -math.inf, math.inf

    if measure.is_ratio:
        is_longer_positive = measure.lower_is_better and claim.comparison == "grows"
        sign = 1 if is_longer_positive else -1
        cell_errors = [sign * measure.power_of_time * delay for delay in delays]
    else:
        cell_errors = [mean * math.expm1(-delay) for mean, delay in zip(means, delays, strict=True)]
    treatment_error, control_error = cell_errors
    errors = [0.0, treatment_error - control_error]
    if len({result.settings(cell).workers for cell in cells}) > 1:
        errors += [treatment_error, -control_error]
    return min(errors), max(errors)


def _log_delay(result: StudyResult, cell: Cell) -> float:
    """Return the logarithm of measured over simulated time of a step; infinite without a check."""
    settings = result.settings(cell)
    if settings.workers == 1:
        return 0.0
    cluster = result.study.cluster_settings(cell.plain_values)
    step_seconds = cluster.step_of(settings.batch_size)
    simulated_seconds = result.numbers(cell, "seconds_per_batch").mean()
    checks = [
        check
        for check in result.checks
        if check.method == cell.method and math.isclose(check.step_seconds, step_seconds)
    ]
    # A step cannot be shorter than nothing, whatever the check says.
    relative_gaps = [max(check.gap / simulated_seconds, -0.99) for check in checks]
    return max((math.log1p(gap) for gap in relative_gaps), key=abs, default=math.inf)
