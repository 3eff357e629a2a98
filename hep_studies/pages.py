"""The page of a study and the page of claims: the values of their templates."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hep_studies.comparisons import Comparison
from hep_studies.judging import JudgedClaim, judge
from hep_studies.measures import Measure, measure_of
from hep_studies.study import key_label
from hep_studies.study_result import StudyResult
from hep_studies.study_sections import Claim
from hep_studies.tables import settings_table, study_table, sweep_table
from hep_studies.verdicts import OPEN, Verdict
from models.evaluation.rounding import with_error

#: A best epoch in the last quarter of the epochs is late: the run may still improve.
_LATE: Final = 0.75
#: Sentences of `notes` by the number of a run that they count.
_NOTES: Final = {
    "has_diverged": "{total} of {num_runs} runs diverged to a loss that is not finite: of "
    "{by_method}. Tables, figures and comparisons are of the other runs.",
    "steps_not_finite": "{total} steps had no effect, since a gradient or an update was not "
    "finite: of {by_method}.",
    # Both sides of a pair count an average that is left out.
    "averages_lost": "Workers left out {total} averages, counted on both sides of a pair: of "
    "{by_method}.",
}


def render(result: StudyResult, *, folder: str) -> str:
    """Return the page of a study in Markdown, with the verdicts on its claims.

    `folder`: that of the figures, relative to the page.
    """
    claims = judge(result)
    study = result.study
    seeds = [run.seed for run in result.runs]
    # The lowest and highest seed, or the only one.
    seed_range = sorted({min(seeds), max(seeds)})
    return _fill_template(
        "study.md.j2",
        study=study,
        result=result,
        folder=folder,
        seeds=" to ".join(str(seed) for seed in seed_range),
        claims=claims,
        settings=settings_table(result),
        tables=[(table.title, study_table(result, table)) for table in study.tables],
        learning=learning_summary(result) if study.times_only is None else None,
        notes=notes(result, claims),
        sweep=sweep_table(result) if study.best_of else "",
    )


def render_claims(
    results: Mapping[str, StudyResult], *, command: str, evaluations: Sequence[Any] = ()
) -> str:
    """Return the page of the claims of several studies in Markdown.

    `results`: the studies, by the link to the page of each. `command`: the command line that makes
    the page. `evaluations`: sections on the classifiers of evaluations.
    """
    studies = []
    # The text of the page quotes claims as study/claim.
    claims_by_name = {}
    all_claims: list[JudgedClaim] = []
    for link, result in results.items():
        claims = judge(result)
        if claims:
            studies.append((link, (result, claims)))
            all_claims += claims
        for judged in claims:
            claims_by_name[f"{result.name}/{judged.claim.name}"] = judged
    return _fill_template(
        "claims.md.j2",
        named=claims_by_name,
        studies=studies,
        claims=all_claims,
        command=command,
        evaluations=evaluations,
    )


@dataclass(frozen=True)
class LearningSummary:
    """Numbers of the note on the binomial error of every accuracy and on late best epochs."""

    accuracy: float
    """Mean weighted test accuracy of the runs."""
    num_events: int
    """Number of test events."""
    effective_events: float
    """Number of events of equal weight that have the same error."""
    error: float
    """Binomial standard error of the accuracy, from the number of test events."""
    num_runs: int
    """Number of runs that did not diverge, at the best values of `best_of`."""
    num_late: int
    """Number of runs whose best epoch is near their end."""


def learning_summary(result: StudyResult) -> LearningSummary:
    """Return the numbers of the note on the errors of what was learnt.

    The error of an accuracy a on n events is sqrt(a (1 - a) / n). For events with weights w, n is
    the effective number (sum w)^2 / (sum w^2). A run whose best epoch is in the last quarter may
    still improve, and is counted as late.
    """
    runs = [run for cell in result.cells() for run in result.finished_runs(cell)]
    accuracies = [run.counts.weighted_accuracy for run in runs if run.counts]
    accuracy = pd.Series(accuracies, dtype=np.float64).mean()
    effective_events = result.weights.sum() ** 2 / np.square(result.weights).sum()
    is_late = [run.numbers["best_epoch"] >= _LATE * len(run.curves["val_loss"]) for run in runs]
    return LearningSummary(
        accuracy=accuracy,
        num_events=len(result.weights),
        effective_events=effective_events,
        error=math.sqrt(accuracy * (1 - accuracy) / effective_events),
        num_runs=len(runs),
        num_late=sum(is_late),
    )


def notes(result: StudyResult, claims: Sequence[JudgedClaim] = ()) -> list[str]:
    """Return sentences about the mishaps of runs; none if all is well.

    They are about runs that diverged, steps without effect, lost averages, and cells that cannot be
    compared.
    """
    sentences = []
    for counter, template in _NOTES.items():
        counts = _counts_by_method(result, counter)
        if not counts:
            continue
        by_method = ", ".join(f"{title} {count:,.0f}" for title, count in counts.items())
        sentence = template.format(
            total=f"{sum(counts.values()):,.0f}", num_runs=len(result.runs), by_method=by_method
        )
        sentences.append(sentence)
    for judged in claims:
        for comparison in judged.comparisons:
            if comparison.obstacle:
                treatment = result.title(comparison.treatment)
                control = result.title(comparison.control)
                sentences.append(
                    f"Not compared, {comparison.obstacle}: {treatment} against {control}."
                )
    return list(dict.fromkeys(sentences))


def _counts_by_method(result: StudyResult, counter: str) -> dict[str, float]:
    """Return the sum of a counter over the runs of each method, by title, where it is not 0.

    `has_diverged` counts the runs that diverged.
    """
    counts: defaultdict[str, float] = defaultdict(float)
    for run in result.runs:
        count = run.has_diverged if counter == "has_diverged" else run.numbers.get(counter, 0)
        counts[result.study.title_of(run.method)] += count
    return {title: count for title, count in counts.items() if count}


def _fill_template(template: str, **values: Any) -> str:
    """Return the text of a Jinja template of this folder, without repeated blank lines.

    A value that the template names and nobody gives is an error.
    """
    environment = Environment(  # noqa: S701
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {
        "claimed": _claimed,
        "count_verdicts": count_verdicts,
        "effect": effect,
        "key_label": key_label,
        "margin": _margin,
        "mark": _mark,
        "measure_of": measure_of,
        "protocol": _protocol,
        "quoting": _quoting,
        "with_error": with_error,
    }
    text = environment.get_template(template).render(**values)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _quoting(paragraphs: str, named: Mapping[str, JudgedClaim]) -> Iterator[str]:
    """Yield the paragraphs whose claims have the verdicts that they name.

    A paragraph names claims as `<study/claim=verdict>`. If a claim is missing or has another
    verdict now, its paragraph is left out, since its text may be wrong. Else the measured effect
    replaces the name. Paragraphs are divided by blank lines.
    """
    for paragraph in paragraphs.strip().split("\n\n"):
        sentence = " ".join(paragraph.split())
        for name, verdict in re.findall(r"<([^<>=]+)=([^<>]+)>", sentence):
            judged = named.get(name)
            if judged is None or judged.decisive is None or judged.verdict != verdict:
                break
            sentence = sentence.replace(f"<{name}={verdict}>", effect(judged.decisive))
        else:
            # No claim ended the loop.
            yield sentence


def count_verdicts(claims: Sequence[JudgedClaim]) -> str:
    """Return how many claims have each verdict, such as "2 confirmed, 1 undecided".

    Only first rows count.
    """
    verdicts = [judged.verdict for judged in claims if not judged.is_second]
    counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in Verdict if verdict in verdicts]
    return ", ".join(counts)


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


def _protocol(claim: Claim) -> str:
    """Return the protocol of a claim: best, or equal with the values of `at`."""
    if claim.protocol == "each at its best":
        return "best"
    values = [f"{key_label(key)} {value}" for key, value in claim.at.items()]
    return f"equal, {', '.join(values)}" if values else "equal"


def _claimed(claim: Claim) -> str:
    """Return the effect that the source claims."""
    if claim.is_equivalence:
        return f"within {_margin(claim)}"
    if claim.size is None:
        return "more"
    measure = measure_of(claim.measure)
    size = math.log(claim.size) if measure.is_ratio else claim.size
    return _difference_text(size, measure)


def _margin(claim: Claim) -> str:
    """Return the margin of a claim in points of accuracy, in percent of a ratio, or as a number."""
    measure = measure_of(claim.measure)
    if measure.is_ratio:
        return f"{100 * claim.equivalence_margin:.3g}%"
    scale = 100 if measure.in_percent else 1
    return f"{scale * claim.equivalence_margin:.3g}"


def _mark(judged: JudgedClaim) -> str:
    """Return a verdict: bold if the claim is decided, else with its reason."""
    if judged.verdict not in OPEN:
        return f"**{judged.verdict}**"
    return f"{judged.verdict}: {judged.reason}" if judged.reason else str(judged.verdict)
