"""The figure of a search shows every setting, and the front by its layers."""

from __future__ import annotations

import math

from models.style import PlotLabels
from training.gridsearch.figures import plot_pareto
from training.gridsearch.results import Score, pareto_front
from training.gridsearch.trials import Trial


def test_all_settings_are_points_and_the_front_is_named() -> None:
    scores = [
        Score(Trial((width, 2), 16, rate, 3), 50 * width, accuracy, spread, 0.3, [1])
        for width, rate, accuracy, spread in [
            (2, 0.1, 0.7, 0.01),
            (2, 0.2, 0.6, 0.01),
            (4, 0.1, 0.65, math.nan),
            (8, 0.1, 0.8, math.nan),
        ]
    ]
    figure = plot_pareto(scores, PlotLabels("", "toy", 13))
    (axes,) = figure.axes
    points = axes.lines[0]
    assert sorted(points.get_xdata()) == [100, 100, 200, 400]
    assert [text.get_text() for text in axes.texts] == ["2-2", "8-2"]
    assert len(pareto_front(scores)) == 2
    figure.canvas.draw()
