"""Claims of a source: confirmed, refuted or undecided by the runs."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from made_study import NUM_EVENTS, made_result, made_run, made_study

from training.studies.judging import ClaimVerdict, effect, in_words, judge, left_out
from training.studies.run_result import Counts
from training.studies.study_result import Cell, StudyResult, TimeCheck
from training.studies.tables import events_table, what_was_left_out

SEEDS = range(1, 6)


def judged(claim: dict[str, Any], result: StudyResult) -> Any:
    study = made_study(**{**result.study.model_dump(exclude={"claims"}), "claims": [{"claim": "It is so.", **claim}]})
    return judge(replace(result, study=study))[1][0]


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


def test_a_difference_that_may_be_within_the_margin_refuted_an_equivalence() -> None:
    # The difference is 10 points, and its interval begins at 8.
    for within, verdict in ((0.095, ClaimVerdict.UNDECIDED), (0.07, ClaimVerdict.REFUTED)):
        found = judged({"equivalent": "ad-psgd", "than": "ar-sgd", "within": within}, ACCURACIES)
        (judgement,) = found.judged.values()
        assert judgement.p_different < 1e-6
        assert judgement.difference.value > within
        assert found.verdict is verdict


def test_an_undecided_claim_about_accuracies_does_not_ask_for_times() -> None:
    # Equivalent within 10 points, but not shown to be below 0.05.
    found = judged({"better": "sgd", "than": "ar-sgd", "at_least": 0.0005, "within": 0.1}, ACCURACIES)
    assert found.verdict is ClaimVerdict.UNDECIDED
    assert found.needed.startswith("about ")


def test_an_undecided_equivalence_did_not_say_what_it_needs() -> None:
    # 10 points are further from 0 than from the margin, so what shows the difference does not show that it is beyond.
    near, nearer = (
        judged({"equivalent": "ad-psgd", "than": "ar-sgd", "within": each}, ACCURACIES) for each in (0.09, 0.095)
    )
    assert near.verdict is nearer.verdict is ClaimVerdict.UNDECIDED
    events = [int(each.needed.split()[-3].replace(",", "")) for each in (near, nearer)]
    # Half the distance takes four times the events.
    assert events[1] / events[0] == pytest.approx(4, rel=0.1)


COUNTS = {"ad-psgd": (840, 860, 815), "ar-sgd": (800, 800, 800), "sgd": (830, 830, 830)}
#: AD-PSGD is further from AR-SGD than from SGD.
LESS_CERTAIN = made_result(
    made_study(),
    [made_run(method, seed, correct=found[seed]) for method, found in COUNTS.items() for seed in range(3)],
)


def test_a_claim_needs_what_its_least_certain_comparison_needs() -> None:
    one, other, both = (
        judged({"better": "ad-psgd", "than": than}, LESS_CERTAIN) for than in ("ar-sgd", "sgd", ["ar-sgd", "sgd"])
    )
    assert {each.verdict for each in (one, other, both)} == {ClaimVerdict.UNDECIDED}
    assert both.needed == other.needed != one.needed
    share = judged({"better": "ad-psgd", "than": ["ar-sgd", "sgd"], "share_of_cells": 0.5}, LESS_CERTAIN)
    least, most = (judgement.needed for judgement in both.judged.values())
    assert (share.needed, both.needed) == (least, most), "half of them asked for the seeds of the less certain one"


def test_a_claim_that_one_comparison_refutes_asked_for_the_seeds_of_all() -> None:
    counts = {"ad-psgd": (800, 801, 799), "ar-sgd": (840, 860, 815), "sgd": (790, 808, 800)}
    runs = [made_run(method, seed, correct=found[seed]) for method, found in counts.items() for seed in range(3)]
    result = made_result(made_study(), runs)
    found = judged({"better": "ad-psgd", "than": ["ar-sgd", "sgd"]}, result)
    assert found.verdict is ClaimVerdict.UNDECIDED
    refuting, other = (judgement.needed for judgement in found.judged.values())
    assert found.needed == refuting != other


EXACT = [TimeCheck(method, 2, 1e-3, 1e-3) for method in ("ar-sgd", "ad-psgd")]


def test_accuracies_counted_each_event_once_whatever_its_weight() -> None:
    rng = np.random.default_rng(1)
    weights = rng.gamma(2.0, size=NUM_EVENTS).astype(np.float32)
    # The same events for all seeds, so that the error is that of the events.
    right = rng.random((2, 1, NUM_EVENTS)) < np.array([0.85, 0.8])[:, None, None]
    right = np.repeat(right, len(SEEDS), axis=1)
    runs = [
        made_run(method, seed)._replace(counts=Counts.of(mask, float(weights[mask].sum() / weights.sum())))
        for method, masks in zip(("ad-psgd", "ar-sgd"), right, strict=True)
        for seed, mask in zip(SEEDS, masks, strict=True)
    ]
    result = replace(made_result(made_study(), runs), test_weights=base64.b64encode(weights.tobytes()).decode())
    found = judged({"better": "ad-psgd", "than": "ar-sgd"}, result)
    (judgement,) = found.judged.values()
    accuracies = [np.mean([mask @ weights / weights.sum() for mask in masks]) for masks in right]
    assert float(judgement.difference.value) == pytest.approx(accuracies[0] - accuracies[1], abs=1e-6)
    numbers = [
        np.mean(list(result.numbers(Cell(method), "test_accuracy").values())) for method in ("ad-psgd", "ar-sgd")
    ]
    assert numbers == pytest.approx(accuracies, abs=1e-6)
    # Events of unequal weight say less: the error grows by the root of the mean square over the mean.
    plain = judged({"better": "ad-psgd", "than": "ar-sgd"}, replace(result, test_weights=""))
    widths = [float(next(iter(each.judged.values())).difference.half_width()) for each in (found, plain)]
    assert widths[0] / widths[1] == pytest.approx(np.sqrt(np.mean(weights**2)) / weights.mean(), rel=0.05)


def times(law: dict[str, Any]) -> StudyResult:
    """Seconds per epoch by method and number of workers."""
    study = made_study(vary={"train.workers": [2, 4, 8]}, times_only=4)
    runs = [
        made_run(method, seed, values={"train.workers": workers}, seconds=seconds(workers) * (1 + 0.002 * (seed % 3)))
        for seed in SEEDS
        for method, seconds in law.items()
        for workers in (2, 4, 8)
    ]
    return made_result(study, [*runs, *(made_run("sgd", seed, seconds=0.1) for seed in SEEDS)], checks=EXACT)


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
    lacking = replace(ACCURACIES, runs=[run for run in ACCURACIES.runs if run.method != "ad-psgd"])
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
    assert found.verdict is ClaimVerdict.UNDECIDED
    assert found.needed == "runs that neither diverge nor end too early"
    (pair,) = found.judged.items()
    assert effect(*pair) == ("a run diverged or ended too early", "?")


@pytest.mark.parametrize(
    ("predicted", "verdict"),
    [
        # AD-PSGD takes half the time with 2 workers, and an eighth with 16.
        ((1.0, 1.0), ClaimVerdict.CONFIRMED),
        # Both miss alike: their ratio is right.
        ((0.4, 0.4), ClaimVerdict.CONFIRMED),
        ((1.0, 0.6), ClaimVerdict.CONFIRMED),
        ((1.0, 0.4), ClaimVerdict.UNDECIDED),
        (None, ClaimVerdict.UNDECIDED),
    ],
)
def test_simulated_times_decided_although_their_check_missed_by_more_than_the_effect(
    predicted: tuple[float, float] | None, verdict: ClaimVerdict
) -> None:
    methods = ("ar-sgd", "ad-psgd")
    checks = [TimeCheck(method, 2, 1.0, time) for method, time in zip(methods, predicted or (), strict=False)]
    claim = {"better": "ad-psgd", "than": "ar-sgd", "measure": "seconds_per_batch"}
    found = judged(claim, replace(TIMES, checks=checks))
    assert found.verdict is verdict
    assert ("check of the simulator" in found.needed) == (verdict is ClaimVerdict.UNDECIDED)


def test_seeds_alone_were_said_to_decide_what_the_error_of_the_times_hides() -> None:
    found = judged({"better": "sgd", "than": "ar-sgd", "at_least": 0.0005, "within": 0.1}, ACCURACIES)
    [(comparison, judgement)] = found.judged.items()
    size = abs(float(judgement.difference.value))
    assert found._replace(unknown={comparison: 0.9 * size}).needed == found.needed
    assert (
        found._replace(unknown={comparison: 1.1 * size}).needed
        == f"{found.needed}, and times that the check of the simulator confirms"
    )


def test_seeds_alone_were_said_to_decide_if_the_error_hides_another_comparison() -> None:
    """Only the comparison that needs the most seeds counted."""
    found = judged({"better": "ad-psgd", "than": ["ar-sgd", "sgd"]}, LESS_CERTAIN)
    sizes = {each: abs(float(judgement.difference.value)) for each, judgement in found.judged.items()}
    for hidden in sizes:
        unknown = {each: (1.1 if each is hidden else 0.9) * size for each, size in sizes.items()}
        needed = found._replace(unknown=unknown).needed
        assert needed == f"{found.needed}, and times that the check of the simulator confirms"


@pytest.mark.parametrize(("workers", "verdict"), [(2, ClaimVerdict.CONFIRMED), (8, ClaimVerdict.UNDECIDED)])
def test_times_of_unlike_numbers_of_workers_took_only_the_spread_among_the_checks(
    workers: int, verdict: ClaimVerdict
) -> None:
    """Both methods miss by a factor of 2.5: their ratio is right, that to another number of workers may not be."""
    checks = [TimeCheck(method, 2, 1.0, 0.4) for method in ("ar-sgd", "ad-psgd")]
    claim = {"better": {"method": "ad-psgd", "train.workers": workers}, "measure": "seconds_per_batch"}
    found = judged({**claim, "than": {"method": "ar-sgd", "train.workers": 2}}, replace(TIMES, checks=checks))
    assert found.verdict is verdict


def test_a_share_of_the_time_was_claimed_although_no_check_confirmed_the_times() -> None:
    shares = {"ar-sgd": 0.5, "ad-psgd": 0.9, "sgd": 1.0}
    runs = [
        run._replace(numbers={**run.numbers, "utilisation": share + 0.001 * seed})
        for method, share in shares.items()
        for seed in SEEDS
        for run in [made_run(method, seed)]
    ]
    result = made_result(made_study(), runs)
    claim = {"better": "ad-psgd", "than": "ar-sgd", "measure": "utilisation"}
    assert judged(claim, result).verdict is ClaimVerdict.UNDECIDED
    assert "check of the simulator" in judged(claim, result).needed
    assert judged(claim, replace(result, checks=EXACT)).verdict is ClaimVerdict.CONFIRMED
    # Times wrong by a factor of 2 make a share wrong by half.
    wrong = [EXACT[0], TimeCheck("ad-psgd", 2, 1.0, 0.5)]
    assert judged(claim, replace(result, checks=wrong)).verdict is ClaimVerdict.UNDECIDED


def test_a_time_of_0_was_compared_as_a_factor_of_a_billion() -> None:
    runs = ACCURACIES.runs
    alone = [
        run._replace(curves={**run.curves, "communicate": [0.0] * 6}) if run.method == "sgd" else run for run in runs
    ]
    study = made_study(compared=["communication_per_epoch"])
    found, _ = judge(made_result(study, alone))
    assert [each.this for each in found] == [Cell("ad-psgd")]
    (why,) = left_out(made_result(study, alone)).values()
    assert why == "not compared: a ratio to 0 says nothing, SGD (0 in 5 of 5 seeds)"
    assert left_out(made_result(made_study(), alone)) == {}


def with_numbers(**numbers: dict[str, float]) -> StudyResult:
    """A result in which the runs of some methods have other numbers."""
    runs = [
        run._replace(numbers={**run.numbers, **numbers.get(run.method.replace("-", "_"), {})})
        for run in ACCURACIES.runs
    ]
    return made_result(made_study(), runs)


def test_methods_that_saw_unequal_numbers_of_events_were_judged_against_each_other() -> None:
    result = with_numbers(ar_sgd={"samples": 838}, sgd={"samples": 838}, ad_psgd={"samples": 628})
    found, _ = judge(result)
    assert [each.this for each in found] == [Cell("sgd")]
    assert list(left_out(result).values()) == ["not compared: 628 and 838 events were seen"]
    assert "Not compared: 628 and 838 events were seen: AD-PSGD against AR-SGD in test accuracy." in what_was_left_out(
        result
    )
    assert "| AD-PSGD | 628 |" in events_table(result)


def test_a_method_whose_mechanism_never_acted_was_judged() -> None:
    result = with_numbers(ad_psgd={"averages_begun": 0})
    found, _ = judge(result)
    assert [each.this for each in found] == [Cell("sgd")]
    assert list(left_out(result).values()) == ["not tested: no averages begun of AD-PSGD"]
    assert left_out(with_numbers(ad_psgd={"averages_begun": 3})) == {}


@pytest.mark.parametrize(
    ("share", "verdict"),
    [(1.0, ClaimVerdict.REFUTED), (0.7, ClaimVerdict.REFUTED), (0.6, ClaimVerdict.CONFIRMED)],
)
def test_a_claim_about_most_cells_was_judged_in_all(share: float, verdict: ClaimVerdict) -> None:
    law = {"ar-sgd": lambda _: 0.1, "ad-psgd": lambda workers: 0.05 if workers > 2 else 0.2}
    claim = {"better": "ad-psgd", "than": "ar-sgd", "measure": "seconds_per_batch", "share_of_cells": share}
    assert judged(claim, times(law)).verdict is verdict


def test_measured_times_need_no_check() -> None:
    claim = {"better": "ad-psgd", "than": "ar-sgd", "measure": "seconds_per_batch"}
    assert judged(claim, replace(TIMES, checks=[], cluster=None)).verdict is ClaimVerdict.CONFIRMED
