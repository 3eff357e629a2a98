"""Verdicts on the claims of a source: functions of differences between methods and of their intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from hep_studies.measures import measure_of
from hep_studies.study import Claim
from hep_studies.study_result import Cell, StudyResult

#: Probability of one or more wrong verdicts in a family.
LEVEL: Final = 0.05
#: What needs more than this times the seeds and events of a study is not decidable by it.
MOST_DATA: Final = 10.0
_SMALLEST_SPREAD: Final = 1e-6


class Verdict(StrEnum):
    """What the runs say about a claim."""

    CONFIRMED = "confirmed"
    EQUIVALENT = "equivalent"
    SMALLER = "smaller than claimed"
    CONTRADICTED = "contradicted"
    UNDECIDED = "undecided"
    NOT_DECIDABLE = "not decidable here"
    WITHDRAWN = "withdrawn"


#: Verdicts by which the claim holds, and by which it does not.
HOLDS: Final = (Verdict.CONFIRMED, Verdict.EQUIVALENT)
FAILS: Final = (Verdict.SMALLER, Verdict.CONTRADICTED)
#: Verdicts that leave it open.
OPEN: Final = (Verdict.UNDECIDED, Verdict.NOT_DECIDABLE, Verdict.WITHDRAWN)


class Difference(NamedTuple):
    """Mean of paired differences, and the parts of its variance: seeds are a sample, and so are test events.

    The parts come from the analysis of variance of the differences (num_seeds, num_events), which gives what a two-way
    bootstrap estimates, without its bias for few seeds.
    """

    value: float
    of_seed: float
    """Variance of a seed's mean; NaN for one seed."""
    num_seeds: int
    of_event: float = 0.0
    """Variance of an event's mean, as far as common to all seeds."""
    num_events: int = 0
    """0 where seeds are the only sample."""
    shifts: tuple[float, float] = (0.0, 0.0)
    """Between which all seeds may be wrong in common, such as by simulated times; more data do not change it."""

    @classmethod
    def of_numbers(cls, values: ArrayLike, *, shifts: tuple[float, float] = (0.0, 0.0)) -> Self:
        """Of a number for each seed, (num_seeds,)."""
        given = np.asarray(values, dtype=np.float64)
        if len(given) == 0 or not np.isfinite(given).all():
            return cls(math.nan, math.nan, len(given))
        # Simulated times may be equal to the last bit: a spread of 0 would make every difference certain.
        spread = max(float(given.var(ddof=1)), _SMALLEST_SPREAD**2) if len(given) > 1 else math.nan
        return cls(float(given.mean()), spread, len(given), shifts=shifts)

    @classmethod
    def of_events(cls, table: ArrayLike) -> Self:
        """Of a number for each seed and test event, (num_seeds, num_events)."""
        values = np.asarray(table, dtype=np.float64)
        if len(values) < 2:
            return cls(float(values.mean()) if len(values) else math.nan, math.nan, len(values))
        seeds, events = values.shape
        by_seed, by_event = values.mean(axis=1), values.mean(axis=0)
        rest = np.square(values - by_seed[:, None] - by_event + values.mean()).sum() / (
            (seeds - 1) * (events - 1)
        )
        # No spread of an accuracy is known better than one event.
        of_seed = max(float(by_seed.var(ddof=1)), 1 / events**2)
        return cls(
            float(values.mean()),
            of_seed,
            seeds,
            max(float(by_event.var(ddof=1) - rest / seeds), 0.0),
            events,
        )

    def half_width(self, level: float = LEVEL) -> float:
        """Half of the interval that misses the true difference at most so often, without what is in common.

        Each part of the variance has the quantile of Student's t for its own degrees of freedom (Banerjee 1961).
        """
        if not math.isfinite(self.of_seed):
            return math.inf
        parts = [(self.of_seed, self.num_seeds), (self.of_event, self.num_events)]
        squares = [
            part / n * float(stats.t.isf(level / 2, n - 1)) ** 2 for part, n in parts if n > 1
        ]
        return math.sqrt(sum(squares))

    def ends(self, level: float = LEVEL) -> tuple[float, float]:
        """Those of its interval."""
        width = self.half_width(level)
        return self.value - width + self.shifts[0], self.value + width + self.shifts[1]


