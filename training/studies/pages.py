"""The page of a study and the page of claims: what fills their templates."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from training.studies.judging import JudgedClaim, Pair, judge
from training.studies.measures import Measure, measure_of
from training.studies.study import Claim
from training.studies.study_result import StudyResult
from training.studies.tables import error_note, markdown_table, notes, settings_table, short, study_table, sweep_table
from training.studies.verdicts import OPEN, Verdict, error_rates

#: What a researcher takes home: `{study/claim=verdict}` becomes an effect; without that verdict the sentence goes.
TAKE_HOME: Final = """
Slow momentum helps where the learning rate is too small: at Adam's default of 0.001 it improves the validation loss of
AD-PSGD by {thesis-hlf/ad-default=confirmed} and that of SwarmSGD by {thesis-hlf/swarm-default=confirmed}.

It does not help where each method has its own best rate: there AD-PSGD gains {thesis-hlf/ad-best=contradicted} of the
validation loss and {thesis-hlf/ad-accuracy=smaller than claimed} points of accuracy; the thesis has +0.36 points.

Around SGD with momentum it depends on a choice that the thesis does not discuss: at the rate 0.003 AD-PSGD gains
{thesis-momentum/kept=confirmed} points if the momentum is kept after an outer step, as in its Algorithm 4, and
{thesis-momentum/reset=contradicted} if it is reset, as in Wang et al. (2020).

With LeNet-5's steps of 2 ms and messages on four hosts of four workers, AD-PSGD speeds up {thesis-scaling/ad=confirmed}
as much as AR-SGD: the interval reaches from the simulated value to the checked one, and the thesis has x2.

At one learning rate the means of ten steps (AGN) are not more stable than their sums (DynSGD): with 20 workers they end
{hermans-downpour/agn=contradicted} points of validation accuracy away, below them.
"""
#: Numbers of seeds, and true effects in units of the least one, of the table of error rates.
_SEEDS: Final = (3, 10, 30, 100)
_TRUTHS: Final = ((2.0, False), (0.99, False), (0.01, False), (-0.5, False), (0.5, True), (1.01, True))


def render(result: StudyResult, *, folder: str) -> str:
    """The page of a study.

    Args:
        result: The result of the study.
        folder: Folder of the figures, relative to the page.
    """
    claims, seeds = judge(result), sorted({run.seed for run in result.runs})
    is_of_learning = result.study.times_only is None
    return _fill(
        "study.md.j2",
        study=result.study,
        result=result,
        folder=folder,
        seeds=" to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1])))),
        claims=claims,
        settings=settings_table(result),
        tables=[(table.title, study_table(result, table)) for table in result.study.tables],
        notes=[*([error_note(result)] if is_of_learning else []), *notes(result, claims)],
        sweep=sweep_table(result) if result.study.best_of else "",
    )


def render_claims(results: Mapping[str, StudyResult], *, command: str, more: Sequence[str] = ()) -> str:
    """The page of claims.

    Args:
        results: The results, by the link to the page of each study.
        command: The command that makes the page.
        more: Further sections.
    """
    studies = {link: (result, found) for link, result in results.items() if (found := judge(result))}
    named = {f"{result.name}/{each.claim.name}": each for result, found in studies.values() for each in found}
    return _fill(
        "claims.md.j2",
        sentences=[sentence for each in TAKE_HOME.strip().split("\n\n") if (sentence := _quoting(each, named))],
        studies=studies.items(),
        claims=[each for _, found in studies.values() for each in found],
        command=command,
        more=more,
        errors=[
            ("equal within 1" if of_equals else "at least 1", truth, seeds, shares)
            for truth, of_equals in _TRUTHS
            for seeds, shares in error_rates(truth, _SEEDS, of_equals=of_equals).items()
        ],
    )


def _fill(template: str, **values: Any) -> str:
    made = Environment(loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True)  # noqa: S701 - Markdown
    made.filters |= {"cell": lambda text: text.replace("|", "\\|")}
    made.filters |= {
        "table": markdown_table,
        "counted": counted,
        "protocol": _protocol,
        "claimed": _claimed,
        "margin": _margin,
    }
    made.filters |= {
        "effect": effect,
        "mark": _mark,
        "short": short,
        "words": lambda name: measure_of(name).words,
    }
    text = made.get_template(template).render(**values)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _quoting(sentence: str, named: Mapping[str, JudgedClaim]) -> str:
    """A sentence with the effects of the claims that it names; empty if one has another verdict."""
    for place, verdict in re.findall(r"{([^={}]+)=([^{}]+)}", sentence):
        judged = named.get(place)
        if judged is None or judged.decisive is None or judged.verdict != verdict:
            return ""
        sentence = sentence.replace(f"{{{place}={verdict}}}", effect(judged.decisive))
    return " ".join(sentence.split())


def counted(claims: Sequence[JudgedClaim]) -> str:
    """How many claims have each verdict, in words."""
    found = [each.verdict for each in claims]
    return ", ".join(f"{found.count(verdict)} {verdict}" for verdict in Verdict if verdict in found)


def effect(pair: Pair | None) -> str:
    """A difference and its interval: points of accuracy, factors, or plain numbers."""
    if pair is None or not math.isfinite(pair.difference.value):
        return "-"
    value, low, high, _ = pair.found
    ends = f"{_sized(low, pair.measure)}..{_sized(high, pair.measure)}" if math.isfinite(high) else "?"
    return f"{_sized(value, pair.measure)} ({ends})"


def _sized(number: float, measure: Measure) -> str:
    """A difference in the unit in which its measure compares, to a tenth of what counts as none."""
    if measure.is_ratio:
        return f"x{math.exp(number):#.3g}"
    digits = max(0, 1 - math.floor(math.log10(measure.margin)))
    return f"{100 * number:+.2f}" if measure.percent else f"{number:+.{digits}f}"


def _protocol(claim: Claim) -> str:
    at = ", ".join(f"{short(key)} {value}" for key, value in claim.at.items())
    return "best" if claim.protocol == "each at its best" else f"equal, {at}" if at else "equal"


def _claimed(claim: Claim) -> str:
    measure = measure_of(claim.measure)
    if claim.is_of_equals:
        return f"within {_margin(claim)}"
    size = math.log(claim.size) if claim.size and measure.is_ratio else claim.size
    return "more" if size is None else _sized(size, measure)


def _margin(claim: Claim) -> str:
    measure = measure_of(claim.measure)
    margin = measure.margin if claim.margin is None else claim.margin
    return f"{100 * margin:.3g}{'%' * measure.is_ratio}" if measure.percent or measure.is_ratio else f"{margin:.3g}"


def _mark(judged: JudgedClaim) -> str:
    reason = f": {judged.reason}" if judged.reason else ""
    return f"{judged.verdict}{reason}" if judged.verdict in OPEN else f"**{judged.verdict}**"
