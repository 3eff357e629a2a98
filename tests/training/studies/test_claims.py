"""Claims of a source: confirmed, refuted or undecided by the runs."""

from __future__ import annotations

from typing import Any

import pytest
from made_study import made_result, made_run, made_study

from training.studies.claims import ClaimVerdict, effect, in_words, judge
from training.studies.results import Cell, StudyResult

SEEDS = range(1, 6)


def judged(claim: dict[str, Any], result: StudyResult) -> Any:
    study = made_study(**{**result.study.model_dump(exclude={"claims"}), "claims": [{"claim": "It is so.", **claim}]})
    return judge(result._replace(study=study))[1][0]


ACCURACIES = made_result(
    made_study(),
    [
        made_run(method, seed, correct=correct + seed)
        for seed in SEEDS
        for method, correct in (("ar-sgd", 800), ("sgd", 800), ("ad-psgd", 900))
    ],
)


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ({"better": "ad-psgd", "than": "ar-sgd"}, ClaimVerdict.CONFIRMED),
        ({"better": "ar-sgd", "than": "ad-psgd"}, ClaimVerdict.REFUTED),
        ({"better": "ad-psgd", "than": ["ar-sgd", "sgd"]}, ClaimVerdict.CONFIRMED),
        ({"equivalent": "sgd", "than": "ar-sgd", "within": 0.02}, ClaimVerdict.CONFIRMED),
        ({"equivalent": "ad-psgd", "than": "ar-sgd"}, ClaimVerdict.REFUTED),
        # Nothing differs, but 0.1 points are too few for 1000 events.
        ({"better": "sgd", "than": "ar-sgd"}, ClaimVerdict.UNDECIDED),
        # By 10 points, not by 30.
        ({"better": "ad-psgd", "than": "ar-sgd", "at_least": 0.05}, ClaimVerdict.CONFIRMED),
        ({"better": "ad-psgd", "than": "ar-sgd", "at_least": 0.3}, ClaimVerdict.REFUTED),
    ],
)
def test_claims_about_accuracies(claim: dict[str, Any], verdict: ClaimVerdict) -> None:
    found = judged(claim, ACCURACIES)
    assert found.verdict is verdict
    assert bool(found.needed) == (verdict is ClaimVerdict.UNDECIDED)


def times(law: dict[str, Any]) -> StudyResult:
    """Seconds per epoch by method and number of workers."""
    study = made_study(vary={"train.workers": [2, 4, 8]}, times_only=4)
    runs = [
        made_run(method, seed, values={"train.workers": workers}, seconds=seconds(workers) * (1 + 0.002 * (seed % 3)))
        for seed in SEEDS
        for method, seconds in law.items()
        for workers in (2, 4, 8)
    ]
    return made_result(study, [*runs, *(made_run("sgd", seed, seconds=0.1) for seed in SEEDS)])


TIMES = times({"ar-sgd": lambda workers: 0.1 * workers, "ad-psgd": lambda _: 0.1})


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ({"flat": "ad-psgd", "over": "train.workers", "measure": "seconds_per_batch"}, ClaimVerdict.CONFIRMED),
        ({"flat": "ar-sgd", "over": "train.workers", "measure": "seconds_per_batch"}, ClaimVerdict.REFUTED),
        ({"grows": "ar-sgd", "over": "train.workers", "measure": "seconds_per_batch"}, ClaimVerdict.CONFIRMED),
        ({"grows": "ad-psgd", "over": "train.workers", "measure": "seconds_per_batch"}, ClaimVerdict.REFUTED),
        # Every number of workers is compared: a shorter time is better, and so is a larger speed-up.
        ({"better": "ad-psgd", "than": "ar-sgd", "measure": "seconds_per_batch"}, ClaimVerdict.CONFIRMED),
        (
            {"better": "ad-psgd", "than": "ar-sgd", "measure": "seconds_per_batch", "at_least": 3.0},
            ClaimVerdict.REFUTED,
        ),
        (
            {
                "better": {"method": "ad-psgd", "train.workers": 8},
                "than": "ar-sgd",
                "measure": "speed_up",
                "at_least": 7,
            },
            ClaimVerdict.CONFIRMED,
        ),
        (
            {
                "better": {"method": "ar-sgd", "train.workers": 2},
                "than": {"method": "ar-sgd", "train.workers": 8},
                "measure": "seconds",
            },
            ClaimVerdict.CONFIRMED,
        ),
    ],
)
def test_claims_about_times_compare_ratios(claim: dict[str, Any], verdict: ClaimVerdict) -> None:
    assert judged(claim, TIMES).verdict is verdict


def test_only_cells_with_the_same_other_values_are_compared() -> None:
    found = judged({"better": "ad-psgd", "than": "ar-sgd", "measure": "seconds"}, TIMES)
    assert [(each.this.values, each.other.values) for each in found.judged] == [
        (((("train.workers", str(workers))),),) * 2 for workers in (2, 4, 8)
    ]
    first, judgement = next(iter(found.judged.items()))
    assert effect(first, judgement)[0] == "x 0.500"
    assert in_words(first, judgement) == "better"


def test_a_claim_without_runs_is_not_tested() -> None:
    lacking = ACCURACIES._replace(runs=[run for run in ACCURACIES.runs if run.method != "ad-psgd"])
    assert judged({"better": "ad-psgd", "than": "ar-sgd"}, lacking).verdict is ClaimVerdict.NOT_TESTED


def test_every_method_is_compared_with_the_reference() -> None:
    found, _ = judge(ACCURACIES)
    assert [(each.this, each.other) for each in found] == [
        (Cell("sgd"), Cell("ar-sgd")),
        (Cell("ad-psgd"), Cell("ar-sgd")),
    ]


def test_a_goal_that_is_never_reached_settles_nothing() -> None:
    claim = {"better": "ad-psgd", "than": "ar-sgd", "measure": "seconds_to=0.99"}
    found = judged(claim, ACCURACIES)
    assert (found.verdict, found.needed) == (ClaimVerdict.UNDECIDED, "longer runs")
