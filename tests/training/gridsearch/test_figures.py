"""The figures of a search: every setting and both fronts by their layers; the speed-up, measured where it was."""

from __future__ import annotations

import numpy as np
import pytest
from drawn import outside, without_style
from matplotlib.figure import Figure

from models.evaluation.style import PlotLabels
from training.gridsearch.figures import plot_pareto, plot_speed_up
from training.gridsearch.results import Cost, Score
from training.gridsearch.settings import Trial

LABELS = PlotLabels("", "toy", 13)
#: The second layer of all has 2 nodes; the widest is the fastest but one.
SCORES = [
    Score(
        Trial((width, 2), 16, rate, 3),
        50 * width,
        [accuracy - 0.01, accuracy + 0.01],
        0.3,
        1,
        Cost(time, 0.1),
    )
    for width, rate, accuracy, time in [
        (2, 0.1, 0.7, 5.0),
        (2, 0.2, 0.6, 5.0),
        (4, 0.1, 0.65, 3.0),
        (8, 0.1, 0.8, 4.0),
    ]
]


@pytest.fixture(scope="module")
def pareto() -> Figure:
    return plot_pareto(SCORES, LABELS)


def test_each_panel_shows_all_settings_and_names_its_own_front(pareto: Figure) -> None:
    for axes, costs, front in zip(
        pareto.axes,
        ([100, 100, 200, 400], [3, 4, 5, 5]),
        (["1: 2-2", "2: 8-2"], ["1: 4-2", "2: 8-2"]),
        strict=True,
    ):
        assert sorted(axes.lines[0].get_xdata()) == costs
        np.testing.assert_allclose(sorted(axes.lines[0].get_ydata()), [0.6, 0.65, 0.7, 0.8])
        legend = axes.get_legend()
        assert legend is not None
        assert [text.get_text() for text in legend.get_texts() if ": " in text.get_text()] == front
        assert {"1", "2"} <= {text.get_text() for text in axes.texts}
    assert outside(pareto) == []


def test_they_have_the_style_of_all_figures() -> None:
    assert without_style(lambda: plot_pareto(SCORES, LABELS)) == []
    assert without_style(lambda: plot_speed_up({1: 1.0, 2: 1.9}, (2, 1.8), LABELS)) == []


@pytest.mark.parametrize("measured", [(2, 1.6), None], ids=["measured", "parts were there"])
def test_the_speed_up_shows_what_was_expected_and_what_was_measured(
    measured: tuple[int, float] | None,
) -> None:
    figure = plot_speed_up({1: 1.0, 2: 1.9, 4: 2.5}, measured, LABELS)
    (axes,) = figure.axes
    lines = {
        str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata()))
        for line in axes.lines
    }
    assert lines["ideal"] == ([1, 2, 4], [1, 2, 4])
    assert lines["from the times of the trainings"] == ([1, 2, 4], [1.0, 1.9, 2.5])
    found = lines.get("this search, start-up included")
    assert found == (None if measured is None else ([2], [1.6]))
    assert outside(figure) == []
