"""The page of a study and the page of claims."""

from __future__ import annotations

import math
import re
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
from hep_studies.pages import render, render_claims
from hep_studies.run_result import RunResult
from hep_studies.study_notes import notes
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

    start = "|A \\| B is faster.<br>*table 1*|time of the run [s], equal|x2.00 (x"
    row = next(line for line in page.splitlines() if line.startswith(start))
    assert row.endswith(")|more|**confirmed**|")
    (comparison,) = re.findall(
        r"^\|A \\\| B is faster.\|AD-PSGD against AR-SGD.*$", page, re.MULTILINE
    )
    assert comparison.endswith(", 2 of 3 seeds|10%|")
    assert "Source: Somebody 2020, table 1." in page
    assert "Made by `python -m pipeline compare --study example`" in page
    has_accuracies = "test events, which count as N = 1,000 of equal weight" in page
    assert has_accuracies == (times_only is None)


def test_the_result_comes_before_how_it_was_made() -> None:
    panels = [{"y": "val_accuracy", "x": "epoch"}]
    figures = [{"name": f"fig_{index}", "title": "T", "panels": panels} for index in (1, 2)]
    tables = [{"title": "A table", "measures": ["test_accuracy"]}]
    result = result_of_claims(FASTER, figures=figures, tables=tables, about="It is said.")

    page = render(result, folder="figures")

    expected_order = [
        *("# A study", "3 methods train", "|A \\| B is faster.<br>", "(figures/fig_1.png)"),
        *("It is said.", "## A table", "(figures/fig_2.png)", "<summary>Every comparison"),
        *("<summary>Check of the simulated times", "<summary>What was set", "|python|3.11.7|"),
    ]
    positions = [page.index(text) for text in expected_order]
    assert positions == sorted(positions)


def test_a_further_row_of_a_claim_stands_below_it() -> None:
    also = [{"measure": "val_loss"}]
    claim = {**FASTER, "says": "Better.", "also": also}

    page = render(result_of_claims(claim), folder="figures")

    rows = re.findall(r"^\|([^|]*)\|(?:time of the run|lowest valid)", page, re.MULTILINE)
    assert rows == ["Better.<br>*table 1*", "\N{DOWNWARDS ARROW WITH TIP RIGHTWARDS} the same"]
    assert "\n1 confirmed. An effect is positive" in page


def test_unchecked_times_confirm_nothing() -> None:
    page = render(replace(result_of_claims(FASTER), checks=[]), folder="figures")

    assert (
        "|more|not decidable here; would be decided by a closer check of the simulated times|"
        in page
    )


def test_the_page_has_the_figures_and_the_checks_in_milliseconds() -> None:
    panels = [{"y": "val_accuracy", "x": "epoch"}]
    figures = [{"name": "fig_1", "title": "A figure", "panels": panels}]
    result = result_of_claims(figures=figures)
    check = replace(example_check("ar-sgd", 2.5e-3, 2e-3), overhead=0.1e-3)

    page = render(replace(result, checks=[check]), folder="figures")

    assert "![A figure](figures/fig_1.png)\n\nA figure." in page
    # A table needs an empty line above.
    assert "\n\n||sleeps [ms]|" in page
    assert "|AR-SGD|1|2|2.5 ± 0|0.1|2|+0.4|" in page


def test_the_page_has_spread_and_load_of_a_check_and_why_it_is_not_used() -> None:
    check = example_check("ar-sgd", 2.5e-3, 2e-3)
    repeated = replace(check, repeats=5, spread=1.2e-4, load=1.4, refused="the machine was busy")

    page = render(replace(result_of_claims(), checks=[repeated]), folder="figures")

    assert "|AR-SGD|1|2|2.5 ± 0.12|0|2|+0.5|1.4|the machine was busy|" in page


def test_a_run_that_diverged_leaves_a_comparison_unknown_and_is_in_no_mean() -> None:
    result = result_of_claims(AS_GOOD)

    (comparison,) = judge(result)[0].comparisons
    (note,) = notes(result)
    page = render(result, folder="figures")

    assert math.isnan(comparison.difference.mean)
    assert (comparison.num_pairs, comparison.num_seeds) == (2, 3)
    assert note.startswith(
        "1 of 9 runs diverged to a loss that is not finite: of AD-PSGD 1. Tables and figures"
    )
    assert " at p = 0.9000, is 0.95 points" in page


def test_a_comparison_without_a_finished_run_has_no_number() -> None:
    runs = [diverged_run("ad-psgd"), example_run("ar-sgd", 3)]

    page = render(example_result(example_study(claims=[AS_GOOD]), runs), folder="figures")

    assert "|AD-PSGD against AR-SGD: -" in page


def test_a_classifier_within_two_errors_of_the_best_is_not_behind_it() -> None:
    evaluation = {
        "num_events": 100,
        "signal": "ttbar",
        "mixture": {"words": "100 % QCD"},
        "errors": 2,
        "trees": None,
        "best": "particles",
        "miscalibrated": {},
        "calibration": "",
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
