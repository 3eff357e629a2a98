"""By how much simulated times may be wrong, from checks on this machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hep_studies.cells import Cell
from hep_studies.measures import measure_of
from hep_studies.study import Claim
from hep_studies.study_result import StudyResult, TimeCheck


class _Interval(NamedTuple):
    """The lowest and the highest value of an error."""

    low: float
    high: float


_UNKNOWN = _Interval(-math.inf, math.inf)


def time_shifts(
    result: StudyResult, cells: Sequence[Cell], claim: Claim, means: Iterable[float]
) -> tuple[float, float]:
    """Return by how much, at least and at most, real times would move a difference.

    The delay of a cell is the logarithm of real over simulated time, as a check on this machine
    measures it, with the spread of the check. The function returns the lowest and the highest of
    these moves: none, as if the simulated times were exact; that of both delays; and, for different
    numbers of workers, which are not delayed alike, that of either delay alone. Both are
    infinite without a check that counts.

    Args:
        result: The study.
        cells: Treatment and control.
        claim: The claim, which has the measure.
        means: Mean of the measure over the seeds, of each cell.

    Returns:
        The lowest and highest move: of logarithms for times and rates, else of the measure.
    """
    if not _needs_check(result, claim):
        return 0.0, 0.0
    delays = [_log_delay(result, cell, claim) for cell in cells]
    if _UNKNOWN in delays:
        return _UNKNOWN

    errors = [_error_of_cell(claim, delay, mean) for delay, mean in zip(delays, means, strict=True)]
    treatment, control = errors
    moves = [0.0, treatment.low - control.high, treatment.high - control.low]
    if len({result.settings(cell).workers for cell in cells}) > 1:
        moves += [*treatment, -control.low, -control.high]
    return min(moves), max(moves)


def unchecked_times(result: StudyResult, cells: Sequence[Cell], claim: Claim) -> str:
    """Return why the times of a comparison are not checked, if checks were made and do not count.

    Empty if they are checked, need no check, or no check was made.
    """
    if not _needs_check(result, claim):
        return ""
    for cell in cells:
        reasons = [result.reason_against(check) for check in _checks_of(result, cell)]
        if reasons and all(reasons):
            return reasons[0]
    return ""


def _needs_check(result: StudyResult, claim: Claim) -> bool:
    return measure_of(claim.measure).depends_on_times and result.is_simulated


def _error_of_cell(claim: Claim, delay: _Interval, mean: float) -> _Interval:
    """Return by how much a delay moves the measure of a cell, or its logarithm if it is a ratio."""
    measure = measure_of(claim.measure)
    if measure.is_ratio:
        # A longer time raises the difference only if the measure is a time that is claimed to grow.
        is_longer_positive = measure.lower_is_better and claim.comparison == "grows"
        sign = 1 if is_longer_positive else -1
        ends = [sign * measure.power_of_time * log_delay for log_delay in delay]
    else:
        # Such a measure is a share of the time, which a longer time divides.
        ends = [mean * math.expm1(-log_delay) for log_delay in delay]
    return _Interval(min(ends), max(ends))


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
        if not result.reason_against(check):
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
