"""Runs with invented numbers, and the verdicts on claims by them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from example_study import EQUAL_ACCURACY, example_result, example_run, example_study

from hep_studies.judging import JudgedClaim, judge
from hep_studies.run_result import RunResult
from hep_studies.study_result import StudyResult

SEEDS = range(1, 7)
BETTER = {"better": "ad-psgd", "control": "ar-sgd"}


def judge_first(result: StudyResult, *claims: dict[str, Any], **study: Any) -> JudgedClaim:
    """The first of some claims, judged by a result; `study`: changes of its settings."""
    settings = {**result.study.model_dump(), **study}
    settings["claims"] = [{"says": "It is so.", **EQUAL_ACCURACY, **claim} for claim in claims]
    return judge(replace(result, study=example_study(**settings)))[0]


def accuracy_runs() -> list[RunResult]:
    """AD-PSGD is better by 10 points; the accuracy of each method grows with the seed."""
    correct = {"ar-sgd": 800, "sgd": 800, "ad-psgd": 900}
    return [
        example_run(method, seed, correct=correct[method] + seed)
        for seed in SEEDS
        for method in correct
    ]


ACCURACIES = example_result(example_study(), accuracy_runs())
