"""Claims of a source: what the runs say about them."""

from __future__ import annotations

import base64
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from example_study import NUM_EVENTS, example_check, example_result, example_run, example_study

from hep_studies.comparisons import decision_threshold
from hep_studies.judging import JudgedClaim, judge
from hep_studies.pages import notes, render
from hep_studies.run_result import Counts
from hep_studies.study_result import Cell, StudyResult
from hep_studies.study_sections import Claim
from hep_studies.verdicts import LEVEL, Verdict

SEEDS = range(1, 7)
BETTER = {"better": "ad-psgd", "control": "ar-sgd"}
BATCH = {**BETTER, "measure": "seconds_per_batch"}
EXACT = [example_check(method, 1e-3, 1e-3) for method in ("ar-sgd", "ad-psgd")]


def judged(result: StudyResult, *claims: dict[str, Any], **changes: Any) -> JudgedClaim:
    document = {
        **result.study.model_dump(),
        **changes,
        "claims": [{"says": "It is so.", **claim} for claim in claims],
    }
    return judge(replace(result, study=example_study(**document)))[0]


ACCURACIES = example_result(
    example_study(),
    [
        example_run(method, seed, correct=correct + seed)
        for seed in SEEDS
        for method, correct in (("ar-sgd", 800), ("sgd", 800), ("ad-psgd", 900))
    ],
)


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
        # A verdict knows the claimed size: the page called an interval that excludes it undecided.
        ({**BETTER, "size": 0.05}, Verdict.CONFIRMED),
        ({**BETTER, "size": 0.3}, Verdict.SMALLER),
        ({"better": "sgd", "control": "ar-sgd", "size": 0.1}, Verdict.SMALLER),
        ({**BETTER, "not_decidable": "It is of another detector."}, Verdict.NOT_DECIDABLE),
        ({**BETTER, "withdrawn": "until they are run again"}, Verdict.WITHDRAWN),
    ],
)
def test_claims_about_accuracies(claim: dict[str, Any], verdict: Verdict) -> None:
    actual = judged(ACCURACIES, claim)
    assert actual.verdict is verdict
    assert bool(actual.reason) == (verdict in (Verdict.NOT_DECIDABLE, Verdict.WITHDRAWN))


def test_a_withdrawn_claim_has_no_number_and_leaves_the_others_as_they_are() -> None:
    second, withdrawn = (
        BETTER,
        {"better": "sgd", "control": "ar-sgd", "withdrawn": "until they are run again"},
    )

    actual, beside = judged(ACCURACIES, withdrawn, second), judged(ACCURACIES, second, withdrawn)

    assert (actual.verdict, actual.decisive, actual.comparisons) == (Verdict.WITHDRAWN, None, [])
    assert beside == judged(ACCURACIES, second, {"better": "sgd", "control": "ar-sgd"})


@pytest.mark.parametrize(
    ("claim", "least"),
    [
        ({}, 0.001),
        ({"size": 0.0015}, 0.001),
        ({"size": 0.0046, **within(0.002)}, 0.0026),
        ({"measure": "seconds", "size": 2}, math.log(2 / 1.1)),
        ({"measure": "seconds"}, math.log(1.1)),
    ],
)
def test_the_least_effect_that_confirms(claim: dict[str, Any], least: float) -> None:
    assert decision_threshold(
        Claim.model_validate({"says": "x", **BETTER, **claim})
    ) == pytest.approx(least)


def test_a_claim_is_judged_by_the_seeds_fixed_beforehand() -> None:
    (pair,) = judged(ACCURACIES, {**BETTER, "seeds": 3}).comparisons
    assert (pair.difference.num_seeds, pair.num_pairs, pair.num_seeds) == (3, 3, 3)


RATE = "train.learning_rate"