def verdict_of(
    value: float,
    width: float,
    least: float,
    *,
    shifts: tuple[float, float] = (0.0, 0.0),
    of_equals: bool = False,
) -> Verdict:
    """The verdict on a difference with this half width of its interval, to whose ends the shifts are added.

    It is given as soon as the interval lies within its region of the true difference: more data decide an open claim,
    or turn a smaller effect into one of the other direction, as long as the interval has the truth. `least`: the
    difference that confirms a claimed one, or that contradicts a claim of equals.

    Examples:
        >>> [str(verdict_of(value, 1, 3)) for value in (5, 3.5, 1, -2)]
        ['confirmed', 'undecided', 'smaller than claimed', 'contradicted']
        >>> [str(verdict_of(value, 1, 3, of_equals=True)) for value in (1, -3.5, -5)]
        ['equivalent', 'undecided', 'contradicted']
    """
    for times in (1.0, MOST_DATA):
        part = width / math.sqrt(times)
        if decided := _decided(
            value - part + shifts[0], value + part + shifts[1], least, of_equals=of_equals
        ):
            return decided if times == 1.0 else Verdict.UNDECIDED
    return Verdict.NOT_DECIDABLE


def _decided(low: float, high: float, least: float, *, of_equals: bool) -> Verdict | None:
    if of_equals:
        if max(-low, high) < least:
            return Verdict.EQUIVALENT
        return Verdict.CONTRADICTED if max(low, -high) >= least else None
    if low >= least:
        return Verdict.CONFIRMED
    if high < least:
        return Verdict.CONTRADICTED if high < 0 else Verdict.SMALLER
    return None


def holm(decides: Sequence[Callable[[float], bool]]) -> list[float]:
    """The level at which each comparison of a family is judged (Holm 1979), of whether its interval at a level decides.

    Examples:
        >>> [round(level, 4) for level in holm([lambda level: level > 0.02, lambda level: level > 0.9])]
        [0.025, 0.05]
    """
    levels, left = [LEVEL] * len(decides), set(range(len(decides)))
    while left:
        level = LEVEL / len(left)
        done = {number for number in left if decides[number](level)}
        for number in left:
            levels[number] = level
        left -= done
        if not done:
            break
    return levels


def together(found: Sequence[Verdict], *, share: float = 1.0) -> Verdict:
    """The verdict on a claim of several comparisons, of which this share has to hold.

    Examples:
        >>> both = [Verdict.CONFIRMED, Verdict.CONTRADICTED]
        >>> str(together(both)), str(together(both, share=0.5))
        ('contradicted', 'confirmed')
    """
    # 0.55 * 20 is above 11.
    needed = math.ceil(share * len(found) - 1e-9)
    holds, fails = (sum(each in kind for each in found) for kind in (HOLDS, FAILS))
    if not found:
        return Verdict.NOT_DECIDABLE
    if holds >= needed:
        return Verdict.EQUIVALENT if Verdict.EQUIVALENT in found else Verdict.CONFIRMED
    if len(found) - fails < needed:
        is_other_direction = len(found) - found.count(Verdict.CONTRADICTED) < needed
        return Verdict.CONTRADICTED if is_other_direction else Verdict.SMALLER
    open_ = found.count(Verdict.UNDECIDED)
    can = holds + open_ >= needed or len(found) - fails - open_ < needed
    return Verdict.UNDECIDED if can else Verdict.NOT_DECIDABLE


class Pair(NamedTuple):
    """Two cells that are compared: positive where the first is better, or, of a quantity that grows, higher."""

    this: Cell
    other: Cell
    claim: Claim
    difference: Difference
    """Of logarithms for times and rates."""
    seeds: tuple[int, int]
    """Number of seeds of which both have a number, and of all."""
    why_not: str
    """Why the two are not compared; empty if they are."""
    level: float = LEVEL
    """The level of its interval, after Holm's correction."""

    @property
    def verdict(self) -> Verdict:
        """The verdict on this comparison."""
        return self.verdict_at(self.level, self.difference.shifts)

    def verdict_at(self, level: float, shifts: tuple[float, float]) -> Verdict:
        """The verdict at another level of the interval, or without the error that simulated times share."""
        if self.why_not:
            return Verdict.NOT_DECIDABLE
        value, width, is_of_equals = (
            self.difference.value,
            self.difference.half_width(level),
            self.claim.is_of_equals,
        )
        return verdict_of(value, width, least_of(self.claim), shifts=shifts, of_equals=is_of_equals)

    def is_decided(self, level: float) -> bool:
        """Whether its interval at a level decides."""
        return self.verdict_at(level, self.difference.shifts) not in OPEN


