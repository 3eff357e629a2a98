"""Verdicts on the claims of a source, from runs with invented numbers."""

from __future__ import annotations

import base64
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from example_study import (
    EQUAL_ACCURACY,
    NUM_EVENTS,
    example_result,
    example_run,
    example_study,
)
from judged_examples import ACCURACIES, BETTER, SEEDS, judge_first

from hep_studies.cells import Cell
from hep_studies.claim_texts import count_verdicts
from hep_studies.comparisons import decision_threshold
from hep_studies.judging import judge
from hep_studies.pages import render
from hep_studies.run_result import Counts
from hep_studies.study_notes import notes
from hep_studies.study_sections import Claim
from hep_studies.verdicts import LEVEL, Verdict

RATE = "train.learning_rate"


def within(margin: float) -> dict[str, Any]:
    return {"margin": margin, "because": "it is so"}


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        (BETTER, Verdict.CONFIRMED),
        ({"better": "ar-sgd", "control": "ad-psgd"}, Verdict.CONTRADICTED),
        ({"better": "ad-psgd", "control": ["ar-sgd", "sgd"]}, Verdict.CONFIRMED),
        ({"equivalent": "sgd", "control": "ar-sgd", **within(0.02)}, Verdict.EQUIVALENT),
        ({"equivalent": "ad-psgd", "control": "ar-sgd"}, Verdict.CONTRADICTED),
        # The difference is 10 points, and its interval begins at 8: it may be within 9.5.
        ({"equivalent": "ad-psgd", "control": "ar-sgd", **within(0.095)}, Verdict.NOT_DECIDABLE),
        ({**BETTER, "size": 0.05}, Verdict.CONFIRMED),
        ({**BETTER, "size": 0.3}, Verdict.SMALLER),
        # The difference is 10 points, and its interval begins at 8.
        ({**BETTER, "size": 0.05, "size_is": "about"}, Verdict.LARGER),
        ({**BETTER, "size": 0.05, "size_is": "about", **within(0.04)}, Verdict.CONFIRMED),
        ({**BETTER, "size": 0.3, "size_is": "about"}, Verdict.SMALLER),
        ({"better": "sgd", "control": "ar-sgd", "size": 0.1}, Verdict.SMALLER),
        ({**BETTER, "not_decidable": "It is of another detector."}, Verdict.NOT_DECIDABLE),
        ({**BETTER, "withdrawn": "until they are run again"}, Verdict.WITHDRAWN),
    ],
)
def test_claims_about_accuracies(claim: dict[str, Any], verdict: Verdict) -> None:
    judged = judge_first(ACCURACIES, claim)

    assert judged.verdict is verdict
    assert bool(judged.reason) == (verdict in (Verdict.NOT_DECIDABLE, Verdict.WITHDRAWN))


def test_a_withdrawn_claim_has_no_number_and_leaves_the_intervals_of_others() -> None:
    unclear = {"better": "sgd", "control": "ar-sgd"}
    withdrawn = {**unclear, "withdrawn": "until they are run again"}

    judged = judge_first(ACCURACIES, withdrawn, BETTER)

    assert (judged.verdict, judged.decisive) == (Verdict.WITHDRAWN, None)
    beside_withdrawn = judge_first(ACCURACIES, BETTER, withdrawn)
    assert beside_withdrawn == judge_first(ACCURACIES, BETTER, unclear)


@pytest.mark.parametrize(
    ("claim", "threshold"),
    [
        ({}, 0.001),
        ({"size": 0.0015}, 0.001),
        ({"size": 0.0046, **within(0.002)}, 0.0026),
        ({"measure": "seconds", "size": 2}, math.log(2 / 1.1)),
        ({"measure": "seconds"}, math.log(1.1)),
    ],
)
def test_the_threshold_is_the_size_less_the_margin_and_at_least_the_margin(
    claim: dict[str, Any], threshold: float
) -> None:
    settings = Claim.model_validate({"says": "x", **EQUAL_ACCURACY, **BETTER, **claim})

    assert decision_threshold(settings) == pytest.approx(threshold)


def test_a_claim_is_judged_by_the_seeds_fixed_beforehand() -> None:
    (comparison,) = judge_first(ACCURACIES, {**BETTER, "seeds": 3}).comparisons

    assert comparison.difference.num_seeds == 3
    assert (comparison.num_pairs, comparison.num_seeds) == (3, 3)


@pytest.mark.parametrize(
    ("protocol", "difference", "verdict"),
    [
        ({"at": {RATE: 0.1}}, 0.05, Verdict.CONFIRMED),
        ({"at": {RATE: 0.2}}, -0.03, Verdict.CONTRADICTED),
        ({"protocol": "each at its best"}, -0.03, Verdict.CONTRADICTED),
    ],
)
def test_the_same_settings_and_each_at_its_best_are_two_claims(
    protocol: dict[str, Any], difference: float, verdict: Verdict
) -> None:
    losses = {
        ("ar-sgd", 0.1): 0.5,
        ("ar-sgd", 0.2): 0.4,
        ("ad-psgd", 0.1): 0.45,
        ("ad-psgd", 0.2): 0.43,
    }
    runs = []
    for (method, rate), loss in losses.items():
        for seed in SEEDS:
            run = example_run(method, seed, values={RATE: rate})
            curves = {**run.curves, "val_loss": [loss + 0.001 * (seed % 3)]}
            runs.append(replace(run, curves=curves))
    result = example_result(example_study(vary={RATE: [0.1, 0.2]}, best_of=[RATE]), runs)

    judged = judge_first(result, {**BETTER, "measure": "val_loss", **protocol})

    assert judged.verdict is verdict
    assert judged.comparisons[0].difference.mean == pytest.approx(difference)


