"""Judges the claims of a source by the runs of a study.

Each claim is compared in its pairs of cells (`comparisons`). Claims of a topic are a family: Holm's
correction gives each comparison its level. The verdicts of the comparisons give that of the claim
(`verdicts`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from hep_studies.comparisons import Comparison, comparisons_of
from hep_studies.measures import measure_of
from hep_studies.needed_data import NeededData, needed_data, text_of_needed_data
from hep_studies.study import Claim, StudySettings
from hep_studies.study_result import StudyResult
from hep_studies.verdicts import OPEN, Verdict, combine_verdicts, holm_levels


class JudgedClaim(NamedTuple):
    """A claim with its comparisons and the verdict that follows from them."""

    claim: Claim
    verdict: Verdict
    comparisons: list[Comparison]
    reason: str
    """Why the claim is not decidable here, or withdrawn; else empty."""
    is_second: bool = False
    """Whether it is a further row of a claim, at another protocol or in another measure."""
    would_decide: str = ""
    """What would decide an open claim, or take a verdict away from the edge of its sweep."""

    @property
    def is_at_edge(self) -> bool:
        """Whether a comparison is of the best settings of those tried, at an edge of the sweep.

        Better ones may lie beyond, so that the verdict is no headline.
        """
        return any(comparison.is_at_edge for comparison in self.tested)

    @property
    def tested(self) -> list[Comparison]:
        """The comparisons without an obstacle."""
        return [comparison for comparison in self.comparisons if not comparison.obstacle]

    @property
    def decisive(self) -> Comparison | None:
        """The comparison on which the claim depends: the one that supports it least.

        None if no comparison has a finite difference, or if the claim is about a share of them.
        """
        is_equivalence = self.claim.is_equivalence

        def weakness(comparison: Comparison) -> float:
            # An equivalence is weaker the larger the difference; an effect, the smaller.
            mean = comparison.difference.mean
            return abs(mean) if is_equivalence else -mean

        usable = [
            comparison for comparison in self.tested if math.isfinite(comparison.difference.mean)
        ]
        if not usable or self.claim.share_of_cells < 1:
            return None
        return max(usable, key=weakness)


def judge(result: StudyResult) -> list[JudgedClaim]:
    """Return the verdicts on all claims of a study, each followed by its further rows.

    Further rows are families of their own, so that they do not widen the intervals of the sources'
    claims.
    """
    claims = result.study.claims
    first_rows = iter(_judge_rows(result, claims))
    further_rows = [row for claim in claims for row in claim.rows()[1:]]
    second_rows = iter(_judge_rows(result, further_rows))
    judged = []
    for claim in claims:
        judged.append(next(first_rows))
        rows_of_claim = itertools.islice(second_rows, len(claim.also))
        judged += [row._replace(is_second=True) for row in rows_of_claim]
    return judged


def _judge_rows(result: StudyResult, rows: Sequence[Claim]) -> list[JudgedClaim]:
    """Return the verdict on each row, corrected for the number of comparisons in its topic.

    All pairs of cells of all rows are compared. Holm's correction sets the level of each
    comparison within its topic; then the comparisons of each row give its verdict. A withdrawn
    claim stays in its topic, so that the intervals of the other claims keep their width.
    """
    comparisons = [comparison for row in rows for comparison in comparisons_of(result, row)]
    corrected = _with_corrected_levels(comparisons)
    judged = []
    for row in rows:
        belonging = [comparison for comparison in corrected if comparison.claim is row]
        judged_row = _judge_claim(result.study, row, belonging)
        if judged_row.verdict is Verdict.UNDECIDED:
            judged_row = _with_needed_data(result, judged_row)
        judged.append(judged_row._replace(would_decide=_what_would_decide(result, judged_row)))
    return judged


def _with_corrected_levels(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons in the same order, each with Holm's level within its topic.

    All comparisons of the claims of a topic are a family: one wrong verdict among them has at most
    the probability `verdicts.LEVEL`.
    """
    corrected = list(comparisons)
    for topic in {comparison.claim.topic for comparison in comparisons}:
        family = [
            index for index, comparison in enumerate(comparisons) if comparison.claim.topic == topic
        ]
        levels = holm_levels([comparisons[index].is_decided_at for index in family])
        for index, level in zip(family, levels, strict=True):
            corrected[index] = comparisons[index]._replace(level=level)
    return corrected