class JudgedClaim(NamedTuple):
    """A claim with its comparisons."""

    claim: Claim
    verdict: Verdict
    pairs: list[Pair]
    reason: str
    """Why it is not decidable here, or withdrawn; else empty."""

    @property
    def decisive(self) -> Pair | None:
        """The comparison on which the claim depends: of the share that has to hold, the least."""
        pairs = [
            pair for pair in self.pairs if not pair.why_not and math.isfinite(pair.difference.value)
        ]
        order = sorted(
            pairs,
            key=lambda pair: (abs if self.claim.is_of_equals else float.__neg__)(
                pair.difference.value
            ),
        )
        return (
            order[math.ceil(self.claim.share_of_cells * len(order) - 1e-9) - 1] if order else None
        )


def least_of(claim: Claim) -> float:
    """The least difference that confirms a claim: the claimed size less the margin, and at least the margin.

    For a claim of equals it is the margin. Of logarithms for times and rates.
    """
    if measure_of(claim.measure).is_ratio:
        return max(math.log(claim.size or 1.0) - math.log1p(claim.least), math.log1p(claim.least))
    return max((claim.size or 0.0) - claim.least, claim.least)


def judge(result: StudyResult) -> list[JudgedClaim]:
    """The verdicts on the claims of a study; claims of a topic are a family in Holm's correction.

    A withdrawn claim stays in its family, so that the intervals of the others stay as wide as they were.
    """
    pairs = [pair for claim in result.study.claims for pair in _pairs(result, claim)]
    for topic in {claim.topic for claim in result.study.claims}:
        family = [number for number, pair in enumerate(pairs) if pair.claim.topic == topic]
        for number, level in zip(
            family, holm([pairs[number].is_decided for number in family]), strict=True
        ):
            pairs[number] = pairs[number]._replace(level=level)
    return [
        _judged(result, claim, [pair for pair in pairs if pair.claim is claim])
        for claim in result.study.claims
    ]


def _judged(result: StudyResult, claim: Claim, pairs: list[Pair]) -> JudgedClaim:
    if claim.withdrawn:
        return JudgedClaim(claim, Verdict.WITHDRAWN, [], claim.withdrawn)
    tested = [pair for pair in pairs if not pair.why_not]
    verdict = together([pair.verdict for pair in tested], share=claim.share_of_cells)
    exact = together(
        [pair.verdict_at(pair.level, (0.0, 0.0)) for pair in tested], share=claim.share_of_cells
    )
    reason = claim.not_decidable
    if not reason and result.study.demonstration and measure_of(claim.measure).learns:
        reason = f"a demonstration: {result.study.demonstration}"
    if reason:
        verdict = Verdict.NOT_DECIDABLE
    elif not tested:
        reason = pairs[0].why_not if pairs else "not run"
    elif verdict is Verdict.NOT_DECIDABLE:
        is_known = all(math.isfinite(pair.difference.value) for pair in tested)
        needs_more = exact is Verdict.NOT_DECIDABLE
        reason = "needs over ten times the data" if needs_more else "times not checked well enough"
        reason = reason if is_known else "a run diverged or ended too early"
    return JudgedClaim(claim, verdict, pairs, reason)


def _pairs(result: StudyResult, claim: Claim) -> Iterator[Pair]:
    groups: dict[Cell, list[Cell]] = {}
    for cell in result.cells([claim.this["method"]], claim.this):
        others = [result.like(cell, selected) for selected in claim.than]
        yield from (
            _pair(result, cell, other, claim)
            for other in others
            if other is not None and other != cell
        )
        groups.setdefault(cell.without(claim.over), []).append(cell)
    for first, *rest in groups.values() if claim.over else ():
        # `flat`: every value of the key against the first; `grows`: the last against the first.
        yield from (
            _pair(result, cell, first, claim)
            for cell in (rest if claim.kind == "flat" else rest[-1:])
        )


