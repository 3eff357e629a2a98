"""The guide which method to take, and the situations on the page of a study."""

from __future__ import annotations

import pytest
from example_study import STUDY, example_result, example_run, example_study
from timed_studies import LINKS, result_of, tied_result, timed_runs

from hep_studies.guide import judge_situations
from hep_studies.guide_page import guide_table, situations_table, study_guides
from hep_studies.pages import render, render_guide
from hep_studies.study_result import StudyResult


@pytest.fixture
def result() -> StudyResult:
    """AD-PSGD is as fast as AR-SGD over fast links, and ten times as fast over slow ones."""
    return tied_result()


def test_the_guide_has_a_row_for_each_situation_and_a_column_for_each_study(
    result: StudyResult,
) -> None:
    slow_runs = timed_runs("ar-sgd", (1.0, 1.2, 0.9, 1.1), **{LINKS: "slow"})
    slow_only = result_of(slow_runs, vary={LINKS: ["slow"]})

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
    other_runs = timed_runs("ar-sgd", (1.0, 1.2, 0.9, 1.1), **{other_key: "low"})
    other = result_of(
        other_runs,
        situations={"power": {"low": {}}},
        vary={other_key: ["low"]},
        methods=STUDY["methods"],
    )

    table = guide_table(study_guides({"a.md": result, "b.md": other}))

    header, _, fast, slow, low = table.splitlines()
    assert header.startswith("|links|power|")
    assert fast.startswith("|fast|-|")
    assert slow.startswith("|slow|-|")
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

    assert (
        "in doubt take AD-PSGD, which cannot be told apart from the fastest method in 2 of 2"
        in page
    )
    assert "4 seeds, 4 workers, a step of 1 ms; technical sample; " in page
    assert "The runs are of commit 1." in page
    assert len(page.split()) < 600


def test_studies_without_situations_give_no_guide() -> None:
    result = example_result(example_study(), [example_run("ar-sgd", 1)])

    assert judge_situations(result) == []
    assert render_guide({"a.md": result}, command="x") == ""
    assert situations_table(result) == ""
