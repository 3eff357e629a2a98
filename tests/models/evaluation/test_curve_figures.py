"""Curves of several models: lines, marks and ratios read back from their axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_figures import data_outside_axes
from example_curves import CURVES, POINTS, WORDS, example_curve
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from models.evaluation.curve_figures import Curves, plot_curves
from models.evaluation.curves import EfficiencyCurve
from models.evaluation.style import PlotLabels, save_figure

LABELS = PlotLabels("", "technical sample", 13)
efficiency_and_rejection = pytest.mark.parametrize("rejection", [False, True])


def draw(
    curves: Curves, *, points: list[float] = POINTS, end: float = 0.95, rejection: bool = False
) -> Figure:
    return plot_curves(curves, "t_t", WORDS, points, end, LABELS, rejection=rejection)


def marks_of(axes: Axes) -> list[ErrorbarContainer]:
    return [marks for marks in axes.containers if isinstance(marks, ErrorbarContainer)]


def text_of(text: Any) -> str:
    """A text as it is drawn."""
    return str(text.get_text().replace(r"\$", "$"))


def assert_line_is_that_of_the_curve(line: Line2D, curve: EfficiencyCurve, power: int) -> None:
    signal, background = curve.signal_efficiency, curve.background_efficiency
    is_drawn = (background > 0) & (signal >= 0.7)
    np.testing.assert_array_equal(line.get_xdata(), signal[is_drawn])
    np.testing.assert_allclose(line.get_ydata(), background[is_drawn] ** power)


def assert_marks_are_those_of_the_curve(
    marks: ErrorbarContainer, curve: EfficiencyCurve, power: int
) -> None:
    # The rows of the working points, 0.75 and 0.9.
    rows = [row for row in (74, 89) if curve.background_efficiency[row] > 0]
    points, _, (bars,) = marks
    assert points is not None
    assert points.get_ydata() == pytest.approx(curve.background_efficiency[rows] ** power)
    for row, segment in zip(rows, bars.get_segments(), strict=True):
        if curve.low[row] > 0:
            ends = [curve.low[row] ** power, curve.high[row] ** power]
            assert sorted(segment[:, 1]) == pytest.approx(sorted(ends))


@efficiency_and_rejection
def test_lines_and_marks_are_those_of_the_curves_in_the_working_region(rejection: bool) -> None:
    power = -1 if rejection else 1

    figure = draw(CURVES, rejection=rejection)

    label = "Background rejection" if rejection else "Background efficiency"
    assert figure.axes[0].get_ylabel() == label
    for axes, models in zip(figure.axes, CURVES.values(), strict=False):
        lines = [line for line in axes.lines if len(line.get_xdata()) > len(POINTS)]
        for line, marks, curve in zip(lines, marks_of(axes), models.values(), strict=True):
            assert_line_is_that_of_the_curve(line, curve, power)
            assert_marks_are_those_of_the_curve(marks, curve, power)


@efficiency_and_rejection
def test_panels_are_labelled_and_the_legend_covers_none(rejection: bool) -> None:
    figure = draw(CURVES, rejection=rejection)

    first, second, first_ratio, second_ratio = figure.axes
    assert text_of(first.texts[-1]) == "against 91 % QCD, 9 % W+jets, by rate"
    assert [text_of(text) for text in second.texts] == [r"against $t\bar{t}$_2"]
    for axes in (first_ratio, second_ratio):
        assert axes.get_xlabel() == "Efficiency of t_t"
        assert axes.get_xlim() == (0.7, 1.005)
    assert first_ratio.get_ylabel() == "/ hlf"
    assert first.get_shared_y_axes().joined(first, second)
    (legend,) = figure.legends
    assert [text_of(text) for text in legend.get_texts()] == ["hlf", r"$x_1$"]
    figure.canvas.draw()
    lowest = min(axes.get_window_extent().y0 for axes in figure.axes)
    assert legend.get_window_extent().y1 < lowest


@efficiency_and_rejection
def test_ratios_are_to_the_first_model(rejection: bool) -> None:
    reference = CURVES["all backgrounds"]["hlf"]
    worse = example_curve(3)._replace(background_efficiency=1.5 * reference.background_efficiency)

    figure = draw({"one": {"hlf": reference, "worse": worse}}, rejection=rejection)

    _, ratio_axes = figure.axes
    line = ratio_axes.lines[0]
    ratios = np.asarray(line.get_ydata(), dtype=float)
    expected_ratio = 1 / 1.5 if rejection else 1.5
    largest_difference = np.nanmax(np.abs(ratios - expected_ratio))
    assert largest_difference < 1e-9


@pytest.mark.slow
@efficiency_and_rejection
def test_low_working_points_widen_the_region(rejection: bool) -> None:
    figure = draw(CURVES, points=[0.5, 0.9], rejection=rejection)

    assert figure.axes[0].get_xlim()[0] < 0.5
    assert data_outside_axes(figure) == []


@pytest.mark.slow
@efficiency_and_rejection
def test_a_perfect_model_and_negative_weights_can_be_drawn(tmp_path: Path, rejection: bool) -> None:
    perfect = example_curve(50)
    assert not perfect.background_efficiency.any()
    models = {"perfect": perfect, "negative": example_curve(2, lightest=-0.5)}

    figure = draw({"all": models}, rejection=rejection)

    assert data_outside_axes(figure) == []
    save_figure(figure, tmp_path / "plot")


@efficiency_and_rejection
def test_where_no_background_passes_an_arrow_begins_at_the_limit(rejection: bool) -> None:
    curve = example_curve(6)
    assert curve.background_efficiency[89] == 0

    figure = draw({"QCD": {"hlf": curve}}, points=[0.9], end=1.0, rejection=rejection)
    main = figure.axes[0]

    arrows: list[Any] = [text for text in main.texts if getattr(text, "arrow_patch", None)]
    (arrow,) = arrows
    _, begin = arrow.xyann
    _, end = arrow.xy
    upper_limit = curve.high[89]
    limit = 1 / upper_limit if rejection else upper_limit
    assert begin == pytest.approx(limit)
    # A rejection may be larger, an efficiency smaller.
    assert (end > begin) == rejection
    bottom, top = main.get_ylim()
    assert bottom < begin < top
    assert bottom < end < top


@pytest.mark.parametrize(
    ("models", "lowest"), [(["late", "never"], 0.55), (["late", "early"], 0.35), (["never"], 0.7)]
)
def test_axes_begin_where_all_curves_have_a_low_background(
    models: list[str], lowest: float
) -> None:
    signal = np.linspace(0.02, 1.0, 50)

    def curve(highest_signal: float) -> EfficiencyCurve:
        # Where nothing passes there is no logarithm.
        background = np.select([signal < 0.1, signal < highest_signal + 0.01], [0.0, 5e-4], 0.1)
        return EfficiencyCurve(signal, background, background, background, background[:, None])

    curves = {"early": curve(0.42), "late": curve(0.62), "never": curve(0.0)}
    drawn_curves = {name: curves[name] for name in models}

    figure = draw({"QCD": drawn_curves}, points=[])

    left, _ = figure.axes[1].get_xlim()
    assert left == pytest.approx(lowest)
