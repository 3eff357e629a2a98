"""The page of a study and the page of claims."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from example_study import (
    EQUAL_ACCURACY,
    example_check,
    example_result,
    example_run,
    example_study,
)

from hep_studies.judging import judge
from hep_studies.pages import notes, render, render_claims
from hep_studies.run_result import RunResult
from hep_studies.study_result import StudyResult

#: AD-PSGD takes half the time of AR-SGD.
SECONDS = {"ar-sgd": 0.2, "sgd": 0.2, "ad-psgd": 0.1}
CHECKS = [example_check(method, 1e-3, 1e-3) for method in ("ar-sgd", "ad-psgd")]
FASTER = {
    "says": "A | B is faster.",
    "place": "table 1",
    "better": "ad-psgd",
    "control": "ar-sgd",
    "protocol": "equal settings",
    "measure": "seconds",
}
AS_GOOD = {"says": "As good.", "equivalent": "ad-psgd", "control": "ar-sgd", **EQUAL_ACCURACY}


def diverged_run(method: str) -> RunResult:
    return replace(example_run(method, 3), counts=None, curves={}, numbers={"diverged": 1.0})


def result_of_claims(*claims: dict[str, Any], **study: Any) -> StudyResult:
    """Runs of three seeds, of which one of AD-PSGD diverged."""
    settings = example_study(claims=claims, shows={"example-table-1": "table 1"}, **study)
    runs = [
        example_run(method, seed, seconds=seconds)
        for seed in (1, 2, 3)
        for method, seconds in SECONDS.items()
        if (method, seed) != ("ad-psgd", 3)
    ]
    return example_result(settings, [*runs, diverged_run("ad-psgd")], checks=CHECKS)


@pytest.mark.parametrize("times_only", [None, 4])
def test_the_page_sets_claims_beside_their_effects(times_only: int | None) -> None:
    page = render(result_of_claims(FASTER, times_only=times_only), folder="figures")

    start = "|A \\| B is faster.|table 1|time of the run [s], equal|"
    row = next(line for line in page.splitlines() if line.startswith(start))
    assert "AD-PSGD against AR-SGD: x2.00 (x" in row
    assert row.endswith("), 2 of 3 seeds|more|**confirmed**|")
    source = "Source: Somebody 2020, table 1. Made by `python -m pipeline compare --study example`"
    assert source in page
    has_accuracies = "test events, which count as N = 1,000 of equal weight" in page
    assert has_accuracies == (times_only is None)


def test_unchecked_times_confirm_nothing() -> None:
    page = render(replace(result_of_claims(FASTER), checks=[]), folder="figures")

    assert "|more|not decidable here: times not checked well enough|" in page


def test_the_page_has_the_figures_and_the_checks_in_milliseconds() -> None:
    panels = [{"y": "val_accuracy", "x": "epoch"}]
    figures = [{"name": "fig_1", "title": "A figure", "panels": panels}]
    result = result_of_claims(figures=figures)

    page = render(replace(result, checks=[example_check("ar-sgd", 2.5e-3, 2e-3)]), folder="figures")

    assert "## A figure\n\n![A figure](figures/fig_1.png)" in page
    assert "|AR-SGD|1|2|2.5|2|+0.5|" in page


def test_a_run_that_diverged_is_in_no_comparison_and_no_mean() -> None:
    result = result_of_claims(AS_GOOD)

    (comparison,) = judge(result)[0].comparisons
    (note,) = notes(result)
    page = render(result, folder="figures")

    assert comparison.difference.mean == 0.0
    assert (comparison.num_pairs, comparison.num_seeds) == (2, 3)
    assert note.startswith(
        "1 of 9 runs diverged to a loss that is not finite: of AD-PSGD 1. Tables, figures and"
    )
    assert " at p = 0.9000, is 0.95 points" in page


def test_a_comparison_without_a_finished_run_has_no_number() -> None:
    runs = [diverged_run("ad-psgd"), example_run("ar-sgd", 3)]

    page = render(example_result(example_study(claims=[AS_GOOD]), runs), folder="figures")

    assert "|AD-PSGD against AR-SGD: -" in page


def test_steps_without_effect_and_lost_averages_are_said() -> None:
    numbers = {**example_run("ad-psgd", 1).numbers, "steps_not_finite": 3.0, "averages_lost": 12.0}
    runs = [replace(example_run("ad-psgd", seed), numbers=numbers) for seed in (1, 2)]

    sentences = notes(example_result(example_study(), [example_run("sgd", 1), *runs]))

    assert sentences == [
        "6 steps had no effect, since a gradient or an update was not finite: of AD-PSGD 6.",
        "Workers left out 24 averages, counted on both sides of a pair: of AD-PSGD 24.",
    ]


def test_there_is_no_note_if_all_is_well() -> None:
    assert notes(example_result(example_study(), [example_run("sgd", 1)])) == []


def test_a_classifier_within_two_errors_of_the_best_is_not_behind_it() -> None:
    evaluation = {
        "num_events": 100,
        "signal": "ttbar",
        "mixture": {"words": "100 % QCD"},
        "errors": 2,
        "trees": None,
        "best": "particles",
        "behind_best": {
            "hlf": {"value": 0.05, "error": 0.02},
            "trees": {"value": 0.03, "error": 0.02},
        },
        "tables": [],
        "runs": {"hlf": {"events_per_class": {"QCD": 40, "ttbar": 60}}},
    }

    page = render_claims({}, command="", evaluations=[evaluation])

    assert "100 test events: QCD 40, ttbar 60. Largest area" in page
    assert "|hlf|0.050 ± 0.020|yes|\n|trees|0.030 ± 0.020|no|" in page
