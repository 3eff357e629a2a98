"""Compares the methods of a study, and judges the claims of its source by these comparisons."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.studies.measures import Measure, measure_of
from training.studies.study import Claim
from training.studies.study_result import Cell, StudyResult
from training.studies.verdicts import LEVEL, OPEN, Difference, Interval, Verdict, holm, together, verdict_of


class Pair(NamedTuple):
    """Two cells that are compared: positive where the first is better, or, of a quantity that grows, higher."""

    this: Cell
    other: Cell
    claim: Claim
    difference: Difference
    seeds: tuple[int, int]
    """Number of seeds of which both have a number, and of all."""
    why_not: str
    """Why the two are not compared; empty if they are."""
    level: float = LEVEL
    """The level of its interval, after Holm's correction."""

    @property
    def measure(self) -> Measure:
        """What is compared."""
        return measure_of(self.claim.measure)

    @property
    def found(self) -> Interval:
        """The difference with its interval; of logarithms for times and rates."""
        return self.difference.at(self.level)

    @property
    def verdict(self) -> Verdict:
        """The verdict on this comparison."""
        return self.with_interval(self.found)

    def with_interval(self, found: Interval) -> Verdict:
        """The verdict if this were the interval."""
        if self.why_not:
            return Verdict.NOT_DECIDABLE
        return verdict_of(found, least_of(self.claim), of_equals=self.claim.is_of_equals)

    @property
    def if_times_were_exact(self) -> Verdict:
        """The verdict without the error that simulated times share."""
        return self.with_interval(self.difference._replace(shifts=(0.0, 0.0)).at(self.level))


class JudgedClaim(NamedTuple):
    """A claim with its comparisons."""

    claim: Claim
    verdict: Verdict
    pairs: list[Pair]
    reason: str
    """Why it is not decidable here; else empty."""

    @property
    def decisive(self) -> Pair | None:
        """The comparison on which the claim depends: of the share that has to hold, the least."""
        pairs = [pair for pair in self.pairs if not pair.why_not and math.isfinite(pair.difference.value)]
        order = sorted(
            pairs, key=lambda pair: (abs if self.claim.is_of_equals else float.__neg__)(pair.difference.value)
        )
        return order[math.ceil(self.claim.share_of_cells * len(order) - 1e-9) - 1] if order else None


def least_of(claim: Claim) -> float:
    """The least difference that confirms a claim: the claimed size less the margin, and at least the margin.

    For a claim of equals it is the margin. Of logarithms for times and rates.
    """
    measure = measure_of(claim.measure)
    margin = measure.margin if claim.margin is None else claim.margin
    if measure.is_ratio:
        return max(math.log(claim.size or 1.0) - math.log1p(margin), math.log1p(margin))
    return max((claim.size or 0.0) - margin, margin)


def judge(result: StudyResult) -> list[JudgedClaim]:
    """The verdicts on the claims of a study; claims of a topic are a family in Holm's correction."""
    claims = result.study.claims
    pairs = [list(_pairs(result, claim)) for claim in claims]
    for topic in {claim.topic for claim in claims}:
        numbers = [number for number, claim in enumerate(claims) if claim.topic == topic]
        corrected = iter(_corrected([pair for number in numbers for pair in pairs[number]]))
        for number in numbers:
            pairs[number] = [next(corrected) for _ in pairs[number]]
    return [_judged(result, claim, found) for claim, found in zip(claims, pairs, strict=True)]


def _corrected(family: Sequence[Pair]) -> list[Pair]:
    levels = holm([lambda level, pair=pair: pair._replace(level=level).verdict not in OPEN for pair in family])  # type: ignore[misc]
    return [pair._replace(level=level) for pair, level in zip(family, levels, strict=True)]


def _judged(result: StudyResult, claim: Claim, pairs: list[Pair]) -> JudgedClaim:
    tested = [pair for pair in pairs if not pair.why_not]
    verdict = together([pair.verdict for pair in tested], share=claim.share_of_cells)
    is_demonstration = result.study.demonstration and measure_of(claim.measure).learns
    reason = claim.not_decidable or (f"a demonstration: {result.study.demonstration}" if is_demonstration else "")
    if reason:
        return JudgedClaim(claim, Verdict.NOT_DECIDABLE, pairs, reason)
    if not tested:
        return JudgedClaim(claim, verdict, pairs, pairs[0].why_not if pairs else "not run")
    if verdict is not Verdict.NOT_DECIDABLE:
        return JudgedClaim(claim, verdict, pairs, "")
    exact = together([pair.if_times_were_exact for pair in tested], share=claim.share_of_cells)
    if not all(math.isfinite(pair.difference.value) for pair in tested):
        return JudgedClaim(claim, verdict, pairs, "a run diverged or ended too early")
    is_of_times = exact is not Verdict.NOT_DECIDABLE
    return JudgedClaim(
        claim, verdict, pairs, "times not checked well enough" if is_of_times else "needs over ten times the data"
    )


