"""By how much times may be wrong: simulated ones, and those to an accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pandas as pd

from hep_studies.cells import Cell
from hep_studies.measures import measure_of
from hep_studies.study import Claim
from hep_studies.study_result import StudyResult, TimeCheck


class _Interval(NamedTuple):
    """The lowest and the highest value of an error."""

    low: float
    high: float


_NONE: Final = _Interval(0.0, 0.0)
_UNKNOWN: Final = _Interval(-math.inf, math.inf)


class TimeErrors(NamedTuple):
    """The lowest and the highest move of a difference by errors of times that all seeds share.

    Moves are of logarithms for times and rates, else of the measure.
    """

    of_checks: tuple[float, float] = _NONE
    """Moves by the error of simulated times; infinite without a check that counts."""
    of_validations: tuple[float, float] = _NONE
    """Moves by the time between the validations at which times to an accuracy end."""

    @property
    def shifts(self) -> tuple[float, float]:
        """Moves by both errors: the sum of two intervals, since neither depends on the other."""
        low_of_checks, high_of_checks = self.of_checks
        low_of_validations, high_of_validations = self.of_validations
        return low_of_checks + low_of_validations, high_of_checks + high_of_validations

    def without(self, *names: str) -> TimeErrors:
        """Return the errors as if those of these names were none."""
        return self._replace(**dict.fromkeys(names, _NONE))


def time_errors(
    result: StudyResult, cells: Sequence[Cell], claim: Claim, numbers: pd.DataFrame
) -> TimeErrors:
    """Return by how much, at least and at most, exact times would move a difference.

    Args:
        result: The study.
        cells: Treatment and control.
        claim: The claim, which has the measure.
        numbers: The measure (num_seeds, 2) of treatment and control, indexed by seed.
    """
    seeds = numbers.index.tolist()
    means = numbers.mean().tolist()
    resolutions = [_log_resolution(result, cell, claim, seeds) for cell in cells]
    moves = _moves_of_both(claim, resolutions, means)
    of_validations = _Interval(min(moves), max(moves))
    return TimeErrors(_moves_by_checks(result, cells, claim, means), of_validations)


def _moves_by_checks(
    result: StudyResult, cells: Sequence[Cell], claim: Claim, means: Sequence[float]
) -> _Interval:
    """Return the lowest and the highest move of a difference by the error of simulated times.

    The delay of a cell is the logarithm of real over simulated time, as a check on this machine
    measures it, with the spread of the check. The moves are: none, as if the simulated times were
    exact; that of both delays; and, for different numbers of workers, which are not delayed alike,
    that of either delay alone.
    """
    if not _needs_check(result, claim):
        return _NONE
    delays = [_log_delay(result, cell, claim) for cell in cells]
    if _UNKNOWN in delays:
        return _UNKNOWN

    moves = [0.0, *_moves_of_both(claim, delays, means)]
    if len({result.settings(cell).workers for cell in cells}) > 1:
        treatment, control = delays
        moves += _moves_of_both(claim, [treatment, _NONE], means)
        moves += _moves_of_both(claim, [_NONE, control], means)
    return _Interval(min(moves), max(moves))


def _moves_of_both(
    claim: Claim, log_errors: Sequence[_Interval], means: Sequence[float]
) -> list[float]:
    """Return the lowest and the highest move by errors of the times of treatment and control.

    `log_errors`: the logarithm of right over measured time, of both cells.
    """
    treatment, control = [
        _error_of_cell(claim, log_error, mean)
        for log_error, mean in zip(log_errors, means, strict=True)
    ]
    return [treatment.low - control.high, treatment.high - control.low]


def unchecked_times(result: StudyResult, cells: Sequence[Cell], claim: Claim) -> str:
    """Return why the times of a comparison are not checked, if checks were made and do not count.

    Empty if they are checked, need no check, or no check was made.
    """
    if not _needs_check(result, claim):
        return ""
    for cell in cells:
        reasons = [check.refused for check in _checks_of(result, cell)]
        if reasons and all(reasons):
            return reasons[0]
    return ""


def _needs_check(result: StudyResult, claim: Claim) -> bool:
    return measure_of(claim.measure).depends_on_times and result.is_simulated


def _error_of_cell(claim: Claim, log_error: _Interval, mean: float) -> _Interval:
    """Return by how much an error of times moves a cell's measure, or the logarithm of a ratio.

    `log_error`: the logarithm of right over measured time.
    """
    measure = measure_of(claim.measure)
    if measure.is_ratio:
        # A longer time raises the difference only if the measure is a time that is claimed to grow.
        is_longer_positive = measure.lower_is_better and claim.comparison == "grows"
        sign = 1 if is_longer_positive else -1
        ends = [sign * measure.power_of_time * end for end in log_error]
    else:
        # Such a measure is a share of the time, which a longer time divides.
        ends = [mean * math.expm1(-end) for end in log_error]
    return _Interval(min(ends), max(ends))


def _log_resolution(
    result: StudyResult, cell: Cell, claim: Claim, seeds: Sequence[int]
) -> _Interval:
    """Return the logarithm of a cell's right time over that of the validation that shows it.

    A run reaches an accuracy at some time after the last validation below it and up to the first
    one at it. So the mean of the logarithms over the seeds lies in the interval of their means at
    both ends (the identification region of a mean of interval data; Manski and Tamer 2002).
    Validations of more seeds are as far apart, so that it does not shrink with their number.
    """
    measure = measure_of(result.resolved(cell, claim.measure))
    if measure.lower_bound is None or measure.compute is None:
        return _NONE
    runs = [run for run in result.runs_of(cell, claim.tuning) if run.seed in seeds]
    if not runs:
        return _NONE
    latest = np.array([measure.compute(run, run) for run in runs])
    earliest = np.array([measure.lower_bound(run) for run in runs])
    # Times of 0 and infinite ones have no ratio; the comparison reports them.
    with np.errstate(all="ignore"):
        log_widths = np.log(latest) - np.log(earliest)
    return _Interval(-float(log_widths.mean()), 0.0)


def _log_delay(result: StudyResult, cell: Cell, claim: Claim) -> _Interval:
    """Return the logarithm of real over simulated time of a cell's step; infinite without a check.

    A check of the same method and time of a step measured by how much a step is longer than
    simulated [s]. This gap, less and plus its spread, is added to the cell's simulated time. One
    worker sends no messages and has no delay.
    """
    if result.settings(cell).workers == 1:
        return _Interval(0.0, 0.0)
    simulated_seconds = result.numbers(cell, "seconds_per_batch", claim.tuning).mean()
    gaps: list[float] = []
    for check in _checks_of(result, cell):
        if not check.refused:
            gaps += [check.gap - check.spread, check.gap + check.spread]
    if not gaps:
        return _UNKNOWN
    # A relative gap of -1 or less would be a time of 0 or less, which has no logarithm.
    log_delays = [math.log1p(max(gap / simulated_seconds, -0.99)) for gap in gaps]
    return _Interval(min(log_delays), max(log_delays))


def _checks_of(result: StudyResult, cell: Cell) -> list[TimeCheck]:
    """Return the checks of a cell's method and time of a step."""
    cluster = result.study.cluster_settings(cell.plain_values)
    step_seconds = cluster.step_of(result.settings(cell).batch_size)
    return [
        check
        for check in result.checks
        if check.method == cell.method and math.isclose(check.step_seconds, step_seconds)
    ]
