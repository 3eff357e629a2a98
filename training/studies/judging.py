"""Compares the methods of a study, and judges the claims of its source by these comparisons."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from training.studies.measures import measure_of
from training.studies.statistics import LEVEL, Difference, Judgement, Word, points, verdicts
from training.studies.study import Claim
from training.studies.study_result import Cell, StudyResult


class Comparison(NamedTuple):
    """Two cells to compare in a measure."""

    this: Cell
    other: Cell
    measure: str
    shift: float = 0.0
    """The difference to exceed: of logarithms for times and rates."""
    margin: float | None = None
    """The difference that counts as none; None for that of the measure."""


class ClaimVerdict(StrEnum):
    """What the runs say about a claim."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    UNDECIDED = "undecided"
    NOT_TESTED = "not tested"


class JudgedClaim(NamedTuple):
    """A claim with its comparisons."""

    claim: Claim
    verdict: ClaimVerdict
    judged: dict[Comparison, Judgement]
    unknown: dict[Comparison, float]
    """What each difference may be wrong by for all seeds together, see `_unknown`."""

    @property
    def needed(self) -> str:
        """What would settle an undecided claim; else empty."""
        if self.verdict is not ClaimVerdict.UNDECIDED:
            return ""
        check = "times that the check of the simulator confirms"
        by_seeds = {each: _one(self.claim, judgement, 0.0) for each, judgement in self.judged.items()}
        if together([*by_seeds.values()], share=self.claim.share_of_cells) is not self.verdict:
            return check
        known = {each: _one(self.claim, judgement, self.unknown[each]) for each, judgement in self.judged.items()}
        lacking = [
            (each, judgement.difference, _distance(self.claim, judgement.difference), judgement.num_comparisons)
            for each, judgement in self.judged.items()
            if by_seeds[each] is ClaimVerdict.UNDECIDED
        ]
        # Those that take the fewest seeds, until they settle it: a share needs only some of them.
        for comparison, most, distance, number in sorted(lacking, key=lambda each: each[1].excess(*each[2:])):
            needed = most.needed(distance, number)
            by_seeds[comparison] = _tends_to(self.claim, most)
            if not distance <= self.unknown[comparison]:
                known[comparison] = by_seeds[comparison]
            if self._settled_by(by_seeds):
                return needed if self._settled_by(known) else f"{needed}, and {check}"
        return needed

    def _settled_by(self, found: Mapping[Comparison, ClaimVerdict]) -> bool:
        """Whether verdicts on its comparisons decide the claim."""
        return together([*found.values()], share=self.claim.share_of_cells) is not ClaimVerdict.UNDECIDED


def counted(found: Sequence[ClaimVerdict]) -> str:
    """How many claims have each verdict, in words.

    Examples:
        >>> counted([ClaimVerdict.UNDECIDED, ClaimVerdict.CONFIRMED, ClaimVerdict.UNDECIDED])
        '1 confirmed, 2 undecided'
    """
    return ", ".join(f"{found.count(verdict)} {verdict}" for verdict in ClaimVerdict if verdict in found)


def together(found: Sequence[ClaimVerdict], *, share: float = 1.0) -> ClaimVerdict:
    """The verdict on several as one: confirmed if this share of them is, by default all, and refuted if it cannot be.

    Examples:
        >>> verdicts = [ClaimVerdict.CONFIRMED, ClaimVerdict.CONFIRMED, ClaimVerdict.REFUTED]
        >>> str(together(verdicts)), str(together(verdicts, share=0.6))
        ('refuted', 'confirmed')
    """
    tested = [each for each in found if each is not ClaimVerdict.NOT_TESTED]
    if not tested:
        return ClaimVerdict.NOT_TESTED
    # 0.55 * 20 is above 11.
    needed = math.ceil(share * len(tested) - 1e-9)
    if tested.count(ClaimVerdict.CONFIRMED) >= needed:
        return ClaimVerdict.CONFIRMED
    is_possible = len(tested) - tested.count(ClaimVerdict.REFUTED) >= needed
    return ClaimVerdict.UNDECIDED if is_possible else ClaimVerdict.REFUTED


def judge(result: StudyResult) -> tuple[dict[Comparison, Judgement], list[JudgedClaim]]:
    """The verdicts on all comparisons of a study, and on its claims.

    All comparisons in one measure count together in the correction of Holm.
    """
    claimed = [[*_of_claim(result, claim)] for claim in result.study.claims]
    wanted = [*_with_reference(result)]
    out = left_out(result)
    claimed = [[each for each in comparisons if each not in out] for comparisons in claimed]
    wanted = [each for each in wanted if each not in out]
    wanted += [each for comparisons in claimed for each in comparisons]
    found: dict[Comparison, Judgement] = {}
    for measure in dict.fromkeys(each.measure for each in wanted):
        family = list(dict.fromkeys(each for each in wanted if each.measure == measure))
        found |= zip(family, verdicts([difference(result, each) for each in family]), strict=True)
    claims = []
    for claim, comparisons in zip(result.study.claims, claimed, strict=True):
        judged = {each: found[each] for each in comparisons}
        unknown = {each: _unknown(result, each) for each in comparisons}
        single = [_one(claim, judgement, unknown[each]) for each, judgement in judged.items()]
        verdict = together(single, share=claim.share_of_cells)
        claims.append(JudgedClaim(claim, verdict, judged, unknown))
    return found, claims