def test_a_further_row_is_judged_beside_the_claim_of_the_source() -> None:
    claim = {**BETTER, "size": 0.3, "margin": 0.02, "because": "it is so"}
    also = [{"seeds": 3}, {"measure": "val_loss", "name": "loss"}]
    rows = [{"says": "It is so.", **EQUAL_ACCURACY, **claim, "also": also}]

    result = replace(ACCURACIES, study=example_study(claims=rows))

    first, same_measure, loss = judge(result)

    assert not first.is_second
    assert same_measure.is_second
    assert loss.is_second
    assert first.verdict is Verdict.SMALLER
    assert same_measure.verdict is Verdict.CONFIRMED
    assert same_measure.claim.size is None
    assert same_measure.claim.margin == 0.02
    assert loss.claim.size is None
    assert loss.claim.margin is None
    assert loss.claim.name == "loss"
    assert count_verdicts([first, same_measure, loss]) == "1 smaller than claimed"


def test_further_rows_do_not_widen_the_interval_of_the_claim() -> None:
    unclear = {**BETTER, **within(0.0999)}
    alone = judge_first(ACCURACIES, unclear)

    beside_rows = judge_first(ACCURACIES, {**unclear, "also": [{"seeds": 5}, {"seeds": 4}]})

    assert beside_rows.comparisons[0].difference == alone.comparisons[0].difference
    assert beside_rows.comparisons[0].level == alone.comparisons[0].level


@pytest.mark.parametrize(
    ("topics", "family_size"), [([], 1), ([""] * 4, 5), (["b"] * 4, 1)], ids=str
)
def test_claims_of_a_topic_are_a_family(topics: list[str], family_size: int) -> None:
    undecided = {**BETTER, **within(0.0999)}
    further = [{**undecided, "topic": topic} for topic in topics]

    (comparison,) = judge_first(ACCURACIES, undecided, *further).comparisons

    assert comparison.level == pytest.approx(LEVEL / family_size)


def encoded(weights: np.ndarray) -> str:
    return base64.b64encode(weights.astype(np.float32).tobytes()).decode()


def test_events_count_by_their_weight() -> None:
    rng = np.random.default_rng(1)
    weights = rng.gamma(2.0, size=NUM_EVENTS).astype(np.float32)
    accuracies = {}
    runs = []
    for method, accuracy in (("ad-psgd", 0.85), ("ar-sgd", 0.8)):
        # The same events for all seeds, so that the error is that of the events.
        is_correct = rng.random(NUM_EVENTS) < accuracy
        accuracies[method] = float(weights[is_correct].sum() / weights.sum())
        counts = Counts.from_mask(is_correct, accuracies[method])
        runs += [replace(example_run(method, seed), counts=counts) for seed in SEEDS]
    result = replace(example_result(example_study(), runs), test_weights=encoded(weights))
    unweighted = replace(result, test_weights=encoded(np.ones(NUM_EVENTS)))

    (weighted_comparison,) = judge_first(result, BETTER).comparisons
    (unweighted_comparison,) = judge_first(unweighted, BETTER).comparisons

    difference = accuracies["ad-psgd"] - accuracies["ar-sgd"]
    assert weighted_comparison.difference.mean == pytest.approx(difference, abs=1e-6)
    for method, accuracy in accuracies.items():
        numbers = result.numbers(Cell(method), "test_accuracy")
        assert numbers.mean() == pytest.approx(accuracy, abs=1e-6)
    # Events of unequal weight say less: the error grows by the root of the mean square over the
    # mean.
    widths = [
        comparison.difference.half_width()
        for comparison in (weighted_comparison, unweighted_comparison)
    ]
    growth = np.sqrt(np.mean(weights**2)) / weights.mean()
    assert widths[0] / widths[1] == pytest.approx(growth, rel=0.05)
    effective_events = weights.sum() ** 2 / (weights**2).sum()
    page = render(result, folder="figures")
    assert f"which count as N = {effective_events:,.0f} of equal weight" in page


def test_a_demonstration_decides_nothing_about_learning() -> None:
    judged = judge_first(ACCURACIES, BETTER, demonstration="359 digits.")

    assert judged.verdict is Verdict.NOT_DECIDABLE
    assert judged.reason == "a demonstration: 359 digits."


def test_a_claim_without_runs_is_not_decidable() -> None:
    runs = [run for run in ACCURACIES.runs if run.method != "ad-psgd"]

    judged = judge_first(replace(ACCURACIES, runs=runs), BETTER)

    assert (judged.verdict, judged.comparisons) == (Verdict.NOT_DECIDABLE, [])
    assert judged.reason == "not run"