def test_the_same_settings_and_each_at_its_best_are_two_claims() -> None:
    """Slow momentum helps where the rate is too small: the claim at equal rates was published as undecided."""
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
            runs.append(
                replace(run, curves={**run.curves, "val_loss": [loss + 0.001 * (seed % 3)]})
            )
    result = example_result(example_study(vary={RATE: [0.1, 0.2]}, best_of=[RATE]), runs)
    for protocol, value, verdict in (
        ({"at": {RATE: 0.1}}, 0.05, Verdict.CONFIRMED),
        ({"at": {RATE: 0.2}}, -0.03, Verdict.CONTRADICTED),
        ({"protocol": "each at its best"}, -0.03, Verdict.CONTRADICTED),
    ):
        actual = judged(result, {**BETTER, "measure": "val_loss", **protocol})
        assert actual.verdict is verdict
        assert actual.comparisons[0].difference.mean == pytest.approx(value)


def test_claims_of_a_topic_are_a_family() -> None:
    first = {**BETTER, **within(0.0999)}
    for remaining, index in (([], 1), ([first] * 4, 5), ([{**first, "topic": "b"}] * 4, 1)):
        assert judged(ACCURACIES, first, *remaining).comparisons[0].level == pytest.approx(
            LEVEL / index
        )


def test_accuracies_counted_each_event_once_whatever_its_weight() -> None:
    rng = np.random.default_rng(1)
    weights = rng.gamma(2.0, size=NUM_EVENTS).astype(np.float32)
    # The same events for all seeds, so that the error is that of the events.
    right = np.repeat(
        rng.random((2, 1, NUM_EVENTS)) < np.array([0.85, 0.8])[:, None, None], len(SEEDS), axis=1
    )
    runs = [
        replace(
            example_run(method, seed),
            counts=Counts.from_mask(mask, float(weights[mask].sum() / weights.sum())),
        )
        for method, masks in zip(("ad-psgd", "ar-sgd"), right, strict=True)
        for seed, mask in zip(SEEDS, masks, strict=True)
    ]
    result = replace(
        example_result(example_study(), runs),
        test_weights=base64.b64encode(weights.tobytes()).decode(),
    )
    (pair,) = judged(result, BETTER).comparisons
    accuracies = [np.mean([mask @ weights / weights.sum() for mask in masks]) for masks in right]
    assert pair.difference.mean == pytest.approx(accuracies[0] - accuracies[1], abs=1e-6)
    numbers = [
        result.numbers(Cell(method), "test_accuracy").mean() for method in ("ad-psgd", "ar-sgd")
    ]
    assert numbers == pytest.approx(accuracies, abs=1e-6)
    # Events of unequal weight say less: the error grows by the root of the mean square over the mean.
    equal = base64.b64encode(np.ones(NUM_EVENTS, np.float32).tobytes()).decode()
    (plain,) = judged(replace(result, test_weights=equal), BETTER).comparisons
    ratio = pair.difference.half_width() / plain.difference.half_width()
    assert ratio == pytest.approx(np.sqrt(np.mean(weights**2)) / weights.mean(), rel=0.05)
    effective = weights.sum() ** 2 / (weights**2).sum()
    assert f"which count as N = {effective:,.0f} of equal weight" in render(
        result, folder="figures"
    )


def times(law: dict[str, Any]) -> StudyResult:
    """Seconds per epoch by method and number of workers."""
    study = example_study(vary={"train.workers": [2, 4, 8]}, times_only=4)
    runs = [
        example_run(
            method,
            seed,
            values={"train.workers": workers},
            seconds=seconds(workers) * (1 + 0.002 * (seed % 3)),
        )
        for seed in SEEDS
        for method, seconds in law.items()
        for workers in (2, 4, 8)
    ]
    return example_result(
        study, [*runs, *(example_run("sgd", seed, seconds=0.1) for seed in SEEDS)], checks=EXACT
    )


TIMES = times({"ar-sgd": lambda workers: 0.1 * workers, "ad-psgd": lambda _: 0.1})


def workers(index: int, method: str) -> dict[str, Any]:
    return {"method": method, "train.workers": index}


