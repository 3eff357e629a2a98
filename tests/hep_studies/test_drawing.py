"""Tables, figures and page: functions of the result alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_figures import data_outside_axes
from example_study import EPOCHS, STUDY, example_check, example_result, example_run, example_study

from hep_studies.figures import draw, draw_all
from hep_studies.judging import judge
from hep_studies.pages import notes, render, render_claims
from hep_studies.run_result import RunResult
from hep_studies.study_result import StudyResult
from hep_studies.study_sections import Claim, StudyFigure, StudyTable
from hep_studies.tables import study_table, sweep_table
from models.evaluation.style import PlotLabels

LABELS = PlotLabels("", "technical sample", 13)
WORKERS, RATE = "train.workers", "train.learning_rate"
RUNS = [example_run(method, seed) for seed in (1, 2) for method in ("ar-sgd", "sgd", "ad-psgd")]


def figure_of(*panels: dict[str, Any], result: StudyResult | None = None) -> Any:
    created = StudyFigure.model_validate({"name": "a", "title": "A", "panels": panels})
    actual = draw(result or example_result(example_study(), RUNS), created, LABELS)
    assert data_outside_axes(actual) == []
    return actual


def scaling(**study: Any) -> StudyResult:
    names = [
        (name, seed, workers)
        for seed in (1, 2)
        for name in ("ar-sgd", "ad-psgd")
        for workers in (2, 4)
    ]
    runs = [
        example_run(name, seed, values={WORKERS: index}, seconds=0.1 * index)
        for name, seed, index in names
    ]
    alone = [example_run("sgd", seed, seconds=0.4) for seed in (1, 2)]
    return example_result(
        example_study(vary={WORKERS: [2, 4]}, times_only=4, **study), [*runs, *alone]
    )


def rows_of(result: StudyResult, *measures: str, **table: Any) -> list[list[str]]:
    """The cells of a table of a study."""
    created = StudyTable.model_validate({"title": "T", "measures": measures, **table})
    lines = study_table(result, created).splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in (lines[0], *lines[2:])]


def test_accuracy_is_drawn_against_epochs_and_against_time() -> None:
    epochs, times = figure_of(
        {"y": "val_accuracy", "x": "epoch"}, {"y": "val_accuracy", "x": "seconds"}
    ).axes
    assert list(epochs.lines[0].get_xdata()) == list(range(1, EPOCHS + 1))
    # The mean over the seeds of 0.2 s, 1 and 2 % longer.
    np.testing.assert_allclose(times.lines[0].get_xdata(), 0.203 * np.arange(1, EPOCHS + 1))
    assert (epochs.get_ylabel(), times.get_ylabel()) == ("Validation accuracy", "")
    assert times.get_xlabel() == "Time, simulated [s]"
    assert [line.get_label() for line in epochs.lines] == ["AR-SGD", "SGD", "AD-PSGD"]


def test_distances_of_zero_are_left_out_of_a_logarithmic_axis() -> None:
    (axes,) = figure_of({"y": "consensus_distance", "x": "epoch", "log": ["y"]}).axes
    assert [line.get_label() for line in axes.lines] == ["AD-PSGD"]


def test_boxes_stand_one_for_each_method() -> None:
    first, second = figure_of({"y": "communicate"}, {"y": "seconds", "methods": ["sgd"]}).axes
    assert [label.get_text() for label in first.get_yticklabels()] == ["AR-SGD", "SGD", "AD-PSGD"]
    assert second.get_xlabel() == "Time per epoch, in all [s]"


def test_a_measure_is_drawn_against_a_varied_key_and_a_speed_up_beside_the_ideal() -> None:
    panel = {"y": "speed_up", "x": WORKERS, "methods": ["ad-psgd"], "log": ["x", "y"]}
    (axes,) = figure_of(panel, result=scaling()).axes
    lines = {str(line.get_label()): line for line in axes.lines}
    assert list(lines["ideal"].get_ydata()) == [2, 4]
    actual = next(line for line in axes.lines if line.get_marker() == "o")
    np.testing.assert_allclose(actual.get_xydata(), [[2, 2], [4, 1]], rtol=0.02)


def test_lines_of_one_method_differ_in_dashes_and_markers() -> None:
    values = {WORKERS: [2, 4], RATE: [0.1, 0.2]}
    study = example_study(vary=values, methods={"ar-sgd": STUDY["methods"]["ar-sgd"]})
    runs = [
        example_run("ar-sgd", seed, values=each)
        for seed in (1, 2)
        for each in study.combinations("ar-sgd")
    ]
    (axes,) = figure_of(
        {"y": "test_accuracy", "x": WORKERS}, result=example_result(study, runs)
    ).axes
    drawn = [container.lines[0] for container in axes.containers]
    labels = [container.get_label() for container in axes.containers]
    assert labels == ["AR-SGD, learning rate 0.1", "AR-SGD, learning rate 0.2"]
    assert len({line.get_color() for line in drawn}) == 1
    assert len({(line.get_marker(), line.get_linestyle()) for line in drawn}) == 2
    assert axes.get_xticks().tolist() == [2, 4]
    settings = {"y": "test_accuracy", "x": WORKERS, "where": {RATE: 0.2}}
    (axes,) = figure_of(settings, result=example_result(study, runs)).axes
    # What is the same in all of a panel is not in its legend.
    assert [container.get_label() for container in axes.containers] == ["AR-SGD"]


def test_figures_are_files_and_the_page_has_the_checks_in_milliseconds(tmp_path: Path) -> None:
    panels = [{"y": "val_accuracy", "x": "epoch"}]
    study = example_study(figures=[{"name": "fig_1", "title": "A figure", "panels": panels}])
    result = example_result(study, RUNS, checks=[example_check("ar-sgd", 2.5e-3, 2e-3)])
    draw_all(result, LABELS, tmp_path / "figures")
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [
        "fig_1.pdf",
        "fig_1.png",
    ]
    page = render(result, folder="figures")
    assert "## A figure\n\n![A figure](figures/fig_1.png)" in page
    assert "|AR-SGD|1|2|2.5|2|+0.5|" in page


def test_a_table_has_means_over_seeds_beside_the_numbers_of_the_source() -> None:
    result = example_result(
        example_study(), [example_run("sgd", 1, correct=900), example_run("sgd", 2, correct=910)]
    )
    assert rows_of(result, "test_accuracy", "seconds", given={"sgd": "91.5 %"}) == [
        ["", "test accuracy", "time of the run [s]", "Somebody 2020"],
        ["SGD", "90.50 % ± 0.71 (s.e. 0.50)", "1.22 ± 0.00849", "91.5 %"],
    ]


def test_a_table_over_a_key_has_a_column_for_each_measure_and_value() -> None:
    actual = rows_of(
        scaling(), "seconds_per_batch", "speed_up", over=WORKERS, methods=["ar-sgd", "sgd"]
    )
    head, waiting, alone = actual
    assert [column.rpartition(", ")[2] for column in head[1:]] == ["workers 2", "workers 4"] * 2
    assert len({column.partition(", ")[0] for column in head[1:]}) == 2
    numbers = [cell.partition(" ")[0] for cell in waiting[1:]]
    assert numbers[:2] == ["0.02", "0.04"]
    assert numbers[2:] == ["2", "1"]
    # SGD runs on one worker: its numbers stand at all values.
    assert alone[1] == alone[2]
    assert alone[3] == alone[4]


def test_a_table_over_values_that_are_mappings_has_their_numbers() -> None:
    key, values = "cluster.slow_ranks", [{}, {0: 5.0}]
    runs = [
        example_run("ar-sgd", 1, values={key: value}, seconds=1 + len(value)) for value in values
    ]
    head, row = rows_of(
        example_result(example_study(vary={key: values}), runs),
        "seconds_per_batch",
        over=key,
        methods=["ar-sgd"],
    )
    assert [column.rpartition(", ")[2] for column in head[1:]] == [
        "slow ranks {}",
        'slow ranks {"0": 5.0}',
    ]
    assert row[1:] == ["0.1", "0.2"]


def test_a_table_over_a_key_has_the_values_that_only_one_method_varies() -> None:
    methods = {
        **STUDY["methods"],
        "ad-psgd": {"train": {"algorithm": "ad-psgd"}, "vary": {RATE: [0.5]}},
    }
    runs = [
        example_run("ar-sgd", 1, values={RATE: 0.1}),
        example_run("ad-psgd", 1, values={RATE: 0.5}, seconds=0.4),
    ]
    result = example_result(example_study(vary={RATE: [0.1]}, methods=methods), runs)
    actual = rows_of(result, "seconds_per_batch", over=RATE, methods=["ar-sgd", "ad-psgd"])
    assert [row[1:] for row in actual[1:]] == [["0.02", "-"], ["-", "0.04"]]


def diverged(method: str, **values: Any) -> RunResult:
    return replace(
        example_run(method, 3, values=values), counts=None, curves={}, numbers={"diverged": 1.0}
    )


def test_a_run_that_diverged_counted_as_0_percent_in_the_mean_of_its_row() -> None:
    runs = [example_run("sgd", 1), example_run("sgd", 2), diverged("sgd"), diverged("ad-psgd")]
    measures = ("test_accuracy", "seconds", "seconds_to=0.899", "seconds_to=0.999", "diverged")
    _, some, every = rows_of(example_result(example_study(), runs), *measures)
    assert some[1:-1] == [
        "90.00 % ± 0.00 (s.e. 0.00); diverged in 1 of 3",
        "1.22 ± 0.00849; diverged in 1 of 3",
        "1.22; diverged in 1 of 3; not reached in 1 of 3",
        # A goal that no run reached hid that another diverged.
        "not reached; diverged in 1 of 3",
    ]
    assert every[1:] == [*["diverged"] * 4, "100.00 %"]


def test_steps_without_effect_and_lost_averages_are_said() -> None:
    fine = example_run("sgd", 1)
    numbers = {**fine.numbers, "steps_not_finite": 3.0, "averages_lost": 12.0}
    runs = [fine, *(replace(example_run("ad-psgd", seed), numbers=numbers) for seed in (1, 2))]
    assert notes(example_result(example_study(), runs)) == [
        "6 steps had no effect, since a gradient or an update was not finite: of AD-PSGD 6.",
        "Workers left out 24 averages, counted on both sides of a pair: of AD-PSGD 24.",
    ]
    assert notes(example_result(example_study(), [fine])) == []


def test_tables_figures_and_comparisons_treated_a_run_that_diverged_differently() -> None:
    """A table left it out, while the mean in a figure and a comparison had it as 0 %."""
    study = example_study(vary={WORKERS: [4]})
    at = {WORKERS: 4}
    runs = [example_run(name, seed, values=at) for name in ("ar-sgd", "ad-psgd") for seed in (1, 2)]
    result = example_result(
        study, [*runs, diverged("ad-psgd", **at), example_run("ar-sgd", 3, values=at)]
    )
    # A panel of boxes without any was an error, after all runs were done.
    figure_of({"y": "seconds"}, result=replace(result, runs=[diverged("ad-psgd", **at)]))
    (axes,) = figure_of(
        {"y": "test_accuracy", "x": WORKERS, "methods": ["ad-psgd"]}, result=result
    ).axes
    assert axes.containers[0].lines[0].get_ydata() == [0.9]
    claim = Claim(says="As good.", equivalent="ad-psgd", control=["ar-sgd"])
    compared = replace(result, study=study.model_copy(update={"claims": [claim]}))
    (pair,) = judge(compared)[0].comparisons
    assert (pair.difference.mean, pair.num_pairs, pair.num_seeds) == (0.0, 2, 3)
    (message,) = notes(result)
    assert message.startswith(
        "1 of 6 runs diverged to a loss that is not finite: of AD-PSGD 1. Tables, figures and"
    )
    # So did the binomial error below the tables.
    assert " at p = 0.9000, is 0.95 points" in render(compared, folder="f")
    none = example_result(
        compared.study, [diverged("ad-psgd", **at), example_run("ar-sgd", 3, values=at)]
    )
    assert "|AD-PSGD, workers 4 against AR-SGD, workers 4: -" in render(none, folder="f")


def test_a_best_value_at_the_edge_of_the_sweep_of_each_method_is_said() -> None:
    methods = {
        **STUDY["methods"],
        "ad-psgd": {**STUDY["methods"]["ad-psgd"], "vary": {RATE: [0.01, 0.1]}},
    }
    study = example_study(vary={RATE: [0.1, 0.2, 0.3]}, best_of=[RATE], methods=methods)
    best = {"ar-sgd": 0.1, "sgd": 0.2, "ad-psgd": 0.1}
    runs = [
        example_run(name, 1, correct=950 if best[name] == value else 900, values={RATE: value})
        for name in best
        for value in study.values_of(name, RATE)
    ]
    rows = [line.split("|")[1:-1] for line in sweep_table(example_result(study, runs)).splitlines()]
    assert rows[0] == ["", *(f"learning rate {rate}" for rate in (0.01, 0.1, 0.2, 0.3)), "best"]
    assert [
        (row[0], [position for position, cell in enumerate(row) if "**" in cell], row[-1])
        for row in rows[2:]
    ] == [
        ("AR-SGD", [2], "the lowest tried: a better one may lie beyond"),
        ("SGD", [3], ""),
        ("AD-PSGD", [2], "the highest tried: a better one may lie beyond"),
    ]
    assert rows[2][1] == "-"
    lost = example_result(study, [*runs, diverged("sgd", **{RATE: 0.2})])
    assert "|diverged in 1 of 2|" in sweep_table(lost)


FASTER = {
    "says": "A | B is faster.",
    "place": "table 1",
    "better": "ad-psgd",
    "control": "ar-sgd",
    "measure": "seconds",
}


def claimed(*claims: dict[str, Any], checks: bool = True, **changes: Any) -> StudyResult:
    """AD-PSGD takes half the time of AR-SGD; one of its runs diverges."""
    study = example_study(claims=claims, shows={"made-table-1": "table 1"}, **changes)
    names = [
        (name, seed)
        for seed in (1, 2, 3)
        for name in study.methods
        if (name, seed) != ("ad-psgd", 3)
    ]
    runs = [
        example_run(name, seed, seconds=0.1 if name == "ad-psgd" else 0.2) for name, seed in names
    ]
    actual = [example_check(name, 1e-3, 1e-3) for name in ("ar-sgd", "ad-psgd")] if checks else []
    return example_result(study, [*runs, diverged("ad-psgd")], checks=actual)


@pytest.mark.parametrize("times_only", [None, 4])
def test_the_page_sets_claims_beside_what_came_out(times_only: int | None) -> None:
    page = render(claimed(FASTER, times_only=times_only), folder="figures")
    row = next(
        line
        for line in page.splitlines()
        if line.startswith("|A \\| B is faster.|table 1|time of the run [s], equal|")
    )
    assert "AD-PSGD against AR-SGD: x2.00 (x" in row
    assert row.endswith("), 2 of 3 seeds|more|**confirmed**|")
    # Simulated times that were not checked confirm nothing.
    unchecked = render(claimed(FASTER, checks=False, times_only=times_only), folder="figures")
    assert "|more|not decidable here: times not checked well enough|" in unchecked
    assert (
        "Source: Somebody 2020, table 1. Made by `python -m pipeline compare --study example`"
        in page
    )
    assert ("test events, which count as N = 1,000 of equal weight" in page) == (times_only is None)


def test_a_classifier_within_two_errors_of_the_best_is_not_behind_it() -> None:
    behind = {"hlf": {"value": 0.05, "error": 0.02}, "trees": {"value": 0.03, "error": 0.02}}
    created = {
        "num_events": 100,
        "signal": "ttbar",
        "mixture": {"words": "100 % QCD"},
        "errors": 2,
        "trees": None,
    }
    created |= {"best": "particles", "behind_best": behind, "tables": []}
    created["runs"] = {"hlf": {"events_per_class": {"QCD": 40, "ttbar": 60}}}
    page = render_claims({}, command="", evaluations=[created])
    assert "100 test events: QCD 40, ttbar 60. Largest area" in page
    assert "|hlf|0.050 ± 0.020|yes|\n|trees|0.030 ± 0.020|no|" in page
