"""The page of claims: subjects over several studies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from made_study import made_result, made_run, made_study

from training.studies.claims_page import render
from training.studies.study_result import StudyResult, TimeCheck

SEEDS = (1, 2, 3)


def result_of(name: str, *claims: dict[str, Any], **changes: Any) -> StudyResult:
    """AD-PSGD takes half the time of AR-SGD, and predicts ten points more correctly."""
    runs = [
        made_run(method, seed, correct=correct + seed, seconds=seconds)
        for seed in SEEDS
        for method, correct, seconds in (("ar-sgd", 800, 0.2), ("sgd", 800, 0.2), ("ad-psgd", 900, 0.1))
    ]
    study = made_study(title=f"Study {name}", claims=claims)
    return replace(made_result(study, runs), name=name, **changes)


BETTER = {"claim": "It is better.", "topic": "Accuracy", "better": "ad-psgd", "than": "ar-sgd"}
WORSE = {"claim": "It is worse.", "topic": "Accuracy", "better": "ar-sgd", "than": "ad-psgd"}
FASTER = {"claim": "It is faster.", "better": "ad-psgd", "than": "ar-sgd", "measure": "seconds"}
CHECK = TimeCheck("ar-sgd", 2, 2e-3, 1.2e-3)


def test_claims_of_all_studies_about_one_subject_stand_together() -> None:
    results = {"studies/a.md": result_of("a", BETTER, FASTER), "studies/b.md": result_of("b", WORSE)}
    page = render(results, command="python -m pipeline compare --claims x")
    assert "Made by `python -m pipeline compare --claims x` from the stored results" in page
    # A claim without a subject stands under the title of its study; one refuted claim refutes the subject.
    assert "| Accuracy | **refuted** | 1 confirmed, 1 refuted |" in page
    assert "| Study a | undecided; times not checked | 1 undecided |" in page
    _, section = page.split("## Accuracy\n", 1)
    assert section.startswith("\nSource: Somebody 2020.\n")
    rows = [line for line in section.split("\n## ")[0].splitlines() if line.startswith("| [")]
    assert [line.split(" | ")[0] for line in rows] == ["| [a](studies/a.md)", "| [b](studies/b.md)"]
    assert "AD-PSGD against AR-SGD: +10.00 points (" in rows[0]


def test_the_workers_of_a_study_were_those_of_its_reference() -> None:
    page = render({"a.md": replace(result_of("a", BETTER), study=made_study(reference="sgd"))}, command="x")
    assert "| [a](a.md) | 4 | " in page


def test_studies_that_only_time_come_last() -> None:
    made = result_of("a", FASTER)
    timed = replace(made, study=made_study(title="Study a", claims=[FASTER], times_only=4))
    page = render({"a.md": timed, "b.md": result_of("b", BETTER)}, command="x")
    assert page.index("## Accuracy") < page.index("## Study a")


def test_the_page_says_events_seeds_and_the_check_of_the_times() -> None:
    sample = {"version": "1", "classes": [], "counts": {"train": [800], "val": [200], "test": [1000]}}
    data = {**sample, "sample_note": "Simulation", "digest": "0123456789abcdef"}
    made = result_of("a", FASTER, checks=[CHECK], data=data)
    page = render({"a.md": made}, command="x")
    assert (
        "| [a](a.md) | 4 | 800 | 200 | 1,000 | Simulation, 0123456789abcdef | 3 | 9 | 2026-01-01 | commit 1 |" in page
    )
    assert "| [a](a.md) | AR-SGD | 2 | 2 | 1.2 | -40 % | 0.0 of 2 |" in page
    assert "| Study a | **confirmed**; check of times misses by 40 % | 1 confirmed |" in page
    assert "- [a](a.md): In 9 of the 9 runs the validation loss was lowest in the last quarter" in page
