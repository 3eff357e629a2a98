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
WORKERS, RATE = "train.workers", "train.learning_rate"
METHODS = ("ar-sgd", "sgd", "ad-psgd")
RESULT = example_result(
    example_study(), [example_run(method, seed) for seed in (1, 2) for method in METHODS]
)


def drawn_axes(*panels: dict[str, Any], result: StudyResult = RESULT) -> list[Axes]:
    """The axes of a figure of some panels, which show all of their data."""
    settings = StudyFigure.model_validate({"name": "a", "title": "A", "panels": panels})
    figure = draw(result, settings, LABELS)
    assert data_outside_axes(figure) == []
    return list(figure.axes)


def test_accuracy_is_drawn_against_epochs_and_against_time() -> None:
    epochs, times = drawn_axes(
        {"y": "val_accuracy", "x": "epoch"}, {"y": "val_accuracy", "x": "seconds"}
    )

    numbers = np.arange(1, EPOCHS + 1)
    np.testing.assert_allclose(epochs.lines[0].get_xdata(), numbers)
    # The mean over the seeds of 0.2 s, 1 and 2 % longer.
    np.testing.assert_allclose(times.lines[0].get_xdata(), 0.203 * numbers)
    assert (epochs.get_ylabel(), times.get_ylabel()) == ("Validation accuracy", "")
    assert times.get_xlabel() == "Time, simulated [s]"
    assert [line.get_label() for line in epochs.lines] == ["AR-SGD", "SGD", "AD-PSGD"]


def test_distances_of_zero_are_left_out_of_a_logarithmic_axis() -> None:
    (axes,) = drawn_axes({"y": "consensus_distance", "x": "epoch", "log": ["y"]})

    assert [line.get_label() for line in axes.lines] == ["AD-PSGD"]


def test_there_is_a_box_for_each_method() -> None:
    first, second = drawn_axes({"y": "communicate"}, {"y": "seconds", "methods": ["sgd"]})

    assert [label.get_text() for label in first.get_yticklabels()] == ["AR-SGD", "SGD", "AD-PSGD"]
    assert second.get_xlabel() == "Time per epoch, in all [s]"


def test_a_panel_of_boxes_may_be_empty() -> None:
    diverged = replace(example_run("sgd", 1), counts=None, curves={}, numbers={"diverged": 1.0})

    (axes,) = drawn_axes({"y": "seconds"}, result=replace(RESULT, runs=[diverged]))

    assert not axes.patches


def test_a_speed_up_is_drawn_against_the_workers_beside_the_ideal() -> None:
    runs = [example_run("sgd", seed, seconds=0.4) for seed in (1, 2)]
    for workers in (2, 4):
        values = {WORKERS: workers}
        seconds = 0.1 * workers
        runs += [example_run("ad-psgd", seed, values=values, seconds=seconds) for seed in (1, 2)]
    result = example_result(example_study(vary={WORKERS: [2, 4]}, times_only=4), runs)
    panel = {"y": "speed_up", "x": WORKERS, "methods": ["ad-psgd"], "log": ["x", "y"]}

    (axes,) = drawn_axes(panel, result=result)

    ideal = next(line for line in axes.lines if line.get_label() == "ideal")
    speed_up = next(line for line in axes.lines if line.get_marker() == "o")
    assert list(ideal.get_ydata()) == [2, 4]
    np.testing.assert_allclose(speed_up.get_xydata(), [[2, 2], [4, 1]], rtol=0.02)


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

    labels = [container.get_label() for container in axes.containers]
    containers: list[Any] = list(axes.containers)
    lines = [container.lines[0] for container in containers]
    assert labels == ["AR-SGD, learning rate 0.1", "AR-SGD, learning rate 0.2"]
    assert len({line.get_color() for line in lines}) == 1
    assert len({(line.get_marker(), line.get_linestyle()) for line in lines}) == 2
    assert axes.get_xticks().tolist() == [2, 4]


def test_the_legend_leaves_out_values_that_a_panel_fixes(two_rates: StudyResult) -> None:
    panel = {"y": "test_accuracy", "x": WORKERS, "where": {RATE: 0.2}}

    (axes,) = drawn_axes(panel, result=two_rates)

    assert [container.get_label() for container in axes.containers] == ["AR-SGD"]


def test_a_figure_is_a_pdf_and_a_png(tmp_path: Path) -> None:
    panels = [{"y": "val_accuracy", "x": "epoch"}]
    study = example_study(figures=[{"name": "fig_1", "title": "A figure", "panels": panels}])

    draw_all(replace(RESULT, study=study), LABELS, tmp_path / "figures")

    files = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert files == ["fig_1.pdf", "fig_1.png"]