OVER = {"over": "train.workers", "measure": "seconds_per_batch"}


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ({"flat": "ad-psgd", **OVER}, Verdict.EQUIVALENT),
        ({"flat": "ar-sgd", **OVER}, Verdict.CONTRADICTED),
        ({"grows": "ar-sgd", **OVER}, Verdict.CONFIRMED),
        ({"grows": "ar-sgd", **OVER, "size": 8}, Verdict.SMALLER),
        ({"grows": "ad-psgd", **OVER}, Verdict.SMALLER),
        # Every number of workers is compared: a shorter time is better, and so is a larger speed-up.
        (BATCH, Verdict.CONFIRMED),
        ({**BATCH, "size": 3.0}, Verdict.SMALLER),
        ({**BATCH, "better": workers(8, "ad-psgd"), "measure": "speed_up", "size": 7}, Verdict.CONFIRMED),
        ({"better": workers(2, "ar-sgd"), "control": workers(8, "ar-sgd"), "measure": "seconds"}, Verdict.CONFIRMED),
    ],
)  # fmt: skip
def test_claims_about_times_compare_ratios(claim: dict[str, Any], verdict: Verdict) -> None:
    assert judged(TIMES, claim).verdict is verdict


def test_only_cells_with_the_same_other_values_are_compared() -> None:
    actual = judged(TIMES, {**BETTER, "measure": "seconds"})
    assert [
        (pair.treatment.plain_values, pair.control.plain_values) for pair in actual.comparisons
    ] == [({"train.workers": n},) * 2 for n in (2, 4, 8)]
    # The claim depends on the least of them: half the time with two workers.
    assert actual.decisive == actual.comparisons[0]
    assert actual.comparisons[0].difference.mean == pytest.approx(math.log(2), abs=1e-6)


@pytest.mark.parametrize(
    ("share", "verdict"),
    [(1.0, Verdict.CONTRADICTED), (0.7, Verdict.CONTRADICTED), (0.6, Verdict.CONFIRMED)],
)
def test_a_claim_about_most_cells_was_judged_in_all(share: float, verdict: Verdict) -> None:
    law = {"ar-sgd": lambda _: 0.1, "ad-psgd": lambda workers: 0.05 if workers > 2 else 0.2}
    assert judged(times(law), {**BATCH, "share_of_cells": share}).verdict is verdict


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [
        # AD-PSGD takes half the time with 2 workers, and an eighth with 16. The least step is of 25 ms.
        ((0.0, 0.0), Verdict.CONFIRMED),
        # An unmodelled half of a millisecond: of a step of 1 ms it would be half.
        ((5e-4, 5e-4), Verdict.CONFIRMED),
        ((0.0, 5e-4), Verdict.CONFIRMED),
        ((0.0, 0.3), Verdict.NOT_DECIDABLE),
        # The slower one is slower still: nothing speaks against the claim.
        ((0.3, 0.0), Verdict.CONFIRMED),
        (None, Verdict.NOT_DECIDABLE),
    ],
)
def test_milliseconds_that_a_check_misses_counted_as_a_share_of_its_own_short_step(
    gaps: tuple[float, float] | None, verdict: Verdict
) -> None:
    checks = [
        example_check(name, 1.0 + gap, 1.0)
        for name, gap in zip(("ar-sgd", "ad-psgd"), gaps or (), strict=False)
    ]
    actual = judged(replace(TIMES, checks=checks), BATCH)
    assert actual.verdict is verdict
    assert ("times" in actual.reason) == (verdict is Verdict.NOT_DECIDABLE)
    # Measured times need no check.
    mpi = TIMES.study.model_copy(update={"execution": "mpi", "times_only": None})
    measured = replace(TIMES, checks=checks, study=mpi)
    assert judged(measured, BATCH).verdict is Verdict.CONFIRMED


def test_a_check_is_of_the_step_that_is_claimed() -> None:
    """Checks at steps of 0.05 to 0.7 ms judged claims about steps of 1 to 350 ms."""
    checks = [
        replace(example_check(method, 1.0, 1.0), step_seconds=2e-3)
        for method in ("ar-sgd", "ad-psgd")
    ]
    assert judged(replace(TIMES, checks=checks), BATCH).verdict is Verdict.NOT_DECIDABLE