def _judge_claim(study: StudySettings, claim: Claim, comparisons: list[Comparison]) -> JudgedClaim:
    """Return a claim with its verdict, which its comparisons give unless something precludes it.

    In this order, these preclude it: the study withdraws its judgement; its file says that the
    claim is not decidable; the study is a demonstration, on whose data nothing learnt can be
    judged; every comparison has an obstacle. Else the verdicts of all comparisons without
    obstacles are combined.
    """
    if claim.withdrawn:
        return JudgedClaim(claim, Verdict.WITHDRAWN, [], claim.withdrawn)
    if claim.not_decidable:
        return JudgedClaim(claim, Verdict.NOT_DECIDABLE, comparisons, claim.not_decidable)
    if study.demonstration and measure_of(claim.measure).depends_on_learning:
        reason = f"a demonstration: {study.demonstration}"
        return JudgedClaim(claim, Verdict.NOT_DECIDABLE, comparisons, reason)

    tested = [comparison for comparison in comparisons if not comparison.obstacle]
    if not tested:
        reason = comparisons[0].obstacle if comparisons else "not run"
        return JudgedClaim(claim, Verdict.NOT_DECIDABLE, comparisons, reason)
    verdicts = [comparison.verdict for comparison in tested]
    verdict = combine_verdicts(verdicts, share=claim.share_of_cells)
    return JudgedClaim(claim, verdict, comparisons, "")


def _with_needed_data(result: StudyResult, judged: JudgedClaim) -> JudgedClaim:
    """Return an undecided claim with the data that would decide it.

    It is not decidable if these are more than ten times the present ones, or if with them the
    error of times would still be too large.
    """
    tested = judged.tested
    unknown = _why_unknown(tested)
    if unknown is not None:
        return _not_decidable(judged, unknown.reason, unknown.would_decide)

    share = judged.claim.share_of_cells
    needed = needed_data(tested, share)
    would_decide = text_of_needed_data(result, tested, needed)
    if needed is None and share < 1:
        reason = f"{len(tested)} settings are too few for a share of many"
        return _not_decidable(judged, reason, f"more settings than these {len(tested)}")
    if needed is None:
        return _not_decidable(judged, "needs over ten times the data", would_decide)
    if needed.without_errors:
        reason = _reason_against_times(tested, needed)
        return _not_decidable(judged, reason, would_decide)
    return judged._replace(would_decide=would_decide)


class _WhyUnknown(NamedTuple):
    """Why a difference or its error is not known."""

    reason: str
    would_decide: str
    """What would make it known."""


def _why_unknown(tested: Sequence[Comparison]) -> _WhyUnknown | None:
    """Return why a difference or its error is not known; None if all are known."""
    divergences = [comparison.divergence for comparison in tested if comparison.divergence]
    if divergences:
        would_decide = f"a lower learning rate, or the measure `diverged`: {divergences[0]}"
        return _WhyUnknown(divergences[0], would_decide)
    differences = [comparison.difference for comparison in tested]
    if not all(math.isfinite(difference.mean) for difference in differences):
        would_decide = "longer runs or another goal: here a run diverged or did not reach it"
        return _WhyUnknown("a run diverged or ended too early", would_decide)
    if not all(math.isfinite(difference.seed_variance) for difference in differences):
        return _WhyUnknown("one seed", "several seeds: the error of one is not known")
    return None


def _not_decidable(judged: JudgedClaim, reason: str, would_decide: str) -> JudgedClaim:
    """Return a claim as not decidable."""
    return judged._replace(verdict=Verdict.NOT_DECIDABLE, reason=reason, would_decide=would_decide)


def _reason_against_times(tested: Sequence[Comparison], needed: NeededData) -> str:
    """Return why times decide nothing: validations too far apart, or simulated times not known."""
    if "of_validations" in needed.without_errors:
        return "validated too seldom for times to an accuracy"
    refusals = [comparison.unchecked_times for comparison in tested if comparison.unchecked_times]
    if refusals:
        return f"times not checked: {refusals[0]}"
    return "times not checked well enough"


def _what_would_decide(result: StudyResult, judged: JudgedClaim) -> str:
    """Return what would decide an open claim; for a decided one at an edge, what would confirm it.

    Needed data come first, then a wider sweep. Empty for a verdict that needs nothing more.
    """
    wider_sweep = "a sweep beyond its edge" if judged.is_at_edge else ""
    if judged.verdict not in OPEN:
        return wider_sweep
    other_runs = _other_runs_that_decide(result, judged)
    if other_runs:
        return other_runs
    return "; ".join(text for text in (judged.would_decide, wider_sweep) if text)


def _other_runs_that_decide(result: StudyResult, judged: JudgedClaim) -> str:
    """Return which other runs would decide a claim that no more of these can decide; else empty."""
    claim = judged.claim
    if claim.withdrawn:
        return "its runs made again"
    if claim.not_decidable:
        return f"other runs than these: {claim.not_decidable}"
    if result.study.demonstration and measure_of(claim.measure).depends_on_learning:
        is_small = result.form == "small"
        return "the full form of the study" if is_small else "data that are no demonstration"
    if not judged.tested:
        return f"runs that can be compared: {judged.reason}"
    return ""
