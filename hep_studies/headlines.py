"""The sentences at the top of the page of claims, whose numbers come from judged claims."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from hep_studies.cells import Cell
from hep_studies.claim_texts import effect
from hep_studies.comparisons import Comparison
from hep_studies.judging import JudgedClaim
from hep_studies.measures import measure_of
from hep_studies.sample_texts import sample_of
from hep_studies.study_notes import methods_with_unchecked_times
from hep_studies.study_result import StudyResult

#: Number of sentences on the page.
NUM_HEADLINES: Final = 5
#: A quotation, such as `<thesis-hlf/ad-accuracy=confirmed>`.
_QUOTATION: Final = re.compile(r"<([^<>]+)>")


class JudgedStudy(NamedTuple):
    """A study with the verdicts on its claims."""

    link: str
    """Link to its page."""
    result: StudyResult
    claims: list[JudgedClaim]


class NamedClaim(NamedTuple):
    """A judged claim that sentences quote by its name, with the result that judges it."""

    judged: JudgedClaim
    result: StudyResult


def headlines(paragraphs: str, studies: Sequence[JudgedStudy]) -> list[str]:
    """Return the first paragraphs that may be quoted, with numbers instead of their quotations.

    Paragraphs are divided by blank lines. One is left out if a claim that it quotes is missing, is
    not as the paragraph says, or is not safe to quote.
    """
    claims = _named_claims(studies)
    sentences = []
    for paragraph in paragraphs.strip().split("\n\n"):
        sentence = " ".join(paragraph.split())
        texts = {name: _quoted(name, claims) for name in _QUOTATION.findall(sentence)}
        if None in texts.values():
            continue
        for name, text in texts.items():
            sentence = sentence.replace(f"<{name}>", str(text))
        sentences.append(sentence)
    return sentences[:NUM_HEADLINES]


def _named_claims(studies: Sequence[JudgedStudy]) -> dict[str, NamedClaim]:
    """Return the claims that have a name, by study and name, such as `thesis-hlf/ad-accuracy`."""
    claims = {}
    for study in studies:
        for judged in study.claims:
            if judged.claim.name:
                name = f"{study.result.name}/{judged.claim.name}"
                claims[name] = NamedClaim(judged, study.result)
    return claims


def _quoted(quotation: str, claims: Mapping[str, NamedClaim]) -> str | None:
    """Return the text of a quotation; None if it must not be quoted.

    It has one of these forms:

     * `study/claim=verdict`, or `verdict or verdict`: the measured effect, if the claim has such a
       verdict. "above 0", "below 0" and "around 0" ask instead where its interval lies;
     * `study/claim:treatment`, `study/claim:control`: the mean of either side;
     * `study/claim:sample`: the rows and the seeds of the study.
    """
    name, _, statements = quotation.partition("=")
    name, _, detail = name.partition(":")
    named = claims.get(name)
    if named is None or named.judged.decisive is None or not _is_safe_to_quote(named):
        return None
    if detail == "sample":
        return sample_of(named.result)
    if detail == "treatment":
        return _mean_text(named, named.judged.decisive.treatment)
    if detail == "control":
        return _mean_text(named, named.judged.decisive.control)
    true_statements = {str(named.judged.verdict), _side_of_zero(named.judged.decisive)}
    if true_statements.isdisjoint(statements.split(" or ")):
        return None
    return effect(named.judged.decisive)


def _side_of_zero(comparison: Comparison) -> str:
    """Return where the interval of a difference lies: above 0, below 0 or around 0."""
    low, high = comparison.difference.interval(comparison.level)
    if low > 0:
        return "above 0"
    return "below 0" if high < 0 else "around 0"


def _mean_text(named: NamedClaim, cell: Cell) -> str:
    """Return the mean over the seeds of the claimed measure of a cell, as text."""
    claim = named.judged.claim
    numbers = named.result.numbers(cell, claim.measure, claim.tuning)
    return measure_of(claim.measure).text(numbers.mean())


def _is_safe_to_quote(named: NamedClaim) -> bool:
    """Tell whether a claim may stand in a headline.

    It may not where best settings are at the edge of their sweep, or where it depends on simulated
    times whose check is not used.
    """
    if named.judged.is_at_edge:
        return False
    if not measure_of(named.judged.claim.measure).depends_on_times:
        return True
    unchecked = methods_with_unchecked_times(named.result)
    for comparison in named.judged.comparisons:
        if comparison.treatment.method in unchecked or comparison.control.method in unchecked:
            return False
    return True
