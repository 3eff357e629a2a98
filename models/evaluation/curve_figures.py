"""The figure of background efficiencies or rejections against the signal efficiency."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter
from numpy.typing import NDArray

from models.evaluation.curves import EfficiencyCurve, ratio
from models.evaluation.intervals import Floats
from models.evaluation.style import (
    GREY,
    PlotLabels,
    legend_below,
    line_look,
    literal_text,
    new_figure,
    point_look,
    show_positive,
    styled,
)

#: Letters of a line of text over all panels together.
_LETTERS: Final = 110
#: Background efficiency down to which the axes show the curves, where there are enough events.
_LOWEST_BACKGROUND: Final = 1e-3
#: Range of the panels of ratios.
_RATIO_RANGE: Final = (0.2, 5.0)
#: Signal efficiency at which the axes end, a little above 1.
_HIGHEST_SIGNAL: Final = 1.005
#: Distance between the marks of two models at the same signal efficiency, so that no bar hides
#: another.
_MARK_DISTANCE: Final = 0.004

#: Curves by background and then by model.
Curves = Mapping[str, Mapping[str, EfficiencyCurve]]


@styled
def plot_curves(
    curves: Curves,
    signal: str,
    descriptions: Mapping[str, str],
    points: Sequence[float],
    end: float,
    labels: PlotLabels,
    *,
    rejection: bool,
) -> Figure:
    """Draw background efficiency against signal efficiency, and relative to the first model below.

    Args:
        curves: By background (one panel each) and model, all of the same replicas.
        signal: Name of the signal.
        descriptions: Longer names of backgrounds.
        points: Signal efficiencies to mark, with error bars.
        end: Signal efficiency above which nothing is measurable; this region is grey.
        labels: Labels of the figure.
        rejection: Whether the axis is 1 / background efficiency.
    """
    num_panels = len(curves)
    figure, first = new_figure(labels, panels=num_panels, height=7.4, ratios=(3, 1))
    first_models = next(iter(curves.values()))
    lowest = _lowest_signal(curves, points)
    # Rejections are efficiencies to the power -1.
    power = -1 if rejection else 1
    drawn: list[Floats] = []
    for panel, (background, models) in enumerate(curves.items()):
        # The axes of the figure are in order of rows: first the main panels, then those of ratios.
        main, below = figure.axes[panel], figure.axes[num_panels + panel]
        # The first model is the reference of the ratios.
        reference = next(iter(models.values()))
        for index, (model, curve) in enumerate(models.items()):
            drawn += _draw_curve(main, curve, model, index, points, lowest, power=power)
            if curve is not reference:
                _draw_ratio(below, curve, reference, index, lowest, power=power)
        # The grey region has too few signal events for a measurement.
        grey_begin = max(end, lowest)
        for axes in (main, below):
            axes.axvspan(grey_begin, _HIGHEST_SIGNAL, color=GREY, alpha=0.12, linewidth=0)
        _format_ratio_panel(below, f"Efficiency of {literal_text(signal)}", lowest)
        description = f"against {descriptions.get(background, background)}"
        _write_description(main, description, letters=_LETTERS // num_panels)
    show_positive(first, drawn, room=4)
    quantity = "rejection" if rejection else "efficiency"
    first.set_ylabel(f"Background {quantity}")
    first_model = next(iter(first_models))
    figure.axes[num_panels].set_ylabel(f"/ {literal_text(first_model)}", fontsize="small")
    legend_below(figure, first)
    return figure


def _write_description(axes: Axes, description: str, *, letters: int) -> None:
    """Write against what a panel measures, wrapped to the width of the panel in letters."""
    text = literal_text(textwrap.fill(description, letters))
    axes.text(0.04, 0.96, text, transform=axes.transAxes, va="top", fontsize="x-small")


def _lowest_signal(curves: Curves, points: Sequence[float]) -> float:
    """Return the signal efficiency at which the axes begin.

    They hold 0.7, the points to mark, and of each curve the background efficiency
    `_LOWEST_BACKGROUND`, if it has that.
    """
    lowest = 1.0
    for models in curves.values():
        for curve in models.values():
            background = curve.background_efficiency
            is_low = (background > 0) & (background <= _LOWEST_BACKGROUND)
            low_points = curve.signal_efficiency[is_low]
            # Curves rise, so the last such point has the highest of these signal efficiencies.
            if len(low_points):
                lowest = min(lowest, low_points[-1])
    lowest = min([lowest, *points])
    # Down to the next twentieth, with some distance to the axis.
    twentieth = np.floor(20 * lowest - 0.5) / 20
    return min(0.7, float(twentieth))


def _format_ratio_panel(axes: Axes, xlabel: str, lowest: float) -> None:
    """Set label, ranges and ticks of a panel of ratios, on a logarithmic axis around 1."""
    axes.axhline(1, color=GREY, linewidth=1)
    axes.set(xlabel=xlabel, xlim=(lowest, _HIGHEST_SIGNAL), yscale="log", ylim=_RATIO_RANGE)
    axes.yaxis.set_major_locator(FixedLocator([0.25, 0.5, 1, 2, 4]))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _draw_curve(
    axes: Axes,
    curve: EfficiencyCurve,
    model: str,
    index: int,
    points: Sequence[float],
    lowest: float,
    *,
    power: int,
) -> list[Floats]:
    """Draw a curve, with marks and error bars at the working points.

    Args:
        axes: The panel to draw on.
        curve: The background efficiencies of one model.
        model: Name of the model, for the legend.
        index: Index of the model, which gives colour and marker and shifts its marks.
        points: Signal efficiencies of the working points.
        lowest: Signal efficiency at which the axis begins.
        power: 1 for efficiencies, -1 for rejections.

    Returns:
        Arrays of the values that the axes must hold.
    """
    signal, background = curve.signal_efficiency, curve.background_efficiency
    is_drawn = (signal >= lowest) & (background > 0)
    line = background[is_drawn] ** power
    axes.plot(signal[is_drawn], line, label=literal_text(model), **line_look(index))

    # Each working point is marked at the nearest point of the curve.
    nearest_rows = [np.argmin(np.abs(signal - point)) for point in points]
    point_rows = np.array(nearest_rows, dtype=np.int64)
    rows = point_rows[background[point_rows] > 0]
    marks = background[rows] ** power
    ends = _bar_ends(curve, rows, power=power)
    low_ends, high_ends = ends
    # Negative weights may push a value out of its interval; bars have no negative length.
    bars = np.maximum([marks - low_ends, high_ends - marks], 0)
    look = point_look(index) | {"markersize": 5, "elinewidth": 1.4, "capsize": 2}
    shift = _MARK_DISTANCE * index
    positions = np.minimum(signal[rows] + shift, 1.0)
    axes.errorbar(positions, marks, bars, **look)
    limits = _draw_limits(axes, curve, point_rows, shift, look["color"], power=power)
    return [line, *ends, limits]


def _bar_ends(curve: EfficiencyCurve, rows: NDArray[np.int64], *, power: int) -> Floats:
    """Return lower and upper ends of the bars of some points, (2, num_points).

    `rows` are indices of points of the curve.
    """
    efficiency = curve.background_efficiency[rows]
    low = curve.low[rows]
    high = curve.high[rows]
    # A rejection has no upper end where the efficiency may be 0: its bar is as long as the other
    # side.
    mirrored_high = efficiency**2 / high
    low = np.where(low > 0, low, mirrored_high)
    # The power -1 swaps the ends, so they are sorted.
    return np.sort([low**power, high**power], axis=0)


def _draw_limits(
    axes: Axes,
    curve: EfficiencyCurve,
    point_rows: NDArray[np.int64],
    shift: float,
    colour: str,
    *,
    power: int,
) -> Floats:
    """Draw arrows from the limits at working points where no background passes.

    Returns the limits.
    """
    passes_nothing = curve.background_efficiency[point_rows] <= 0
    has_limit = curve.high[point_rows] > 0
    rows = point_rows[passes_nothing & has_limit]
    limits = curve.high[rows] ** power
    # Arrows point to half of an efficiency, or to twice a rejection.
    arrow_length = 0.5 if power > 0 else 2.0
    arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0}
    for signal, limit in zip(curve.signal_efficiency[rows], limits, strict=True):
        x = min(signal + shift, 1.0)
        arrow_end = x, limit * arrow_length
        axes.annotate("", arrow_end, (x, limit), arrowprops=arrow)
        # A short horizontal line marks the limit itself.
        axes.plot([x - 0.004, x + 0.004], [limit, limit], color=colour, linewidth=1.4)
    return np.concatenate([limits, limits * arrow_length])


def _draw_ratio(
    axes: Axes,
    curve: EfficiencyCurve,
    reference: EfficiencyCurve,
    index: int,
    lowest: float,
    *,
    power: int,
) -> None:
    """Draw the ratio to the first model, with a band of its one-sigma interval.

    Both models share the replicas, so common fluctuations cancel in the band. A ratio of rejections
    is the inverse of that of efficiencies.
    """
    if power > 0:
        ratios, low, high = ratio(curve, reference)
    else:
        ratios, low, high = ratio(reference, curve)
    in_panel = curve.signal_efficiency >= lowest
    is_drawn = in_panel & np.isfinite(ratios) & (ratios > 0)
    signal = curve.signal_efficiency[is_drawn]
    ratios = ratios[is_drawn]
    bottom, top = _RATIO_RANGE
    look = line_look(index)
    # The line has gaps where it leaves the panel, the band ends at its edges.
    is_inside = (ratios >= bottom) & (ratios <= top)
    line = np.where(is_inside, ratios, np.nan)
    axes.plot(signal, line, linewidth=1.4, **look)
    band_low = np.clip(low[is_drawn], bottom, top)
    band_high = np.clip(high[is_drawn], bottom, top)
    axes.fill_between(signal, band_low, band_high, color=look["color"], alpha=0.15, linewidth=0)
