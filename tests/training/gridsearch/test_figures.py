"""The figures of a search: all settings with both Pareto fronts, and the speed-up."""

from __future__ import annotations

import numpy as np
import pytest
from drawn_figures import data_outside_axes, style_faults

from models.evaluation.style import PlotLabels
from training.gridsearch.figures import plot_pareto, plot_speed_up
from training.gridsearch.results import Cost, Score
from training.gridsearch.settings import Trial

LABELS = PlotLabels("", "toy", 13)


def make_score(width: int, rate: float, accuracy: float, latency: float) -> Score:
    trial = Trial(hidden=(width, 2), batch_size=16, learning_rate=rate, epochs=3)
    accuracies_of_folds = [accuracy - 0.01, accuracy + 0.01]
    return Score(
        trial,
        num_parameters=50 * width,
        accuracies=accuracies_of_folds,
        loss=0.3,
        best_epoch=1,
        latency=Cost(latency, 0.1),
    )


SCORES = [
    make_score(2, 0.1, accuracy=0.7, latency=5.0),
    make_score(2, 0.2, accuracy=0.6, latency=5.0),
    make_score(4, 0.1, accuracy=0.65, latency=3.0),
    make_score(8, 0.1, accuracy=0.8, latency=4.0),
]


@pytest.mark.parametrize(
    ("panel", "costs", "front"),
    [
        pytest.param(0, [100, 100, 200, 400], ["1: 2-2", "2: 8-2"], id="parameters"),
        pytest.param(1, [3, 4, 5, 5], ["1: 4-2", "2: 8-2"], id="latency"),
    ],
)
def test_each_panel_shows_all_settings_and_names_its_own_front(
    panel: int, costs: list[int], front: list[str]
) -> None:
    figure = plot_pareto(SCORES, LABELS)

    axes = figure.axes[panel]
    points = axes.lines[0]
    assert sorted(points.get_xdata()) == costs
    np.testing.assert_allclose(sorted(points.get_ydata()), [0.6, 0.65, 0.7, 0.8])
    legend = axes.get_legend()
    assert legend is not None
    labels = [text.get_text() for text in legend.get_texts()]
    labels_of_front = [label for label in labels if ": " in label]
    numbers_in_panel = {text.get_text() for text in axes.texts}
    assert labels_of_front == front
    assert {"1", "2"} <= numbers_in_panel
    assert data_outside_axes(figure) == []


def test_the_figures_have_the_common_style() -> None:
    assert style_faults(lambda: plot_pareto(SCORES, LABELS)) == []
    assert style_faults(lambda: plot_speed_up({1: 1.0, 2: 1.9}, (2, 1.8), LABELS)) == []


@pytest.mark.parametrize(
    ("measured", "measured_points"),
    [((2, 1.6), [(2, 1.6)]), (None, [])],
    ids=["measured", "partly reused"],
)
def test_the_speed_up_shows_the_expected_and_the_measured_value(
    measured: tuple[int, float] | None, measured_points: list[tuple[int, float]]
) -> None:
    figure = plot_speed_up({1: 1.0, 2: 1.9, 4: 2.5}, measured, LABELS)

    points_of_line = {}
    for line in figure.axes[0].lines:
        points = zip(line.get_xdata(), line.get_ydata(), strict=True)
        points_of_line[str(line.get_label())] = list(points)
    ideal_points = points_of_line["ideal"]
    expected_points = points_of_line["from the times of the trainings"]
    search_points = points_of_line.get("this search, start-up included", [])
    assert ideal_points == [(1, 1), (2, 2), (4, 4)]
    assert expected_points == [(1, 1.0), (2, 1.9), (4, 2.5)]
    assert search_points == measured_points
    assert data_outside_axes(figure) == []
