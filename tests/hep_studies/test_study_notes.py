"""Notes on a study: mishaps of its runs, and what makes its numbers unsafe to quote."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from example_study import example_check, example_result, example_run, example_study

from hep_studies.judging import judge
from hep_studies.pages import render
from hep_studies.run_result import RunResult
from hep_studies.study_notes import cautions, notes
from hep_studies.study_result import StudyResult, TimeCheck

RATE = "train.learning_rate"
FASTER = {
    "says": "It is faster.",
    "better": "ad-psgd",
    "control": "ar-sgd",
    "protocol": "equal settings",
}
CHECKS = [example_check(method, 1e-3, 1e-3) for method in ("ar-sgd", "ad-psgd")]


def test_steps_without_effect_and_lost_averages_are_said() -> None:
    numbers = {**example_run("ad-psgd", 1).numbers, "steps_not_finite": 3.0, "averages_lost": 12.0}
    runs = [replace(example_run("ad-psgd", seed), numbers=numbers) for seed in (1, 2)]

    sentences = notes(example_result(example_study(), [example_run("sgd", 1), *runs]))

    assert sentences == [
        "6 steps had no effect, since a gradient or an update was not finite: of AD-PSGD 6.",
        "Workers left out 24 averages, counted on both sides of a pair: of AD-PSGD 24.",
    ]


def test_a_joint_model_that_gets_few_of_the_steps_is_said() -> None:
    sums = {"sums": 31.0, "steps_per_cycle": 24.7}
    shares = {"ad-psgd": 0.22, "ar-sgd": 0.6}
    runs = [example_run("sgd", 1)]
    for method, share in shares.items():
        run = example_run(method, 1)
        runs.append(replace(run, numbers={**run.numbers, **sums, "effective_share": share}))

    (sentence,) = notes(example_result(example_study(), runs))

    assert sentence.startswith(
        "AD-PSGD: the joint model got 22% of the workers' steps, in 31 sums with 25 steps of a worker"
    )


def test_the_cells_of_a_method_with_few_steps_share_a_sentence() -> None:
    runs = [example_run("sgd", 1), example_run("ar-sgd", 1)]
    for workers, share in ((4, 0.4), (16, 0.3)):
        run = example_run("ad-psgd", 1, values={"train.workers": workers})
        numbers = {**run.numbers, "sums": 31.0, "steps_per_cycle": 25.0, "effective_share": share}
        runs.append(replace(run, numbers=numbers))
    study = example_study(vary={"train.workers": [4, 16]})

    (sentence,) = notes(example_result(study, runs))

    assert sentence.startswith("AD-PSGD, workers 16: the joint model got 30% of the workers' steps")
    assert sentence.endswith("So it is in 2 cells of AD-PSGD, with up to 40%.")


def test_there_is_no_note_if_all_is_well() -> None:
    assert notes(example_result(example_study(), [example_run("sgd", 1)])) == []


def result_with_checks(checks: list[TimeCheck], measure: str = "seconds") -> StudyResult:
    study = example_study(claims=[{**FASTER, "measure": measure}])
    runs = [example_run(method, 1) for method in ("ar-sgd", "sgd", "ad-psgd")]
    return example_result(study, runs, checks=checks)


@pytest.mark.parametrize(
    ("refused", "measure", "is_said"),
    [("it was busy", "seconds", True), ("", "seconds", False), ("it was busy", "val_loss", False)],
)
def test_refused_checks_of_claimed_times_are_said(
    refused: str, measure: str, is_said: bool
) -> None:
    checks = [replace(check, refused=refused) for check in CHECKS]

    sentences = cautions(result_with_checks(checks, measure), [])

    unchecked = (
        "Times of all methods are in no headline, since their check is not used: it was busy."
    )
    assert sentences == ([unchecked] if is_said else [])


@pytest.mark.parametrize(("measured", "is_said"), [(6.1, False), (6.3, True), (3.9, True)])
def test_fewer_or_more_sums_than_simulated_are_said(measured: float, is_said: bool) -> None:
    first, second = CHECKS
    sums = {"steps_per_cycle": measured, "simulated_steps_per_cycle": 5.0}
    of_sums, refused = replace(second, **sums), replace(second, **sums, refused="load")
    result = example_result(example_study(), [example_run("sgd", 1)], checks=[first, of_sums])

    sentence = (
        f"Ranks of this machine take {measured} steps between two sums of AD-PSGD, simulated "
        f"workers 5.0. What the method learns depends on them, so that ranks would learn otherwise."
    )
    assert cautions(result, []) == [sentence][: int(is_said)]
    assert f"a rank of AD-PSGD took {measured} steps, a simulated worker 5.0." in render(
        result, folder="figures"
    )
    assert cautions(replace(result, checks=[first, refused]), []) == []


def test_a_refused_check_is_said_with_its_reason() -> None:
    accepted, refused = [replace(check, repeats=5) for check in CHECKS]
    checks = [accepted, replace(refused, refused="its repeats differ by 3 ms")]

    # Accepted repeats have seen their own load; that before the runs does not count.
    (sentence,) = cautions(result_with_checks(checks), [])

    reason = "since their check is not used: its repeats differ by 3 ms."
    assert sentence == f"Times of AD-PSGD are in no headline, {reason}"


def run_at_rate(method: str, correct: int, rate: float, **numbers: float) -> RunResult:
    run = example_run(method, 1, correct=correct, values={RATE: rate})
    return replace(run, numbers={**run.numbers, **numbers})


@pytest.mark.parametrize(
    ("correct", "best_of", "is_said"),
    [
        (700, [RATE], True),
        (850, [RATE], False),
        (700, [], False),
    ],
)
def test_a_method_far_behind_one_worker_at_its_best_is_a_broken_baseline(
    correct: int, best_of: list[str], is_said: bool
) -> None:
    runs = [
        run_at_rate("ar-sgd", correct, 0.1, learning_rate_in_effect=0.4),
        run_at_rate("sgd", 900, 0.1, learning_rate_in_effect=0.1),
    ]
    study: dict[str, Any] = {"vary": {RATE: [0.1]}, "best_of": best_of}

    sentences = cautions(example_result(example_study(**study), runs), [])

    broken = (
        "A broken baseline: AR-SGD has 70.00 % where one worker has 90.00 %, at the learning rate "
        "0.1, which the number of workers makes 0.4. It shows no strength of another method."
    )
    assert sentences == ([broken] if is_said else [])


def test_best_values_at_the_edge_of_their_sweep_are_said() -> None:
    claim = {**FASTER, "measure": "val_loss", "protocol": "each at its best"}
    study = example_study(claims=[claim], vary={RATE: [0.1, 0.2, 0.3]}, best_of=[RATE])
    best_rates = {"ar-sgd": 0.1, "sgd": 0.1, "ad-psgd": 0.2}
    runs = [
        run_at_rate(method, 950 if rate == best_rate else 900, rate)
        for method, best_rate in best_rates.items()
        for rate in (0.1, 0.2, 0.3)
    ]
    result = example_result(study, runs)

    (sentence,) = cautions(result, judge(result))

    start = (
        "Best of those tried, at an edge: learning rate 0.1, the lowest tried (AR-SGD). A better"
    )
    assert sentence.startswith(start)
