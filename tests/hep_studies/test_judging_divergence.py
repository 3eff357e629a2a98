"""Verdicts on claims of which some runs diverged: the runs that finished are no fair sample."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from example_study import example_result, example_run, example_study
from judged_examples import BETTER, judge_first

from hep_studies.claim_texts import verdict_text
from hep_studies.pages import render
from hep_studies.run_result import RunResult
from hep_studies.verdicts import Verdict

NUM_SEEDS = 10
SEEDS = range(1, NUM_SEEDS + 1)
CORRECT = {"ar-sgd": 800, "ad-psgd": 900}
#: Time of an epoch [s].
SECONDS = {"ar-sgd": 0.2, "ad-psgd": 0.1}


def runs_of(
    method: str, diverged_seeds: Iterable[int], values: dict[str, Any] | None = None
) -> list[RunResult]:
    """Runs of which those of some seeds diverged; the accuracy grows with the seed."""
    runs = []
    for seed in SEEDS:
        run = example_run(
            method,
            seed,
            correct=CORRECT[method] + seed,
            values=values,
            seconds=SECONDS[method],
        )
        run = replace(run, numbers={**run.numbers, "guess_loss": 1.1})
        if seed in diverged_seeds:
            run = replace(run, counts=None, curves={}, numbers={"diverged": 1.0})
        runs.append(run)
    return runs


@pytest.mark.parametrize("num_diverged", [1, 7, NUM_SEEDS])
@pytest.mark.parametrize(
    "measure",
    [
        {},
        {"measure": "val_loss"},
        {"measure": "final_val_accuracy"},
        {"measure": "seconds_to=0.8"},
        {"measure": "temporal_efficiency"},
    ],
    ids=str,
)
def test_runs_that_finished_decide_nothing_where_those_of_one_side_diverged(
    measure: dict[str, Any], num_diverged: int
) -> None:
    runs = runs_of("ar-sgd", []) + runs_of("ad-psgd", SEEDS[:num_diverged])
    result = example_result(example_study(execution="mpi"), runs)

    judged = judge_first(result, {**BETTER, **measure})

    assert (judged.verdict, judged.decisive) == (Verdict.NOT_DECIDABLE, None)
    counts = f"{num_diverged} of 10 seeds of AD-PSGD and 0 of 10 of AR-SGD"
    assert judged.reason == f"runs diverged at {counts}"
    would_decide = "a lower learning rate, or the measure `diverged`"
    assert judged.would_decide == f"{would_decide}: {judged.reason}"
    assert verdict_text(judged) == (
        f"not decidable here; would be decided by {judged.would_decide}"
    )


def test_a_control_that_diverged_confirms_no_lead_over_it() -> None:
    runs = runs_of("ar-sgd", [2, 3]) + runs_of("ad-psgd", [3])

    judged = judge_first(example_result(example_study(), runs), BETTER)

    assert judged.verdict is Verdict.NOT_DECIDABLE
    assert judged.reason == "runs diverged at 1 of 10 seeds of AD-PSGD and 2 of 10 of AR-SGD"


def test_seeds_at_which_both_sides_diverged_are_left_out() -> None:
    runs = runs_of("ar-sgd", [2, 3]) + runs_of("ad-psgd", [2, 3])

    judged = judge_first(example_result(example_study(), runs), BETTER)

    assert judged.verdict is Verdict.CONFIRMED
    (comparison,) = judged.comparisons
    assert (comparison.num_pairs, comparison.num_seeds) == (8, 10)


def test_a_seed_beyond_those_of_the_claim_may_diverge() -> None:
    runs = runs_of("ar-sgd", []) + runs_of("ad-psgd", [9])
    result = example_result(example_study(), runs)

    assert judge_first(result, {**BETTER, "seeds": 8}).verdict is Verdict.CONFIRMED
    assert judge_first(result, {**BETTER, "seeds": 9}).verdict is Verdict.NOT_DECIDABLE


def test_a_seed_that_was_not_run_does_not_count_as_diverged() -> None:
    runs = runs_of("ar-sgd", []) + runs_of("ad-psgd", [])[:6]

    judged = judge_first(example_result(example_study(), runs), BETTER)

    assert judged.verdict is Verdict.CONFIRMED
    assert judged.comparisons[0].num_pairs == 6


@pytest.mark.parametrize("measure", ["diverged", "seconds_per_batch"])
def test_what_does_not_need_the_diverged_runs_is_judged(measure: str) -> None:
    """The time of given steps does not depend on what is learnt."""
    runs = runs_of("ar-sgd", SEEDS[:8]) + runs_of("ad-psgd", [])
    result = example_result(example_study(execution="mpi"), runs)

    judged = judge_first(result, {**BETTER, "measure": measure})

    assert judged.verdict is Verdict.CONFIRMED


def test_settings_at_which_runs_diverged_are_not_left_out_of_a_claim() -> None:
    """With 2 workers the claim holds; with 4 workers most runs of the better method diverged."""
    runs = []
    for workers, diverged_seeds in ((2, []), (4, SEEDS[:7])):
        values = {"train.workers": workers}
        runs += runs_of("ar-sgd", [], values) + runs_of("ad-psgd", diverged_seeds, values)
    result = example_result(example_study(vary={"train.workers": [2, 4]}), runs)

    judged = judge_first(result, BETTER)

    assert judged.verdict is Verdict.NOT_DECIDABLE
    assert judged.reason == (
        "runs diverged at 7 of 10 seeds of AD-PSGD, workers 4 and 0 of 10 of AR-SGD, workers 4"
    )


def test_a_reference_that_diverged_leaves_an_efficiency_without_a_number() -> None:
    """The efficiency of AD-PSGD is relative to AR-SGD with as many workers."""
    runs = []
    for workers, diverged_seeds in ((2, []), (4, [1, 2, 3])):
        values = {"train.workers": workers}
        runs += runs_of("ar-sgd", diverged_seeds, values) + runs_of("ad-psgd", [], values)
    study = example_study(vary={"train.workers": [2, 4]}, execution="mpi")
    claim = {"flat": "ad-psgd", "over": "train.workers", "measure": "temporal_efficiency"}

    judged = judge_first(example_result(study, runs), claim)

    assert judged.verdict is Verdict.NOT_DECIDABLE
    assert judged.reason == (
        "runs diverged at 3 of 10 seeds of AD-PSGD, workers 4 and 0 of 10 of AD-PSGD, workers 2"
    )


def test_the_page_shows_no_difference_of_the_runs_that_finished() -> None:
    claim = {"says": "It is so.", "place": "there", "protocol": "equal settings"}
    study = example_study(claims=[{**claim, **BETTER, "measure": "test_accuracy"}])
    runs = runs_of("ar-sgd", []) + runs_of("ad-psgd", SEEDS[:7])

    page = render(example_result(study, runs), folder="figures")

    assert "AD-PSGD against AR-SGD: -, 3 of 10 seeds" in page
