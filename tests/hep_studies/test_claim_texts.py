"""Verdicts in words: what stands beside them, and how they are counted."""

from __future__ import annotations

import pytest

from hep_studies.cells import Cell
from hep_studies.claim_texts import count_verdicts, verdict_tally, verdict_text
from hep_studies.comparisons import Comparison
from hep_studies.judging import JudgedClaim
from hep_studies.study_sections import Claim
from hep_studies.verdicts import Difference, Verdict

CLAIM = Claim.model_validate(
    {
        "says": "It is better.",
        "better": "ad-psgd",
        "control": "ar-sgd",
        "protocol": "each at its best",
        "measure": "val_loss",
    }
)


def judged(verdict: Verdict, *, is_at_edge: bool = False, is_second: bool = False) -> JudgedClaim:
    """A claim of one comparison with this verdict."""
    difference = Difference.from_seeds([0.1, 0.2])
    cells = (Cell("ad-psgd"), Cell("ar-sgd"))
    comparison = Comparison(*cells, CLAIM, difference, 2, 2, "", is_at_edge)
    return JudgedClaim(CLAIM, verdict, [comparison], "", is_second)


@pytest.mark.parametrize(
    ("is_at_edge", "text"), [(False, "**confirmed**"), (True, "**confirmed**, best of those tried")]
)
def test_a_verdict_on_best_settings_at_an_edge_says_so(is_at_edge: bool, text: str) -> None:
    assert verdict_text(judged(Verdict.CONFIRMED, is_at_edge=is_at_edge)) == text


@pytest.mark.parametrize(
    ("verdict", "reason", "would_decide", "text"),
    [
        (
            Verdict.UNDECIDED,
            "",
            "45 seeds (now 10; 1 h)",
            "undecided; would be decided by 45 seeds (now 10; 1 h)",
        ),
        (
            Verdict.NOT_DECIDABLE,
            "needs over ten times the data",
            "150 seeds",
            "not decidable here; would be decided by 150 seeds",
        ),
        (
            Verdict.NOT_DECIDABLE,
            "a demonstration: 359 test digits.",
            "the full form",
            "not decidable here: a demonstration; would be decided by the full form",
        ),
        (Verdict.WITHDRAWN, "a faulty end", "its runs made again", "withdrawn: a faulty end"),
    ],
)
def test_an_open_claim_says_what_would_decide_it(
    verdict: Verdict, reason: str, would_decide: str, text: str
) -> None:
    claim = judged(verdict)._replace(reason=reason, would_decide=would_decide)

    assert verdict_text(claim) == text


def test_further_rows_and_edges_are_counted_apart() -> None:
    claims = [
        judged(Verdict.CONFIRMED),
        judged(Verdict.CONFIRMED, is_second=True),
        judged(Verdict.CONFIRMED, is_at_edge=True),
        judged(Verdict.CONTRADICTED, is_at_edge=True, is_second=True),
        judged(Verdict.UNDECIDED),
    ]

    header, _, *rows = verdict_tally(claims).splitlines()

    assert header.startswith("|verdict|claims (of these best of those tried)|")
    assert rows == ["|confirmed|2 (1)|1|", "|contradicted|0|1|", "|undecided|1|0|", "|all|3 (1)|2|"]
    assert count_verdicts(claims) == "2 confirmed, 1 undecided"
