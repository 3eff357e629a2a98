"""Which methods are fastest in each situation, and cannot be told apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from example_study import STUDY, example_result, example_run, example_study

from hep_studies.cells import Cell
from hep_studies.guide import Situation, judge_situations, method_records
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
SEEDS = (1, 2, 3, 4)


def timed_runs(
    method: str, seconds: Sequence[float], *, end: float = 0.9, **values: Any
) -> list[RunResult]:
    """Runs of two epochs of the same time, one for each seed; the second has the accuracy `end`."""
    runs = []
    for seed, time in zip(SEEDS, seconds, strict=True):
        run = example_run(method, seed, values=values)
        changes = {"val_accuracy": [0.5, end], "seconds": [time / 2, time / 2]}
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
        assert one_worker.seconds == pytest.approx(8.0, rel=1e-3)
        assert one_worker.factor == pytest.approx(8.0, rel=0.1)


def test_the_goal_is_a_point_below_the_best_accuracy_of_the_same_situation() -> None:
    runs = [
        *timed_runs("ar-sgd", (1.0,) * 4, end=0.9, **{LINKS: "fast"}),
        *timed_runs("ad-psgd", (1.0,) * 4, end=0.8, **{LINKS: "fast"}),
        *timed_runs("ar-sgd", (1.0,) * 4, end=0.7, **{LINKS: "slow"}),
        *timed_runs("ad-psgd", (1.0,) * 4, end=0.695, **{LINKS: "slow"}),
    ]

    fast, slow = judge_situations(result_of(runs))

    assert (fast.goal, slow.goal) == (pytest.approx(0.89), pytest.approx(0.69))
    assert [rival.num_missed for rival in fast.contenders] == [0, 4]
    assert math.isnan(fast.contenders[1].seconds)
    assert [rival.num_missed for rival in slow.contenders] == [0, 0]


def test_a_method_that_misses_the_accuracy_with_a_seed_is_not_among_the_best() -> None:
    reaching = timed_runs("ar-sgd", (2.0, 2.1, 2.0, 2.1), **{LINKS: "fast"})
    fast_but_failing = timed_runs("ad-psgd", (1.0, 1.1, 1.0, 1.1), **{LINKS: "fast"})
    failed = replace(fast_but_failing[0], counts=None, curves={}, numbers={"diverged": 1.0})
    runs = [*reaching, failed, *fast_but_failing[1:]]

    (situation,) = judge_situations(result_of(runs, vary={LINKS: ["fast"]}))

    assert [contender.title for contender in situation.best] == ["AR-SGD"]
    fastest, second = situation.contenders
    assert (fastest.num_missed, fastest.num_diverged) == (0, 0)
    assert (second.num_missed, second.num_diverged) == (1, 1)
    assert math.isnan(second.factor)


def test_a_method_is_not_slower_if_only_its_validations_are_further_apart() -> None:
    """AR-SGD is at the goal at its first validation, AD-PSGD at its second in a third of that."""
    slow = timed_runs("ar-sgd", (6.0, 6.1, 5.9, 6.0), **{LINKS: "fast"})
    at_first = [
        replace(run, curves={**run.curves, "val_accuracy": [0.9, 0.9], "seconds": [3.0, 3.0]})
        for run in slow
    ]
    fast = timed_runs("ad-psgd", (1.0, 1.1, 0.9, 1.0), **{LINKS: "fast"})
    one_worker = timed_runs("sgd", (8.0, 8.1, 7.9, 8.0))

    with_fast_links, _ = judge_situations(result_of([*one_worker, *at_first, *fast]))

    assert best_titles([with_fast_links]) == {("fast",): ["AD-PSGD", "AR-SGD"]}


def test_no_method_is_best_where_each_misses_the_accuracy_with_a_seed() -> None:
    runs = []
    for method, seconds in (("ar-sgd", 2.0), ("ad-psgd", 1.0)):
        first, *others = timed_runs(method, (seconds,) * 4, **{LINKS: "fast"})
        falling = {**first.curves, "val_accuracy": [0.5, 0.85]}
        runs += [replace(first, curves=falling), *others]
    result = result_of(runs, vary={LINKS: ["fast"]})

    (situation,) = judge_situations(result)

    assert situation.best == []
    assert [contender.title for contender in situation.contenders] == ["AD-PSGD", "AR-SGD"]
    assert "|fast|none with all seeds; AD-PSGD with 3 of 4|" in guide_table(
        study_guides({"a.md": result})
    )


def test_each_method_stands_at_the_rate_at_which_it_is_fastest() -> None:
    runs = []
    for rate, seconds in ((0.1, 3.0), (0.2, 1.0)):
        for method in ("ar-sgd", "ad-psgd"):
            values = {LINKS: "fast", RATE: rate}
            runs += timed_runs(method, [seconds, 1.1 * seconds] * 2, **values)
    study = {"vary": {LINKS: ["fast"], RATE: [0.1, 0.2]}, "best_of": [RATE]}

    (situation,) = judge_situations(result_of(runs, **study))

    # The geometric mean of 1.0 and 1.1.
    assert [rival.seconds for rival in situation.contenders] == pytest.approx([1.1**0.5] * 2)
    assert all(contender.is_at_edge for contender in situation.contenders)


def test_the_measure_of_the_goal_is_that_of_the_situation_of_a_cell(result: StudyResult) -> None:
    cell = Cell.from_values("ar-sgd", {LINKS: "slow"})

    assert result.resolved(cell, "seconds_to_best=0.01") == "seconds_to=0.890000"
    assert result.numbers(cell, "seconds_to_best=0.01").tolist() == [10.0, 11.0, 10.0, 11.0]


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
    assert header.startswith("|links|The network of high-level features on events|")
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

    assert "a demonstration: two epochs): no advice follows" in page
    assert "in doubt take" not in page
    assert "most often among the best" not in page
    assert "events (a demonstration)|" in page


def test_the_guide_says_what_to_take_in_doubt_and_fits_a_screen(result: StudyResult) -> None:
    page = render_guide({"a.md": result}, command="compare --claims docs")

    assert "in doubt take AD-PSGD, which reaches the accuracy in all 2 situations" in page
    assert "AD-PSGD is most often among the best, in 2 of 2 situations." in page
    assert "4 seeds, 4 workers, a step of 1 ms)" in page
    assert "The runs are of commit 1." in page
    assert len(page.split()) < 600


def test_studies_without_situations_give_no_guide() -> None:
    result = example_result(example_study(), [example_run("ar-sgd", 1)])

    assert judge_situations(result) == []
    assert render_guide({"a.md": result}, command="x") == ""
    assert situations_table(result) == ""