def _pair(result: StudyResult, this: Cell, other: Cell, claim: Claim) -> Pair:
    """Two cells over the seeds of which both have a number, test event by test event for the test accuracy."""
    measure, both_cells = measure_of(claim.measure), (this, other)
    seeds = sorted({run.seed for cell in both_cells for run in result.runs_of(cell, claim.at)})[
        : claim.seeds
    ]
    numbers = pd.concat(
        [result.numbers(cell, claim.measure, claim.at) for cell in both_cells], axis=1, join="inner"
    )
    values = numbers[numbers.index.isin(seeds)].sort_index()
    why_not = _why_not(result, both_cells)
    if claim.measure == "test_accuracy":
        correct = [result.correct(cell, claim.at) for cell in both_cells]
        difference = Difference.of_events(
            [correct[0][seed] - correct[1][seed] for seed in values.index]
        )
    else:
        if measure.is_ratio:
            zeros = [
                result.title(cell)
                for cell, is_zero in zip(both_cells, (values <= 0).any(), strict=True)
                if is_zero
            ]
            why_not = why_not or (
                f"a ratio to 0 says nothing, {' and '.join(zeros)}" if zeros else ""
            )
            with np.errstate(all="ignore"):
                values = np.log(values)
        sign = -1.0 if measure.lower_is_better and claim.kind != "grows" else 1.0
        shifts = _shifts(result, both_cells, claim, values.mean())
        difference = Difference.of_numbers(sign * (values[0] - values[1]), shifts=shifts)
    if claim.measure == "diverged" and len(values):
        # Of numbers that are 0 or 1: that all seeds agree is known no better than one more of them.
        difference = difference._replace(of_seed=max(difference.of_seed, 1 / len(values)))
    return Pair(this, other, claim, difference, (len(values), len(seeds)), why_not)


def _why_not(result: StudyResult, cells: Sequence[Cell]) -> str:
    """Why two cells are not compared; empty if they are."""
    for cell in cells:
        if idle := result.never_acted(cell):
            return f"no {', '.join(idle).replace('_', ' ')} of {result.title(cell)}"
    seen = [result.events_seen(cell) for cell in cells]
    if result.study.times_only is None and all(seen) and seen[0] != seen[1]:
        return f"{' and '.join(seen)} events were seen"
    return ""


def _shifts(
    result: StudyResult, cells: Sequence[Cell], claim: Claim, means: Iterable[float]
) -> tuple[float, float]:
    """Between which a difference may be wrong for all seeds together: of logarithms for ratios, of parts for shares.

    One end is that of the simulated times, the other that of the checked ones. Workers of unlike numbers are not held
    up alike, so that each of the two cells counts alone, too. `means`: of each cell, over its seeds.
    """
    measure = measure_of(claim.measure)
    if not measure.of_time or not result.is_simulated:
        return 0.0, 0.0
    slower = [_slower(result, cell) for cell in cells]
    if not all(map(math.isfinite, slower)):
        return -math.inf, math.inf
    if measure.is_ratio:
        grows = measure.lower_is_better and claim.kind == "grows"
        this, other = (measure.power_of_time * (each if grows else -each) for each in slower)
    else:
        this, other = (mean * math.expm1(-slow) for mean, slow in zip(means, slower, strict=True))
    ends = [0.0, this - other]
    if len({result.settings(cell).workers for cell in cells}) > 1:
        ends += [this, -other]
    return min(ends), max(ends)


def _slower(result: StudyResult, cell: Cell) -> float:
    """Logarithm of the factor by which the steps of a cell take longer than simulated; infinite without a check."""
    train = result.settings(cell)
    if train.workers == 1:
        return 0.0
    step = result.study.cluster_settings(cell.plain).step_of(train.batch_size)
    checks = [
        each
        for each in result.checks
        if each.method == cell.method and math.isclose(each.step_seconds, step)
    ]
    seconds = result.numbers(cell, "seconds_per_batch").mean()
    return max(
        (math.log1p(max(each.gap / seconds, -0.99)) for each in checks), key=abs, default=math.inf
    )
