"""Claims in words: effects, protocols, what the source claims, verdicts and their counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from hep_studies.comparisons import Comparison
from hep_studies.judging import JudgedClaim
from hep_studies.measures import Measure, measure_of
from hep_studies.study import key_label
from hep_studies.study_sections import Claim
from hep_studies.tables import markdown_table
from hep_studies.verdicts import HOLDS, OPEN, Verdict

_BEST_OF_THOSE_TRIED: Final = "best of those tried"
_DEMONSTRATION: Final = "a demonstration"


def effect_of_claim(judged: JudgedClaim) -> str:
    """Return the effect of the comparison on which a claim depends.

    For a claim about a share of settings: in how many it holds, with the range of the effects, such
    as "better in 3 of 4 settings (-0.64..+2.39)".
    """
    if judged.claim.share_of_cells == 1:
        return effect(judged.decisive)
    measure = measure_of(judged.claim.measure)
    verdicts = [comparison.verdict for comparison in judged.tested]
    means = [comparison.difference.mean for comparison in judged.tested]
    finite_means = [mean for mean in means if math.isfinite(mean)]
    if not finite_means:
        return "-"
    num_holding = sum(verdict in HOLDS for verdict in verdicts)
    num_open = sum(verdict in OPEN for verdict in verdicts)
    counts = f"better in {num_holding} of {len(verdicts)} settings"
    if num_open:
        counts += f", open in {num_open}"
    lowest = _difference_text(min(finite_means), measure)
    highest = _difference_text(max(finite_means), measure)
    return f"{counts} ({lowest}..{highest})"


def effect(comparison: Comparison | None) -> str:
    """Return a difference and its interval, such as "+0.20 (+0.10..+0.30)".

    Accuracies are in percentage points, times and rates are factors, others are plain numbers. An
    infinite interval is "?", and a difference that is not finite "-".
    """
    if comparison is None or not math.isfinite(comparison.difference.mean):
        return "-"
    measure = measure_of(comparison.claim.measure)
    low, high = comparison.difference.interval(comparison.level)
    interval = "?"
    if math.isfinite(high):
        interval = f"{_difference_text(low, measure)}..{_difference_text(high, measure)}"
    return f"{_difference_text(comparison.difference.mean, measure)} ({interval})"


def _difference_text(difference: float, measure: Measure) -> str:
    """Return a difference as text: a factor of its logarithm, percentage points, or a number.

    A number has the digits that show a tenth of the measure's margin.
    """
    if measure.is_ratio:
        return f"x{math.exp(difference):#.3g}"
    if measure.in_percent:
        return f"{100 * difference:+.2f}"
    digits = max(0, 1 - math.floor(math.log10(measure.margin)))
    return f"{difference:+.{digits}f}"


def protocol_text(claim: Claim) -> str:
    """Return the protocol of a claim: equal with the values of `at`, or best.

    A measure that chooses the best values is named where it is not that of all such claims.
    """
    if claim.protocol == "each at its best":
        if claim.tuned_by is None:
            return "best"
        if claim.tuned_by == claim.measure:
            return "best by it"
        return f"best by {measure_of(claim.tuned_by).label}"
    values = [f"{key_label(key)} {value}" for key, value in claim.at.items()]
    return f"equal, {', '.join(values)}" if values else "equal"


def claimed_effect(claim: Claim) -> str:
    """Return the effect that the source claims."""
    if claim.is_equivalence:
        return f"within {margin_text(claim)}"
    if claim.size is None:
        return "more"
    measure = measure_of(claim.measure)
    size = math.log(claim.size) if measure.is_ratio else claim.size
    return _difference_text(size, measure)


def margin_text(claim: Claim) -> str:
    """Return the margin of a claim in points of accuracy, in percent of a ratio, or as a number."""
    measure = measure_of(claim.measure)
    if measure.is_ratio:
        return f"{100 * claim.equivalence_margin:.3g}%"
    scale = 100 if measure.in_percent else 1
    return f"{scale * claim.equivalence_margin:.3g}"


def verdict_text(judged: JudgedClaim) -> str:
    """Return a verdict: bold if the claim is decided, else with what would decide it.

    A decided claim says if best settings are at the edge of their sweep. A withdrawn claim says
    why. The text of a demonstration stands once on its page, and not here.
    """
    if judged.verdict not in OPEN:
        text = f"**{judged.verdict}**"
        return f"{text}, {_BEST_OF_THOSE_TRIED}" if judged.is_at_edge else text
    if judged.verdict is Verdict.WITHDRAWN:
        return f"{judged.verdict}: {judged.reason}"
    text = str(judged.verdict)
    if judged.reason.startswith(_DEMONSTRATION):
        text += f": {_DEMONSTRATION}"
    return f"{text}; would be decided by {judged.would_decide}"


def count_verdicts(claims: Sequence[JudgedClaim]) -> str:
    """Return how many claims have each verdict, such as "2 confirmed, 1 undecided".

    Only first rows count, those of the source's own protocol and measure.
    """
    verdicts = [judged.verdict for judged in claims if not judged.is_second]
    counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in Verdict if verdict in verdicts]
    return ", ".join(counts)


def verdict_tally(claims: Sequence[JudgedClaim]) -> str:
    """Return a table in Markdown of the verdicts: how many first and further rows have each.

    In brackets: how many of the first rows have best settings at the edge of their sweep.
    """
    first_rows = [judged for judged in claims if not judged.is_second]
    further_rows = [judged for judged in claims if judged.is_second]
    rows = []
    for verdict in Verdict:
        with_verdict = [judged for judged in first_rows if judged.verdict is verdict]
        num_further = sum(judged.verdict is verdict for judged in further_rows)
        if with_verdict or num_further:
            rows.append([verdict, _count_with_edges(with_verdict), num_further])
    rows.append(["all", _count_with_edges(first_rows), len(further_rows)])
    header = [
        *("verdict", f"claims (of these {_BEST_OF_THOSE_TRIED})"),
        "\N{DOWNWARDS ARROW WITH TIP RIGHTWARDS} further rows",
    ]
    return markdown_table(header, rows)


def _count_with_edges(claims: Sequence[JudgedClaim]) -> str:
    """Return how many claims there are, and in brackets how many with best settings at an edge."""
    num_at_edge = sum(judged.is_at_edge for judged in claims)
    return f"{len(claims)} ({num_at_edge})" if num_at_edge else str(len(claims))