def difference(result: StudyResult, comparison: Comparison) -> Difference:
    """The difference of two cells over the seeds that both have; positive where the first has the higher number.

    Accuracies are compared test event by test event, with the weights of the events; times and rates by the logarithm
    of their ratio. Without a seed in which neither diverged it is NaN.
    """
    measure = measure_of(comparison.measure)
    margin = measure.margin if comparison.margin is None else comparison.margin
    if measure.is_ratio:
        margin = math.log1p(margin)
    numbers = [result.numbers(cell, comparison.measure) for cell in comparison[:2]]
    seeds = common_seeds(result, comparison)
    if not seeds:
        return Difference.of_numbers([math.nan, math.nan], margin)
    if comparison.measure == "test_accuracy":
        this, other = (
            {run.seed: run.counts.is_correct for run in result.with_result(cell) if run.counts is not None}
            for cell in comparison[:2]
        )
        table = np.array([this[seed].astype(np.int8) - other[seed].astype(np.int8) for seed in seeds])
        weights = result.weights
        found = Difference.of(table if weights is None else table * (weights / weights.mean()))._replace(margin=margin)
    else:
        pairs = np.array([[each[seed] for each in numbers] for seed in seeds])
        pairs = np.log(pairs) if measure.is_ratio else pairs
        with np.errstate(invalid="ignore"):
            values = pairs[:, 0] - pairs[:, 1]
        found = Difference.of_numbers(values, margin)
        if comparison.measure == "diverged":
            # Of numbers that are 0 or 1: that all seeds agree is known no better than one more of them.
            found = found._replace(of_seed=np.maximum(found.of_seed, 1 / len(seeds)))
    return found._replace(value=found.value - comparison.shift)


def common_seeds(result: StudyResult, comparison: Comparison) -> list[int]:
    """The seeds of which both cells have a number."""
    this, other = (result.numbers(cell, comparison.measure) for cell in comparison[:2])
    return sorted(this.keys() & other.keys())


def left_out(result: StudyResult) -> dict[Comparison, str]:
    """The comparisons that `judge` leaves out, with the reason in a few words."""
    claimed = (each for claim in result.study.claims for each in _of_claim(result, claim))
    reasons = {each: _why_left_out(result, each) for each in (*_with_reference(result), *claimed)}
    return {each: why for each, why in reasons.items() if why}


def _why_left_out(result: StudyResult, comparison: Comparison) -> str:
    """Why two cells are not compared in a measure; empty if they are."""
    for cell in comparison[:2]:
        if idle := result.never_acted(cell):
            return f"not tested: no {', '.join(idle).replace('_', ' ')} of {result.title(cell)}"
    seen = [result.events_seen(cell) for cell in comparison[:2]]
    if result.study.times_only is None and all(seen) and seen[0] != seen[1]:
        numbers = (" to ".join(f"{end:,}" for end in dict.fromkeys((min(each), max(each)))) for each in seen)
        return f"not compared: {' and '.join(numbers)} events were seen"
    if zeros := _zeros(result, comparison):
        cells = (f"{result.title(cell)} (0 in {n} of {len(result.of(cell))} seeds)" for cell, n in zeros.items())
        return f"not compared: a ratio to 0 says nothing, {', '.join(cells)}"
    return ""


def effect(comparison: Comparison, judgement: Judgement) -> tuple[str, str]:
    """A difference and its 95 % interval in words: points of accuracy, factors, or plain numbers."""
    measure = measure_of(comparison.measure)
    value = float(judgement.difference.value) + comparison.shift
    if not math.isfinite(value):
        return "a run diverged or ended too early", "?"
    width = float(judgement.difference.half_width())
    ends = (value - width, value + width)

    def text(number: float) -> str:
        if measure.is_ratio:
            return f"x {math.exp(number):#.3g}"
        return f"{100 * number:+.2f}" if measure.percent else f"{number:+.3g}"

    said = points(value, sign=True) if measure.percent else text(value)
    return said, "?" if math.isnan(width) else f"{text(ends[0])} to {text(ends[1])}"


def in_words(comparison: Comparison, judgement: Judgement) -> str:
    """The verdict on a comparison; a shorter time is better."""
    if measure_of(comparison.measure).lower_is_better:
        opposite = {Word.BETTER: Word.WORSE, Word.WORSE: Word.BETTER}
        judgement = judgement._replace(word=opposite.get(judgement.word, judgement.word))
    return str(judgement)


