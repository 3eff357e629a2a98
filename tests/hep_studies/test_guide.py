"""Which methods are fastest in each situation, and cannot be told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from example_study import STUDY, example_result, example_run, example_study

from hep_studies.cells import Cell
from hep_studies.guide import GoalTimes, Situation, data_groups, judge_situations, method_records
from hep_studies.guide_page import guide_table, situations_table, study_guides
from hep_studies.pages import render, render_guide
from hep_studies.run_result import RunResult
from hep_studies.study_result import StudyResult

RATE = "train.learning_rate"
LINKS = "situation.links"
SITUATIONS = {
    "links": {"fast": {"cluster.latency_seconds": 1e-6}, "slow": {"cluster.latency_seconds": 1e-2}}
}
ONE_WORKER = {**STUDY["methods"]["sgd"], "fixed": [LINKS]}


def timed_runs(
    method: str, seconds: Sequence[float], *, end: float = 0.9, **values: Any
) -> list[RunResult]:
    """Runs of four epochs of the same time, one for each seed; three have the accuracy `end`.

    `seconds`: the time until the middle one of these three.
    """
    runs = []
    for seed, time in enumerate(seconds, start=1):
        run = example_run(method, seed, values=values)
        changes = {"val_accuracy": [0.5, end, end, end], "seconds": [time / 3] * 4}
        runs.append(replace(run, curves={**run.curves, **changes}))
    return runs


def result_of(runs: Sequence[RunResult], **study: Any) -> StudyResult:
    methods = {**STUDY["methods"], "sgd": ONE_WORKER}
    keys = {"situations": SITUATIONS, "vary": {LINKS: ["fast", "slow"]}, "methods": methods}
    return example_result(example_study(**{**keys, **study}), runs)


@pytest.fixture
def result() -> StudyResult:
    """AR-SGD is as fast as AD-PSGD over fast links; over slow ones it takes ten times as long."""
    return result_of(
        [
            *timed_runs("sgd", (8.0, 8.1, 7.9, 8.0)),
            *timed_runs("ar-sgd", (1.0, 1.2, 0.9, 1.1), **{LINKS: "fast"}),
            *timed_runs("ad-psgd", (1.1, 1.0, 1.0, 1.0), **{LINKS: "fast"}),
            *timed_runs("ar-sgd", (10.0, 11.0, 10.0, 11.0), **{LINKS: "slow"}),
            *timed_runs("ad-psgd", (1.1, 1.0, 1.0, 1.1), **{LINKS: "slow"}),
        ]
    )


def best_titles(situations: Sequence[Situation]) -> dict[tuple[str, ...], list[str]]:
    return {
        situation.names: [contender.title for contender in situation.best]
        for situation in situations
    }


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

    fast, slow = judge_situations(result_of(runs))

    assert (fast.goal, slow.goal) == (pytest.approx(0.89), pytest.approx(0.89))
    assert [rival.times.num_reached for rival in fast.contenders] == [4, 0]
    assert [rival.times.num_reached for rival in slow.contenders] == [4, 0]


def with_accuracies(run: RunResult, *accuracies: float) -> RunResult:
    return replace(run, curves={**run.curves, "val_accuracy": list(accuracies)})


def test_a_single_validation_at_the_goal_does_not_reach_it() -> None:
    holding = timed_runs("ar-sgd", (3.0, 3.1, 3.0, 3.1), **{LINKS: "fast"})
    lucky = [
        with_accuracies(run, 0.95, 0.8, 0.8, 0.8)
        for run in timed_runs("ad-psgd", (1.0, 1.1, 1.0, 1.1), **{LINKS: "fast"})
    ]

    (situation,) = judge_situations(result_of([*holding, *lucky], vary={LINKS: ["fast"]}))

    assert [contender.title for contender in situation.best] == ["AR-SGD"]
    assert situation.contenders[1].times.num_reached == 0


def missing_runs(num_missed: int, num_runs: int) -> list[RunResult]:
    """Runs of 4 s of which some miss the goal; the others reach it after 2 s."""
    accuracies = [[0.5] * 4] * num_missed + [[0.9] * 4] * (num_runs - num_missed)
    runs = []
    for seed, values in enumerate(accuracies):
        run = with_accuracies(example_run("ar-sgd", seed), *values)
        runs.append(replace(run, curves={**run.curves, "seconds": [1.0] * 4}))
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


def test_a_run_that_misses_the_goal_counts_with_its_whole_time() -> None:
    times = GoalTimes.of_runs(missing_runs(1, 2), "seconds_to_hold=0.9")

    assert times.seconds == pytest.approx((4.0 * 2.0) ** 0.5)


def test_a_fast_method_that_misses_the_accuracy_with_a_seed_is_best_with_its_share() -> None:
    seconds = (1.0, 1.1, 1.0, 1.1, 1.05)
    slow = timed_runs("ar-sgd", [9 * time for time in seconds], **{LINKS: "fast"})
    failing, *fast = timed_runs("ad-psgd", seconds, **{LINKS: "fast"})
    failed = replace(failing, counts=None, curves={}, numbers={"diverged": 1.0})
    result = result_of([*slow, failed, *fast], vary={LINKS: ["fast"]})

    (situation,) = judge_situations(result)

    assert [contender.title for contender in situation.best] == ["AD-PSGD"]
    first, second = situation.contenders
    assert (first.times.num_reached, first.num_diverged) == (4, 1)
    assert (second.times.num_reached, second.num_diverged) == (5, 0)
    assert second.factor == pytest.approx(9.0, rel=0.1)
    assert "s (4 of 5)|" in guide_table(study_guides({"a.md": result}))


def test_a_method_is_not_slower_if_only_its_validations_are_further_apart() -> None:
    """AR-SGD is at the goal from its first validation on; these are three times as far apart."""
    at_first = [
        with_accuracies(run, 0.9, 0.9, 0.9, 0.9)
        for run in timed_runs("ar-sgd", (3.0, 3.1, 2.9, 3.0), **{LINKS: "fast"})
    ]
    fast = timed_runs("ad-psgd", (1.0, 1.1, 0.9, 1.0), **{LINKS: "fast"})

    (situation,) = judge_situations(result_of([*at_first, *fast], vary={LINKS: ["fast"]}))

    assert [contender.title for contender in situation.best] == ["AD-PSGD", "AR-SGD"]


def test_no_method_is_best_where_none_reaches_the_accuracy_with_four_of_five_runs() -> None:
    runs = []
    for method, seconds in (("ar-sgd", 2.0), ("ad-psgd", 1.0)):
        first, *others = timed_runs(method, (seconds,) * 4, **{LINKS: "fast"})
        runs += [with_accuracies(first, 0.5, 0.85, 0.85, 0.85), *others]
    result = result_of(runs, vary={LINKS: ["fast"]})

    (situation,) = judge_situations(result)

    assert situation.best == []
    assert [contender.title for contender in situation.contenders] == ["AD-PSGD", "AR-SGD"]
    assert "|fast|none; AD-PSGD with 3 of 4|" in guide_table(study_guides({"a.md": result}))


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
    methods = {**STUDY["methods"], "sgd": {**STUDY["methods"]["sgd"], "fixed": [DATA]}}
    study = {"situations": SKEWED, "vary": {DATA: ["equal", "skewed"]}, "methods": methods}
    return result_of(runs, **study)


def test_one_worker_is_in_no_situation_of_skewed_data(skewed_result: StudyResult) -> None:
    equal, skewed = judge_situations(skewed_result)

    assert "SGD" in [contender.title for contender in equal.contenders]
    assert [contender.title for contender in skewed.contenders] == ["AR-SGD", "AD-PSGD"]


def test_equal_and_skewed_data_have_records_and_advice_of_their_own(
    skewed_result: StudyResult,
) -> None:
    equal, skewed = data_groups(skewed_result)

    assert (equal.name, skewed.name) == ("equal", "skewed")
    assert [record.title for record in equal.records] == ["AD-PSGD", "SGD", "AR-SGD"]
    assert [record.title for record in skewed.records] == ["AR-SGD", "AD-PSGD"]
    page = render_guide({"a.md": skewed_result}, command="x")
    advice_of_equal, advice_of_skewed = page.splitlines()[2:4]
    assert advice_of_equal.startswith("- **Equal data**, the network of high-level features on")
    assert "in doubt take AD-PSGD, which is among the best in 1 of 1 situations;" in advice_of_equal
    assert "3 of 3 methods reach the accuracy in all, each with at least 80 %" in advice_of_equal
    assert advice_of_skewed.startswith("- **Skewed data**, the network")
    assert "in doubt take AR-SGD" in advice_of_skewed
    assert (
        "No other of 2 methods reaches the accuracy in any with at least 80 %" in advice_of_skewed
    )
    header = next(line for line in page.splitlines() if "equal data, of 1|" in line)
    assert header.endswith("skewed data, of 1|")
    assert "|SGD|best in 0; misses 0; else up to \N{MULTIPLICATION SIGN}1.95|-|" in page


def test_each_method_stands_at_the_rate_at_which_it_is_fastest() -> None:
    runs = []
    for rate, seconds in ((0.1, 3.0), (0.2, 1.0)):
        for method in ("ar-sgd", "ad-psgd"):
            values = {LINKS: "fast", RATE: rate}
            runs += timed_runs(method, [seconds, 1.1 * seconds] * 2, **values)
    study = {"vary": {LINKS: ["fast"], RATE: [0.1, 0.2]}, "best_of": [RATE]}

    (situation,) = judge_situations(result_of(runs, **study))

    # The geometric mean of 1.0 and 1.1.
    assert [rival.times.seconds for rival in situation.contenders] == pytest.approx([1.1**0.5] * 2)
    assert all(contender.is_at_edge for contender in situation.contenders)


def test_the_measure_of_the_goal_is_the_time_to_hold_it(result: StudyResult) -> None:
    cell = Cell.from_values("ar-sgd", {LINKS: "slow"})

    assert result.resolved(cell, "seconds_to_best=0.01") == "seconds_to_hold=0.890000"
    assert result.numbers(cell, "seconds_to_best=0.01").tolist() == pytest.approx([10, 11, 10, 11])


def test_the_method_that_disappoints_least_comes_first(result: StudyResult) -> None:
    first, *following = method_records(judge_situations(result))

    assert (first.title, first.num_best, first.num_missed) == ("AD-PSGD", 2, 0)
    assert first.worst_factor == pytest.approx(1.0)
    assert [record.title for record in following] == ["SGD", "AR-SGD"]
    assert following[1].worst_factor == pytest.approx(10.0, rel=0.1)


def test_the_guide_has_a_row_for_each_situation_and_a_column_for_each_study(
    result: StudyResult,
) -> None:
    slow_only = result_of(
        timed_runs("ar-sgd", (1.0, 1.2, 0.9, 1.1), **{LINKS: "slow"}), vary={LINKS: ["slow"]}
    )

    table = guide_table(study_guides({"a.md": slow_only, "b.md": result}))

    header, _, fast, slow = table.splitlines()
    assert header.startswith("|links|The network of high-level features on events, to 89.00 %|")
    assert fast.startswith(
        "|fast|**AD-PSGD** 1.024 ± 0.024 s; **AR-SGD** \N{MULTIPLICATION SIGN}1."
    )
    assert fast.endswith("|-|")
    assert slow.endswith("|**AR-SGD** 1.04 ± 0.06 s|")


def test_a_study_of_other_situations_has_rows_of_its_own(result: StudyResult) -> None:
    other_key = "situation.power"
    other = result_of(
        timed_runs("ar-sgd", (1.0, 1.2, 0.9, 1.1), **{other_key: "low"}),
        situations={"power": {"low": {}}},
        vary={other_key: ["low"]},
        methods=STUDY["methods"],
    )

    table = guide_table(study_guides({"a.md": result, "b.md": other}))

    header, _, fast, slow, low = table.splitlines()
    assert header.startswith("|links|power|")
    assert (fast[:8], slow[:8]) == ("|fast|-|", "|slow|-|")
    assert low == "|-|low|-|**AR-SGD** 1.04 ± 0.06 s|"


def test_the_page_of_a_study_has_every_method_in_every_situation(result: StudyResult) -> None:
    table = situations_table(result)

    assert len(table.splitlines()) == 2 + 6
    assert "|slow|89.00 %|**AD-PSGD**|1.049 ± 0.029|\N{MULTIPLICATION SIGN}1|" in table
    page = render(result, folder="figures")
    assert table in page
    assert "|links|slow|cluster.latency_seconds 0.01|" in page


def test_a_situation_without_runs_is_left_out(result: StudyResult) -> None:
    fast_runs = [run for run in result.runs if run.values.get(LINKS) == "fast"]

    situations = judge_situations(result_of(fast_runs))

    assert [situation.names for situation in situations] == [("fast",)]


def test_no_advice_follows_from_a_demonstration(result: StudyResult) -> None:
    demonstration = result_of(result.runs, demonstration="two epochs")

    page = render_guide({"a.md": demonstration}, command="compare --claims docs")

    assert "**: no advice follows from a demonstration." in page
    assert "in doubt take" not in page
    assert "events (a demonstration), to 89.00 %|" in page


def test_the_guide_says_what_to_take_in_doubt_and_fits_a_screen(result: StudyResult) -> None:
    page = render_guide({"a.md": result}, command="compare --claims docs")

    assert "in doubt take AD-PSGD, which is among the best in 2 of 2 situations;" in page
    assert "4 seeds, 4 workers, a step of 1 ms." in page
    assert "The runs are of commit 1." in page
    assert len(page.split()) < 600


def test_studies_without_situations_give_no_guide() -> None:
    result = example_result(example_study(), [example_run("ar-sgd", 1)])

    assert judge_situations(result) == []
    assert render_guide({"a.md": result}, command="x") == ""
    assert situations_table(result) == ""