@pytest.mark.parametrize(
    ("index", "verdict", "shifts"),
    [
        (2, Verdict.CONFIRMED, (math.log(2 / 3), 0.0)),
        (8, Verdict.NOT_DECIDABLE, (math.log(1 / 3), math.log(2))),
    ],
)
def test_times_of_unlike_numbers_of_workers_took_only_the_spread_among_the_checks(
    index: int, verdict: Verdict, shifts: tuple[float, float]
) -> None:
    """Both methods take 10 ms longer than simulated; with other numbers of workers they may not do so."""
    law = {"ar-sgd": lambda _: 0.1, "ad-psgd": lambda _: 0.05}
    checks = [example_check(method, 0.11, 0.1) for method in ("ar-sgd", "ad-psgd")]
    claim = {**BATCH, "better": workers(index, "ad-psgd"), "control": workers(2, "ar-sgd")}
    actual = judged(replace(times(law), checks=checks), claim)
    assert actual.verdict is verdict
    # Steps of 10 ms and of 5 ms take twice and three times as long.
    assert actual.comparisons[0].difference.shifts == pytest.approx(shifts, abs=5e-3)


@pytest.mark.parametrize(
    ("gap", "verdict"),
    [(None, "not decidable here"), (0.0, "confirmed"), (1.0, "not decidable here")],
)
def test_a_share_of_the_time_was_claimed_although_no_check_confirmed_the_times(
    gap: float | None, verdict: str
) -> None:
    shares = {"ar-sgd": 0.5, "ad-psgd": 0.9, "sgd": 1.0}
    created = [example_run(method, seed) for method in shares for seed in SEEDS]
    runs = [
        replace(run, numbers={**run.numbers, "utilisation": shares[run.method] + 0.001 * run.seed})
        for run in created
    ]
    checks = [EXACT[0], example_check("ad-psgd", 1.0 + gap, 1.0)] if gap is not None else []
    actual = judged(
        example_result(example_study(), runs, checks=checks), {**BETTER, "measure": "utilisation"}
    )
    assert actual.verdict == verdict


def test_a_demonstration_decides_nothing_about_what_is_learnt() -> None:
    few = {"demonstration": "359 digits."}
    actual = judged(ACCURACIES, BETTER, **few)
    assert (actual.verdict, actual.reason) == (
        Verdict.NOT_DECIDABLE,
        "a demonstration: 359 digits.",
    )
    assert judged(TIMES, BATCH, **few).verdict is Verdict.CONFIRMED
    assert (
        judged(TIMES, {**BETTER, "measure": "temporal_efficiency"}, **few).verdict
        is Verdict.NOT_DECIDABLE
    )


def test_what_has_no_number_settles_nothing() -> None:
    lacking = replace(ACCURACIES, runs=[run for run in ACCURACIES.runs if run.method != "ad-psgd"])
    assert judged(lacking, BETTER)[1:] == (Verdict.NOT_DECIDABLE, [], "not run")
    actual = judged(ACCURACIES, {**BETTER, "measure": "seconds_to=0.99"})
    assert (actual.verdict, actual.decisive) == (Verdict.NOT_DECIDABLE, None)
    assert actual.reason == "a run diverged or ended too early"


@pytest.mark.parametrize(
    ("numbers", "curves", "measure", "why"),
    [
        ({"samples": 628}, {}, "test_accuracy", "838 and 628 events were seen"),
        ({"averages_begun": 0}, {}, "test_accuracy", "no averages begun of AD-PSGD"),
        (
            {},
            {"communicate": [0.0] * 6},
            "communication_per_epoch",
            "a ratio to 0 says nothing, AD-PSGD",
        ),
        ({}, {"communicate": [0.0] * 6}, "test_accuracy", ""),
        ({"averages_begun": 3}, {}, "test_accuracy", ""),
    ],
    ids=str,
)
def test_methods_that_say_nothing_of_each_other_were_compared(
    numbers: dict[str, float], curves: dict[str, list[float]], measure: str, why: str
) -> None:
    runs = []
    for run in ACCURACIES.runs:
        mine = (numbers, curves) if run.method == "ad-psgd" else ({}, {})
        all_numbers = {**run.numbers, "samples": 838, **mine[0]}
        runs.append(replace(run, numbers=all_numbers, curves={**run.curves, **mine[1]}))
    result = example_result(example_study(), runs)
    claim = {"better": "ar-sgd", "control": "ad-psgd", "measure": measure}
    actual = judged(result, claim)
    assert actual.comparisons[0].obstacle == why
    message = [f"Not compared, {why}: AR-SGD against AD-PSGD."] if why else []
    assert notes(result, [actual]) == message
