"""Which methods are fastest in each situation, and cannot be told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from example_study import STUDY, example_run
from timed_studies import LINKS, result_of, tied_result, timed_runs

from hep_studies.cells import Cell
from hep_studies.guide import (
    Contender,
    GoalTimes,
    Record,
    Situation,
    data_groups,
    judge_situations,
    largest_count_left_out,
    method_records,
)
from hep_studies.guide_page import guide_table, study_guides
from hep_studies.pages import render_guide
from hep_studies.run_result import RunResult
from hep_studies.study_result import StudyResult

RATE = "train.learning_rate"


@pytest.fixture
def result() -> StudyResult:
    """AD-PSGD is as fast as AR-SGD over fast links, and ten times as fast over slow ones."""
    return tied_result()


def titles(methods: Sequence[Contender] | Sequence[Record]) -> list[str]:
    return [method.title for method in methods]


def num_reached(situation: Situation) -> list[int]:
    """For each method, the number of its runs that reach the goal."""
    return [contender.times.num_reached for contender in situation.contenders]


def best_titles(situations: Sequence[Situation]) -> dict[tuple[str, ...], list[str]]:
    return {situation.names: titles(situation.best) for situation in situations}


def test_methods_that_cannot_be_told_apart_are_best_together(result: StudyResult) -> None:
    situations = judge_situations(result)

    assert best_titles(situations) == {("fast",): ["AD-PSGD", "AR-SGD"], ("slow",): ["AD-PSGD"]}


def test_one_worker_stands_in_every_situation(result: StudyResult) -> None:
    fast, slow = judge_situations(result)

    for situation in (fast, slow):
        (one_worker,) = [rival for rival in situation.contenders if rival.title == "SGD"]
        assert one_worker.times.seconds == pytest.approx(8.0, rel=1e-3)
        assert one_worker.factor == pytest.approx(8.0, rel=0.1)


def test_all_situations_have_the_goal_a_point_below_the_best_accuracy_of_any() -> None:
    runs = [
        *timed_runs("ar-sgd", (1.0,) * 4, end=0.9, **{LINKS: "fast"}),
        *timed_runs("ad-psgd", (1.0,) * 4, end=0.8, **{LINKS: "fast"}),
        *timed_runs("ar-sgd", (1.0,) * 4, end=0.895, **{LINKS: "slow"}),
        *timed_runs("ad-psgd", (1.0,) * 4, end=0.885, **{LINKS: "slow"}),
    ]

    result = result_of(runs)

    fast, slow = judge_situations(result)

    assert fast.goal == pytest.approx(0.89)
    assert slow.goal == pytest.approx(0.89)
    assert num_reached(fast) == [4, 0]
    assert num_reached(slow) == [4, 0]


def with_accuracies(run: RunResult, *accuracies: float) -> RunResult:
    return replace(run, curves={**run.curves, "val_accuracy": list(accuracies)})


def test_a_single_validation_at_the_goal_does_not_reach_it() -> None:
    holding = timed_runs("ar-sgd", (3.0, 3.1, 3.0, 3.1), **{LINKS: "fast"})
    lucky = [
        with_accuracies(run, 0.95, 0.8, 0.8, 0.8)
        for run in timed_runs("ad-psgd", (1.0, 1.1, 1.0, 1.1), **{LINKS: "fast"})
    ]

    result = result_of([*holding, *lucky], vary={LINKS: ["fast"]})

    (situation,) = judge_situations(result)

    assert titles(situation.best) == ["AR-SGD"]
    assert num_reached(situation) == [4, 0]


def missing_runs(num_missed: int, num_runs: int) -> list[RunResult]:
    """Runs of 4 s of which some miss the goal; the others reach it after 2 s."""
    runs = []
    for seed in range(num_runs):
        accuracy = 0.5 if seed < num_missed else 0.9
        run = example_run("ar-sgd", seed)
        changes = {"val_accuracy": [accuracy] * 4, "seconds": [1.0] * 4}
        runs.append(replace(run, curves={**run.curves, **changes}))
    return runs


@pytest.mark.parametrize(
    ("num_missed", "num_runs", "is_reached", "is_too_low"),
    [
        # Nine of ten runs reach the goal, whatever their number.
        (1, 5, True, False),
        (1, 10, True, False),
        (4, 40, True, False),
        # Half of them: too few, which a few runs do not show.
        (3, 5, False, False),
        (4, 8, False, False),
        (20, 40, False, True),
        (8, 8, False, True),
    ],
)
def test_a_share_that_reaches_the_goal_is_judged_alike_for_any_number_of_runs(
    num_missed: int, num_runs: int, is_reached: bool, is_too_low: bool
) -> None:
    times = GoalTimes.of_runs(missing_runs(num_missed, num_runs), "seconds_to_hold=0.9")

    assert times.is_reached == is_reached
    assert times.is_share_too_low(0.05) == is_too_low


@pytest.mark.parametrize(
    ("num_runs", "num_rivals", "count"), [(2, 1, None), (5, 1, 1), (5, 6, 0), (8, 14, 2)]
)
def test_few_runs_leave_out_only_methods_of_the_lowest_shares(
    num_runs: int, num_rivals: int, count: int | None
) -> None:
    assert largest_count_left_out(num_runs, num_rivals) == count


def test_a_run_that_misses_the_goal_counts_with_its_whole_time() -> None:
    times = GoalTimes.of_runs(missing_runs(1, 2), "seconds_to_hold=0.9")

    geometric_mean = (4.0 * 2.0) ** 0.5
    assert times.seconds == pytest.approx(geometric_mean)


def test_a_fast_method_that_misses_the_accuracy_with_a_seed_is_best_with_its_share() -> None:
    seconds = (1.0, 1.1, 1.0, 1.1, 1.05)
    slow = timed_runs("ar-sgd", [9 * time for time in seconds], **{LINKS: "fast"})
    failing, *fast = timed_runs("ad-psgd", seconds, **{LINKS: "fast"})
    failed = replace(failing, counts=None, curves={}, numbers={"diverged": 1.0})
    result = result_of([*slow, failed, *fast], vary={LINKS: ["fast"]})

    (situation,) = judge_situations(result)
    table = guide_table(study_guides({"a.md": result}))

    assert titles(situation.best) == ["AD-PSGD"]
    assert num_reached(situation) == [4, 5]
    first, second = situation.contenders
    assert first.num_diverged == 1
    assert second.num_diverged == 0
    assert second.factor == pytest.approx(9.0, rel=0.1)
    assert "s (4 of 5)|" in table


def test_a_method_is_not_slower_if_only_its_validations_are_further_apart() -> None:
    """AR-SGD is at the goal from its first validation on; these are three times as far apart."""
    at_first = [
        with_accuracies(run, 0.9, 0.9, 0.9, 0.9)
        for run in timed_runs("ar-sgd", (3.0, 3.1, 2.9, 3.0), **{LINKS: "fast"})
    ]
    fast = timed_runs("ad-psgd", (1.0, 1.1, 0.9, 1.0), **{LINKS: "fast"})

    result = result_of([*at_first, *fast], vary={LINKS: ["fast"]})

    (situation,) = judge_situations(result)

    assert titles(situation.best) == ["AD-PSGD", "AR-SGD"]


def test_no_method_is_best_where_none_reaches_the_accuracy_with_four_of_five_runs() -> None:
    runs = []
    for method, seconds in (("ar-sgd", 2.0), ("ad-psgd", 1.0)):
        first, *others = timed_runs(method, (seconds,) * 4, **{LINKS: "fast"})
        runs += [with_accuracies(first, 0.5, 0.85, 0.85, 0.85), *others]
    result = result_of(runs, vary={LINKS: ["fast"]})

    (situation,) = judge_situations(result)

    table = guide_table(study_guides({"a.md": result}))
    assert situation.best == []
    assert titles(situation.contenders) == ["AD-PSGD", "AR-SGD"]
    assert "|fast|none; AD-PSGD with 3 of 4|" in table


DATA = "situation.data"
SKEWED = {"data": {"equal": {}, "skewed": {"train.skew": {"dirichlet": 0.1}}}}


@pytest.fixture
def skewed_result() -> StudyResult:
    """AD-PSGD is the fastest with equal data, and does not reach the accuracy with skewed data."""
    runs = [
        *timed_runs("sgd", (2.0, 2.1, 1.9, 2.0)),
        *timed_runs("ar-sgd", (3.0, 3.2, 2.9, 3.1), **{DATA: "equal"}),
        *timed_runs("ad-psgd", (1.1, 1.0, 1.0, 1.0), **{DATA: "equal"}),
        *timed_runs("ar-sgd", (3.0, 3.1, 3.0, 3.1), **{DATA: "skewed"}),
        *timed_runs("ad-psgd", (1.1, 1.0, 1.0, 1.1), end=0.7, **{DATA: "skewed"}),
    ]
    one_worker = {**STUDY["methods"]["sgd"], "fixed": [DATA]}
    methods = {**STUDY["methods"], "sgd": one_worker}
    varied = {DATA: ["equal", "skewed"]}
    return result_of(runs, situations=SKEWED, vary=varied, methods=methods)


def test_one_worker_is_in_no_situation_of_skewed_data(skewed_result: StudyResult) -> None:
    equal, skewed = judge_situations(skewed_result)

    assert "SGD" in titles(equal.contenders)
    assert titles(skewed.contenders) == ["AR-SGD", "AD-PSGD"]


def test_equal_and_skewed_data_have_records_and_advice_of_their_own(
    skewed_result: StudyResult,
) -> None:
    equal, skewed = data_groups(skewed_result)

    assert equal.name == "equal"
    assert skewed.name == "skewed"
    assert titles(equal.records) == ["AD-PSGD", "SGD", "AR-SGD"]
    assert titles(skewed.records) == ["AR-SGD", "AD-PSGD"]
    page = render_guide({"a.md": skewed_result}, command="x")
    advice_of_equal, advice_of_skewed = page.splitlines()[2:4]
    assert advice_of_equal.startswith("- **Equal data**, the network of high-level features on")
    assert (
        "in doubt take AD-PSGD, which cannot be told apart from the fastest method in 1 of 1"
        in advice_of_equal
    )
    assert "3 of 3 methods reach the accuracy in all, each with at least 80 %" in advice_of_equal
    assert advice_of_skewed.startswith("- **Skewed data**, the network")
    assert "in doubt take AR-SGD" in advice_of_skewed
    assert (
        "No other of 2 methods reaches the accuracy in any with at least 80 %" in advice_of_skewed
    )
    header = next(line for line in page.splitlines() if "equal data, of 1|" in line)
    assert header.endswith("skewed data, of 1|")
    assert "|SGD|level in 0; misses 0; else up to \N{MULTIPLICATION SIGN}1.95|-|" in page


def test_each_method_stands_at_the_rate_at_which_it_is_fastest() -> None:
    runs = []
    for method in ("ar-sgd", "ad-psgd"):
        slow_rate = {LINKS: "fast", RATE: 0.1}
        fast_rate = {LINKS: "fast", RATE: 0.2}
        runs += timed_runs(method, (3.0, 3.3, 3.0, 3.3), **slow_rate)
        runs += timed_runs(method, (1.0, 1.1, 1.0, 1.1), **fast_rate)
    varied = {LINKS: ["fast"], RATE: [0.1, 0.2]}
    result = result_of(runs, vary=varied, best_of=[RATE])

    (situation,) = judge_situations(result)

    geometric_mean = (1.0 * 1.1) ** 0.5
    assert len(situation.contenders) == 2
    for contender in situation.contenders:
        assert contender.times.seconds == pytest.approx(geometric_mean)
        assert contender.is_at_edge


def test_the_measure_of_the_goal_is_the_time_to_hold_it(result: StudyResult) -> None:
    cell = Cell.from_values("ar-sgd", {LINKS: "slow"})

    measure = result.resolved(cell, "seconds_to_best=0.01")
    seconds = result.numbers(cell, "seconds_to_best=0.01")

    assert measure == "seconds_to_hold=0.890000"
    assert seconds.tolist() == pytest.approx([10, 11, 10, 11])


def test_the_method_that_disappoints_least_comes_first(result: StudyResult) -> None:
    ad_psgd, sgd, ar_sgd = method_records(judge_situations(result))

    assert titles([ad_psgd, sgd, ar_sgd]) == ["AD-PSGD", "SGD", "AR-SGD"]
    assert ad_psgd.num_best == 2
    assert ad_psgd.num_missed == 0
    assert ad_psgd.worst_factor == pytest.approx(1.0)
    assert ar_sgd.worst_factor == pytest.approx(10.0, rel=0.1)
