"""The page of a study and the page of claims: the values of their templates."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hep_studies import claim_texts
from hep_studies.guide import GOAL, REQUIRED_SHARE
from hep_studies.guide_page import (
    guide_table,
    records_table,
    situation_settings,
    situations_table,
    study_guides,
)
from hep_studies.headlines import JudgedStudy, headlines
from hep_studies.judging import JudgedClaim, judge
from hep_studies.measures import distance_to_best, measure_of
from hep_studies.sample_texts import rows_title, sample_of, what_was_run
from hep_studies.study import key_label
from hep_studies.study_notes import cautions, notes
from hep_studies.study_result import StudyResult
from hep_studies.tables import settings_table, study_table, sweep_table
from models.evaluation.rounding import with_error

#: A best epoch in the last quarter of the epochs is late: the run may still improve.
_LATE: Final = 0.75


def render(result: StudyResult, *, folder: str) -> str:
    """Return the page of a study in Markdown, with the verdicts on its claims.

    `folder`: that of the figures, relative to the page.
    """
    claims = judge(result)
    study = result.study
    return _fill_template(
        "study.md.j2",
        study=study,
        result=result,
        folder=folder,
        what_was_run=what_was_run(result),
        rows_title=rows_title(study),
        cautions=cautions(result, claims),
        claims=claims,
        settings=settings_table(result),
        tables=[(table.title, study_table(result, table)) for table in study.tables],
        learning=learning_summary(result) if study.times_only is None else None,
        notes=notes(result, claims),
        sweep=sweep_table(result) if study.best_of else "",
        situations=situations_table(result),
        situation_settings=situation_settings(study),
    )


def render_claims(
    results: Mapping[str, StudyResult], *, command: str, evaluations: Sequence[Any] = ()
) -> str:
    """Return the page of the claims of several studies in Markdown.

    `results`: the studies, by the link to the page of each. `command`: the command line that makes
    the page. `evaluations`: sections on the classifiers of evaluations.
    """
    studies = [JudgedStudy(link, result, judge(result)) for link, result in results.items()]
    studies = [study for study in studies if study.claims]
    all_claims: list[JudgedClaim] = []
    for study in studies:
        all_claims += study.claims
    return _fill_template(
        "claims.md.j2",
        studies=studies,
        claims=all_claims,
        command=command,
        evaluations=evaluations,
    )


def render_guide(results: Mapping[str, StudyResult], *, command: str) -> str:
    """Return the page which method to take in Markdown; empty if no study varies situations.

    `results`: the studies, by the link to the page of each. `command`: the command line that makes
    the page.
    """
    guides = study_guides(results)
    if not guides:
        return ""
    versions = {run.made_with for guide in guides for run in guide.result.runs}
    return _fill_template(
        "choosing.md.j2",
        guides=guides,
        points=100 * (distance_to_best(GOAL) or 0.0),
        share=REQUIRED_SHARE,
        table=guide_table(guides),
        records=records_table(guides),
        versions="; ".join(sorted(versions)),
        command=command,
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


def _fill_template(template: str, **values: Any) -> str:
    """Return the text of a Jinja template of this folder, without repeated blank lines.

    A value that the template names and nobody gives is an error.
    """
    environment = Environment(  # noqa: S701
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {
        "claimed": claim_texts.claimed_effect,
        "count_verdicts": claim_texts.count_verdicts,
        "effect": claim_texts.effect,
        "effect_of_claim": claim_texts.effect_of_claim,
        "headlines": headlines,
        "key_label": key_label,
        "margin": claim_texts.margin_text,
        "measure_of": measure_of,
        "protocol": claim_texts.protocol_text,
        "sample": sample_of,
        "tally": claim_texts.verdict_tally,
        "verdict": claim_texts.verdict_text,
        "with_error": with_error,
    }
    text = environment.get_template(template).render(**values)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