def _zeros(result: StudyResult, comparison: Comparison) -> dict[Cell, int]:
    """Number of seeds in which a cell has no logarithm, for the cells of a ratio that have such seeds."""
    if not measure_of(comparison.measure).is_ratio:
        return {}
    numbers = {cell: result.numbers(cell, comparison.measure).values() for cell in comparison[:2]}
    return {cell: zeros for cell, found in numbers.items() if (zeros := sum(number <= 0 for number in found))}


def _unknown(result: StudyResult, comparison: Comparison) -> float:
    """What a difference may be wrong by for all seeds together: of logarithms for ratios, of parts for shares."""
    measure = measure_of(comparison.measure)
    if not measure.of_time:
        return 0.0
    error = result.time_error(comparison.this, comparison.other, of_ratio=measure.is_ratio)
    return measure.power_of_time * error if measure.is_ratio else 1 - math.exp(-error)


def _with_reference(result: StudyResult) -> Iterator[Comparison]:
    """Every cell against the reference with the same values of varied keys."""
    for measure in result.study.compared:
        for cell in result.cells():
            other = result.like(cell, result.study.reference)
            if other is not None and cell.method != result.study.reference:
                yield Comparison(cell, other, measure)


def _of_claim(result: StudyResult, claim: Claim) -> Iterator[Comparison]:
    measure = measure_of(claim.measure)
    cells = result.chosen(claim.this)
    if claim.over is not None:
        yield from _along(cells, claim)
        return
    shift = 0.0
    if claim.at_least is not None:
        shift = math.log(claim.at_least) if measure.is_ratio else claim.at_least
    for cell in cells:
        for selected in claim.than:
            other = result.like(cell, selected)
            if other is not None and other != cell:
                yield Comparison(cell, other, claim.measure, -shift if measure.lower_is_better else shift, claim.within)


def _along(cells: Sequence[Cell], claim: Claim) -> Iterator[Comparison]:
    """`flat`: every value of the key against the first; `grows`: the last against the first."""
    groups: dict[Cell, list[Cell]] = {}
    for cell in cells:
        rest = tuple(pair for pair in cell.values if pair[0] != claim.over)
        groups.setdefault(Cell(cell.method, rest), []).append(cell)
    for group in groups.values():
        others = group[1:] if claim.kind == "flat" else group[-1:]
        for each in others:
            if each != group[0]:
                yield Comparison(each, group[0], claim.measure, margin=claim.within)


def _one(claim: Claim, judgement: Judgement, unknown: float) -> ClaimVerdict:
    """The verdict on one comparison of a claim.

    Args:
        claim: The claim.
        judgement: The verdict on the difference over the seeds.
        unknown: What the difference may be wrong by for all seeds together, see `_unknown`.
    """
    value, margin = float(judgement.difference.value), judgement.difference.margin
    differs = judgement.p_different < LEVEL and abs(value) > unknown
    same = judgement.p_equivalent < LEVEL and abs(value) + unknown <= margin
    if claim.kind in ("equivalent", "flat"):
        if same:
            return ClaimVerdict.CONFIRMED
        is_beyond = judgement.p_beyond < LEVEL and abs(value) - unknown > margin
        return ClaimVerdict.REFUTED if is_beyond else ClaimVerdict.UNDECIDED
    if differs:
        return _by_sign(claim, value)
    return ClaimVerdict.REFUTED if same and claim.at_least is None else ClaimVerdict.UNDECIDED


def _by_sign(claim: Claim, value: float) -> ClaimVerdict:
    """The verdict on a comparison that is sure to differ in this direction."""
    is_higher_expected = claim.kind == "grows" or not measure_of(claim.measure).lower_is_better
    return ClaimVerdict.CONFIRMED if (value > 0) == is_higher_expected else ClaimVerdict.REFUTED


def _tends_to(claim: Claim, difference: Difference) -> ClaimVerdict:
    """What `_one` says with enough seeds and events, if the true difference is the measured one."""
    value, margin = float(difference.value), difference.margin
    if not math.isfinite(value):
        return ClaimVerdict.UNDECIDED
    if claim.kind in ("equivalent", "flat"):
        return ClaimVerdict.CONFIRMED if abs(value) <= margin else ClaimVerdict.REFUTED
    if claim.at_least is None and _distance(claim, difference) > abs(value):
        return ClaimVerdict.REFUTED
    return _by_sign(claim, value)


def _distance(claim: Claim, difference: Difference) -> float:
    """What decides a claim that `_one` leaves undecided: how far the difference is from the margin, or from 0."""
    if claim.kind in ("equivalent", "flat"):
        return difference.from_margin
    return difference.decidable if claim.at_least is None else abs(float(difference.value))
