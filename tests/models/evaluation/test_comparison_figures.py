"""Figures of several models: lines, marks and ratios read back from their axes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_figures import data_outside_axes
from example_curves import CURVES, POINTS, WORDS, example_curve
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from models.evaluation.curves import ratio
from models.evaluation.figures import plot_curves
from models.evaluation.style import PlotLabels, save_figure

LABELS = PlotLabels("", "technical sample", 13)
plot_background_efficiency, plot_rejection = (
    partial(plot_curves, rejection=rejection) for rejection in (False, True)
)
BOTH = pytest.mark.parametrize("plot", [plot_background_efficiency, plot_rejection])
Plot = Callable[..., Figure]


#: No background passes anywhere.
PERFECT = example_curve(50)


def marks_of(axes: Axes) -> list[ErrorbarContainer]:
    return [each for each in axes.containers if isinstance(each, ErrorbarContainer)]


@BOTH
def test_lines_and_marks_are_those_of_the_curves_in_the_working_region(plot: Plot) -> None:
    figure = plot(CURVES, "t_t", WORDS, POINTS, 0.95, LABELS)
    inverse = plot is plot_rejection
    for axes, models in zip(figure.axes, CURVES.values(), strict=False):
        lines = [line for line in axes.lines if len(line.get_xdata()) > len(POINTS)]
        for line, mark, curve in zip(lines, marks_of(axes), models.values(), strict=True):
            reference = (curve.background_efficiency > 0) & (curve.signal_efficiency >= 0.7)
            expected = curve.background_efficiency[reference] ** (-1 if inverse else 1)
            np.testing.assert_array_equal(line.get_xdata(), curve.signal_efficiency[reference])
            np.testing.assert_allclose(line.get_ydata(), expected)
            places = [percent for percent in (74, 89) if curve.background_efficiency[percent] > 0]
            assert mark[0].get_ydata() == pytest.approx(
                curve.background_efficiency[places] ** (-1 if inverse else 1)
            )
            ends = np.array([sorted(segment[:, 1]) for segment in mark[2][0].get_segments()])
            limits = (curve.high, curve.low) if inverse else (curve.low, curve.high)
            for (low, high), position in zip(ends, places, strict=True):
                if curve.low[position] > 0:
                    assert low == pytest.approx(limits[0][position] ** (-1 if inverse else 1))
                    assert high == pytest.approx(limits[1][position] ** (-1 if inverse else 1))
    assert figure.axes[0].get_ylabel() == (
        "Background rejection" if inverse else "Background efficiency"
    )


@BOTH
def test_panels_say_what_is_on_them_and_the_legend_covers_none(plot: Plot) -> None:
    figure = plot(CURVES, "t_t", WORDS, POINTS, 0.95, LABELS)
    message = [
        [text.get_text().replace(r"\$", "$") for text in axes.texts] for axes in figure.axes[:2]
    ]
    assert message[0][-1] == "against 91 % QCD, 9 % W+jets, by rate"
    assert message[1] == [r"against $t\bar{t}$_2"]
    for axes in figure.axes[2:]:
        assert axes.get_xlabel() == "Efficiency of t_t"
        assert axes.get_xlim() == (0.7, 1.005)
    assert figure.axes[0].get_shared_y_axes().joined(*figure.axes[:2])
    (legend,) = figure.legends
    assert [text.get_text().replace(r"\$", "$") for text in legend.get_texts()] == ["hlf", r"$x_1$"]
    figure.canvas.draw()
    assert legend.get_window_extent().y1 < min(axes.get_window_extent().y0 for axes in figure.axes)
    assert figure.axes[2].get_ylabel() == "/ hlf"


@BOTH
def test_ratios_are_to_the_first_model_within_their_panel(plot: Plot) -> None:
    near = example_curve(3)._replace(
        background_efficiency=1.5 * CURVES["all backgrounds"]["hlf"].background_efficiency
    )
    models = {"hlf": CURVES["all backgrounds"]["hlf"], "near": near}
    below = plot({"one": models}, "signal", {}, [0.9], 0.95, LABELS).axes[1]
    drawn = np.asarray(below.lines[0].get_ydata(), dtype=float)
    assert np.nanmax(np.abs(drawn - (1 / 1.5 if plot is plot_rejection else 1.5))) < 1e-9
    assert ratio(near, models["hlf"])[0][-1] == pytest.approx(1.5)


@pytest.mark.slow
@BOTH
def test_low_working_points_widen_the_region(plot: Plot) -> None:
    figure = plot(CURVES, "s", WORDS, [0.5, 0.9], 0.95, LABELS)
    assert figure.axes[0].get_xlim()[0] < 0.5
    assert data_outside_axes(figure) == []


@BOTH
@pytest.mark.slow
def test_a_model_that_lets_nothing_pass_and_negative_weights_can_be_drawn(
    tmp_path: Path, plot: Plot
) -> None:
    models = {"perfect": PERFECT, "negative": example_curve(2, lightest=-0.5)}
    assert not PERFECT.background_efficiency.any()
    figure = plot({"all": models}, "signal", {}, POINTS, 0.95, LABELS)
    assert data_outside_axes(figure) == []
    save_figure(figure, tmp_path / "plot")


@pytest.mark.parametrize("rejection", [False, True])
def test_where_no_background_passes_an_arrow_begins_at_the_limit(rejection: bool) -> None:
    curve = example_curve(6)
    assert curve.background_efficiency[89] == 0
    figure = plot_curves(
        {"QCD": {"hlf": curve}}, "ttbar", {}, [0.9], 1.0, LABELS, rejection=rejection
    )
    main = figure.axes[0]
    arrows: list[Any] = [text for text in main.texts if getattr(text, "arrow_patch", None)]
    (arrow,) = arrows
    limit = 1 / curve.high[89] if rejection else curve.high[89]
    (_, begin), (_, end) = arrow.xyann, arrow.xy
    assert begin == pytest.approx(limit)
    # A rejection may be larger, an efficiency smaller.
    assert (end > begin) == rejection
    assert main.get_ylim()[0] < min(begin, end) < max(begin, end) < main.get_ylim()[1]