def _pairs(result: StudyResult, claim: Claim) -> Iterator[Pair]:
    cells = result.chosen(claim.this)
    if claim.over is None:
        for cell in cells:
            others = [result.like(cell, selected) for selected in claim.than]
            yield from (_pair(result, cell, other, claim) for other in others if other is not None and other != cell)
        return
    groups: dict[Cell, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.without(claim.over), []).append(cell)
    for first, *rest in groups.values():
        # `flat`: every value of the key against the first; `grows`: the last against the first.
        yield from (_pair(result, cell, first, claim) for cell in (rest if claim.kind == "flat" else rest[-1:]))


def _pair(result: StudyResult, this: Cell, other: Cell, claim: Claim) -> Pair:
    """Two cells over the seeds of which both have a number, test event by test event for the test accuracy."""
    measure, both_cells = measure_of(claim.measure), (this, other)
    seeds = sorted({run.seed for cell in both_cells for run in result.runs_of(cell, claim.at)})[: claim.seeds]
    numbers = [result.numbers(cell, claim.measure, claim.at) for cell in both_cells]
    both = [seed for seed in seeds if all(seed in each.index for each in numbers)]
    why_not = _why_not(result, both_cells)
    values = [each.loc[both].to_numpy() for each in numbers]
    if claim.measure == "test_accuracy":
        correct = [result.correct(cell, claim.at) for cell in both_cells]
        table = [correct[0][seed] - correct[1][seed] for seed in both]
        return Pair(this, other, claim, Difference.of_events(table), (len(both), len(seeds)), why_not)
    if measure.is_ratio:
        zeros = [f"{result.title(cell)}" for cell, each in zip(both_cells, values, strict=True) if (each <= 0).any()]
        why_not = why_not or (f"a ratio to 0 says nothing, {' and '.join(zeros)}" if zeros else "")
        with np.errstate(all="ignore"):
            values = [np.log(each) for each in values]
    sign = -1.0 if measure.lower_is_better and claim.kind != "grows" else 1.0
    with np.errstate(invalid="ignore"):
        difference = Difference.of_numbers(
            sign * (values[0] - values[1]), shifts=_shifts(result, both_cells, claim, values)
        )
    if claim.measure == "diverged" and both:
        # Of numbers that are 0 or 1: that all seeds agree is known no better than one more of them.
        difference = difference._replace(of_seed=max(difference.of_seed, 1 / len(both)))
    return Pair(this, other, claim, difference, (len(both), len(seeds)), why_not)


def _why_not(result: StudyResult, cells: Sequence[Cell]) -> str:
    """Why two cells are not compared; empty if they are."""
    for cell in cells:
        if idle := result.never_acted(cell):
            return f"no {', '.join(idle).replace('_', ' ')} of {result.title(cell)}"
    seen = [result.events_seen(cell) for cell in cells]
    if result.study.times_only is None and all(seen) and seen[0] != seen[1]:
        return f"{' and '.join(' to '.join(f'{end:,}' for end in each) for each in seen)} events were seen"
    return ""


def _shifts(
    result: StudyResult, cells: Sequence[Cell], claim: Claim, values: Sequence[NDArray[np.float64]]
) -> tuple[float, float]:
    """Between which a difference may be wrong for all seeds together: of logarithms for ratios, of parts for shares.

    One end is that of the simulated times, the other that of the checked ones, in which each step takes longer by what
    the check found. Workers of unlike numbers are not held up alike, so that each of the two cells counts alone, too.
    """
    measure = measure_of(claim.measure)
    if not measure.of_time or not result.is_simulated:
        return 0.0, 0.0
    slower = [result.slower(cell) for cell in cells]
    if not all(map(math.isfinite, slower)):
        return -math.inf, math.inf
    if measure.is_ratio:
        grows = measure.lower_is_better and claim.kind == "grows"
        this, other = (measure.power_of_time * (each if grows else -each) for each in slower)
    else:
        this, other = (float(np.mean(each)) * math.expm1(-slow) for each, slow in zip(values, slower, strict=True))
    ends = [0.0, this - other]
    if len({result.settings(cell).workers for cell in cells}) > 1:
        ends += [this, -other]
    return min(ends), max(ends)