def test_a_claim_at_a_value_that_is_not_run_is_not_decidable() -> None:
    runs = [replace(run, values={RATE: 0.1}) for run in ACCURACIES.runs]
    result = example_result(example_study(vary={RATE: [0.1]}, best_of=[RATE]), runs)

    judged = judge_first(result, {**BETTER, "at": {RATE: 0.2}})

    assert judged.verdict is Verdict.NOT_DECIDABLE
    assert judged.reason == "no runs of AD-PSGD at learning rate 0.2"


def test_a_claim_about_a_goal_that_no_run_reaches_is_not_decidable() -> None:
    judged = judge_first(ACCURACIES, {**BETTER, "measure": "seconds_to=0.99"})

    assert (judged.verdict, judged.decisive) == (Verdict.NOT_DECIDABLE, None)
    assert judged.reason == "a run diverged or ended too early"


NO_COMMUNICATION = {"communicate": [0.0] * 6}


@pytest.mark.parametrize(
    ("numbers", "curves", "measure", "obstacle"),
    [
        ({"samples": 628}, {}, "test_accuracy", "838 and 628 events were seen"),
        ({"averages_begun": 0}, {}, "test_accuracy", "no averages begun of AD-PSGD"),
        (
            {},
            NO_COMMUNICATION,
            "communication_per_epoch",
            "a ratio to 0 says nothing, AD-PSGD",
        ),
        ({}, NO_COMMUNICATION, "test_accuracy", ""),
        ({"averages_begun": 3}, {}, "test_accuracy", ""),
    ],
    ids=str,
)
def test_methods_that_say_nothing_about_each_other_are_not_compared(
    numbers: dict[str, float], curves: dict[str, list[float]], measure: str, obstacle: str
) -> None:
    runs = []
    for run in ACCURACIES.runs:
        run_numbers = {**run.numbers, "samples": 838}
        run_curves = dict(run.curves)
        if run.method == "ad-psgd":
            run_numbers |= numbers
            run_curves |= curves
        runs.append(replace(run, numbers=run_numbers, curves=run_curves))
    result = example_result(example_study(), runs)
    claim = {"better": "ar-sgd", "control": "ad-psgd", "measure": measure}

    judged = judge_first(result, claim)

    assert judged.comparisons[0].obstacle == obstacle
    sentence = f"Not compared, {obstacle}: AR-SGD against AD-PSGD."
    assert notes(result, [judged]) == ([sentence] if obstacle else [])


def test_a_claim_may_choose_the_best_settings_by_another_measure() -> None:
    """At the rate of the lowest loss AD-PSGD is better, at that of the best test accuracy worse."""
    accuracies = {("ad-psgd", 0.1): 800, ("ad-psgd", 0.2): 900, ("ar-sgd", 0.1): 850}
    runs = []
    for (method, rate), correct in accuracies.items():
        for seed in SEEDS:
            run = example_run(method, seed, correct=correct, values={RATE: rate})
            # The higher rate has the higher loss, and the lower validation accuracy.
            accuracy = [1 - rate - 0.001 * seed] * 6
            curves = {**run.curves, "val_loss": [rate] * 6, "val_accuracy": accuracy}
            runs.append(replace(run, curves=curves))
    study = example_study(vary={RATE: [0.1, 0.2]}, best_of=[RATE])
    result = example_result(study, runs)
    claim = {**BETTER, "protocol": "each at its best"}

    by_validation = judge_first(result, claim)
    by_test_events = judge_first(result, {**claim, "tuned_by": "test_accuracy"})

    assert by_validation.comparisons[0].difference.mean == pytest.approx(-0.05)
    assert by_test_events.comparisons[0].difference.mean == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("protocol", "measure", "is_at_edge"),
    [
        ({"protocol": "each at its best"}, "val_loss", True),
        # AR-SGD is at the lowest rate, which does not change the time of a step.
        ({"protocol": "each at its best"}, "seconds_per_batch", False),
        ({"at": {RATE: 0.1}}, "val_loss", False),
    ],
    ids=str,
)
def test_a_best_rate_at_the_edge_of_its_sweep_is_said(
    protocol: dict[str, Any], measure: str, is_at_edge: bool
) -> None:
    losses = {"ar-sgd": {0.1: 0.2, 0.2: 0.3, 0.4: 0.4}, "ad-psgd": {0.1: 0.4, 0.2: 0.3, 0.4: 0.4}}
    runs = []
    for method, losses_by_rate in losses.items():
        for rate, loss in losses_by_rate.items():
            for seed in SEEDS:
                run = example_run(method, seed, values={RATE: rate})
                curves = {**run.curves, "val_loss": [loss] * 6}
                runs.append(replace(run, curves=curves))
    study = example_study(vary={RATE: [0.1, 0.2, 0.4]}, best_of=[RATE])
    result = example_result(study, runs)

    judged = judge_first(result, {**BETTER, **protocol, "measure": measure})

    assert judged.is_at_edge == is_at_edge
