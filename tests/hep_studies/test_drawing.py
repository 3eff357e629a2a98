"""Figures of a study: functions of its result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_figures import data_outside_axes
from example_study import EPOCHS, STUDY, example_result, example_run, example_study
from matplotlib.axes import Axes

from hep_studies.figures import draw, draw_all
from hep_studies.run_result import RunResult
from hep_studies.study_result import StudyResult
from hep_studies.study_sections import StudyFigure
from models.evaluation.style import PlotLabels

LABELS = PlotLabels("", "technical sample", 13)
WORKERS = "train.workers"
RATE = "train.learning_rate"
METHODS = ("ar-sgd", "sgd", "ad-psgd")
RUNS = [example_run(method, seed) for seed in (1, 2) for method in METHODS]
RESULT = example_result(example_study(), RUNS)


def drawn_axes(*panels: dict[str, Any], result: StudyResult = RESULT) -> list[Axes]:
    """The axes of a figure of some panels, which show all of their data."""
    settings = StudyFigure.model_validate({"name": "a", "title": "A", "panels": panels})
    figure = draw(result, settings, LABELS)
    assert data_outside_axes(figure) == []
    return list(figure.axes)


def line_labels(axes: Axes) -> list[Any]:
    return [line.get_label() for line in axes.lines]


def test_accuracy_is_drawn_against_epochs_and_against_time() -> None:
    epochs, times = drawn_axes(
        {"y": "val_accuracy", "x": "epoch"}, {"y": "val_accuracy", "x": "seconds"}
    )

    numbers = np.arange(1, EPOCHS + 1)
    np.testing.assert_allclose(epochs.lines[0].get_xdata(), numbers)
    # The mean over the seeds of 0.2 s, 1 and 2 % longer.
    np.testing.assert_allclose(times.lines[0].get_xdata(), 0.203 * numbers)
    assert epochs.get_ylabel() == "Validation accuracy"
    assert times.get_ylabel() == ""
    assert times.get_xlabel() == "Time, simulated [s]"
    assert line_labels(epochs) == ["AR-SGD", "SGD", "AD-PSGD"]


def test_distances_of_zero_are_left_out_of_a_logarithmic_axis() -> None:
    (axes,) = drawn_axes({"y": "consensus_distance", "x": "epoch", "log": ["y"]})

    assert line_labels(axes) == ["AD-PSGD"]


def test_there_is_a_box_for_each_method() -> None:
    first, second = drawn_axes({"y": "communicate"}, {"y": "seconds", "methods": ["sgd"]})

    method_labels = [label.get_text() for label in first.get_yticklabels()]
    assert method_labels == ["AR-SGD", "SGD", "AD-PSGD"]
    assert second.get_xlabel() == "Time per epoch, in all [s]"


def test_a_panel_of_boxes_may_be_empty() -> None:
    run = example_run("sgd", 1)
    diverged = replace(run, counts=None, curves={}, numbers={"diverged": 1.0})
    only_diverged = replace(RESULT, runs=[diverged])

    (axes,) = drawn_axes({"y": "seconds"}, result=only_diverged)

    assert not axes.patches


def test_a_speed_up_is_drawn_against_the_workers_beside_the_ideal() -> None:
    runs = [example_run("sgd", seed, seconds=0.4) for seed in (1, 2)]
    for workers in (2, 4):
        values = {WORKERS: workers}
        seconds = 0.1 * workers
        runs += [example_run("ad-psgd", seed, values=values, seconds=seconds) for seed in (1, 2)]
    study = example_study(vary={WORKERS: [2, 4]}, times_only=4)
    result = example_result(study, runs)
    panel = {"y": "speed_up", "x": WORKERS, "methods": ["ad-psgd"], "log": ["x", "y"]}

    (axes,) = drawn_axes(panel, result=result)

    (ideal,) = (line for line in axes.lines if line.get_label() == "ideal")
    (speed_up,) = (line for line in axes.lines if line.get_marker() == "o")
    assert list(ideal.get_ydata()) == [2, 4]
    # One worker takes 0.4 s, two take 0.2 s and four 0.4 s.
    assert list(speed_up.get_xdata()) == [2, 4]
    assert list(speed_up.get_ydata()) == pytest.approx([2, 1], rel=0.02)


@pytest.fixture(scope="module")
def two_rates() -> StudyResult:
    """Runs of AR-SGD with two numbers of workers and two rates."""
    methods = {"ar-sgd": STUDY["methods"]["ar-sgd"]}
    study = example_study(vary={WORKERS: [2, 4], RATE: [0.1, 0.2]}, methods=methods)
    runs: list[RunResult] = []
    for values in study.combinations("ar-sgd"):
        runs += [example_run("ar-sgd", seed, values=values) for seed in (1, 2)]
    return example_result(study, runs)


def test_lines_of_one_method_differ_in_dashes_and_markers(two_rates: StudyResult) -> None:
    (axes,) = drawn_axes({"y": "test_accuracy", "x": WORKERS}, result=two_rates)

    containers: list[Any] = list(axes.containers)
    first, second = containers
    first_line, second_line = first.lines[0], second.lines[0]
    assert first.get_label() == "AR-SGD, learning rate 0.1"
    assert second.get_label() == "AR-SGD, learning rate 0.2"
    assert first_line.get_color() == second_line.get_color()
    first_style = (first_line.get_marker(), first_line.get_linestyle())
    second_style = (second_line.get_marker(), second_line.get_linestyle())
    assert first_style != second_style
    assert axes.get_xticks().tolist() == [2, 4]


def test_the_legend_leaves_out_values_that_a_panel_fixes(two_rates: StudyResult) -> None:
    panel = {"y": "test_accuracy", "x": WORKERS, "where": {RATE: 0.2}}

    (axes,) = drawn_axes(panel, result=two_rates)

    assert [container.get_label() for container in axes.containers] == ["AR-SGD"]


def test_a_figure_is_a_pdf_and_a_png(tmp_path: Path) -> None:
    panels = [{"y": "val_accuracy", "x": "epoch"}]
    figure = {"name": "fig_1", "title": "A figure", "panels": panels}
    result = replace(RESULT, study=example_study(figures=[figure]))
    folder = tmp_path / "figures"

    draw_all(result, LABELS, folder)

    files = sorted(path.name for path in folder.iterdir())
    assert files == ["fig_1.pdf", "fig_1.png"]
