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
        for axes in (main, below):
            axes.axvspan(max(end, lowest), _HIGHEST_SIGNAL, color=GREY, alpha=0.12, linewidth=0)
        _format_ratio_panel(below, f"Efficiency of {literal_text(signal)}", lowest)
        description = f"against {descriptions.get(background, background)}"
        # Long descriptions are wrapped to the width of a panel.
        text = textwrap.fill(description, _LETTERS // num_panels)
        main.text(
            0.04, 0.96, literal_text(text), transform=main.transAxes, va="top", fontsize="x-small"
        )
    show_positive(first, drawn, room=4)
    first.set_ylabel("Background rejection" if rejection else "Background efficiency")
    first_model = next(iter(first_models))
    figure.axes[num_panels].set_ylabel(f"/ {literal_text(first_model)}", fontsize="small")
    legend_below(figure, first)
    return figure


def _lowest_signal(curves: Curves, points: Sequence[float]) -> float:
    """Return the signal efficiency at which the axes begin.

    They hold 0.7, the points to mark, and of each curve the background efficiency
    `_LOWEST_BACKGROUND`, if it has that.
    """
    lowest = 1.0
    for models in curves.values():
        for curve in models.values():
            background = curve.background_efficiency
            # Curves rise, so the last such point has the highest of these signal efficiencies.
            is_low = (background > 0) & (background <= _LOWEST_BACKGROUND)
            if is_low.any():
                lowest = min(lowest, curve.signal_efficiency[is_low][-1])
    lowest = min([lowest, *points])
    # Down to the next twentieth, with some distance to the axis.
    return min(0.7, float(np.floor(20 * lowest - 0.5) / 20))


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
    point_rows = np.array([np.argmin(np.abs(signal - point)) for point in points], dtype=np.int64)
    rows = point_rows[background[point_rows] > 0]
    marks = background[rows] ** power
    ends = _bar_ends(curve, rows, power=power)
    # Negative weights may push a value out of its interval; bars have no negative length.
    bars = np.maximum([marks - ends[0], ends[1] - marks], 0)
    look = point_look(index) | {"markersize": 5, "elinewidth": 1.4, "capsize": 2}
    shift = _MARK_DISTANCE * index
    axes.errorbar(np.minimum(signal[rows] + shift, 1.0), marks, bars, **look)
    limits = _draw_limits(axes, curve, point_rows, shift, look["color"], power=power)
    return [line, *ends, limits]


def _bar_ends(curve: EfficiencyCurve, rows: NDArray[np.int64], *, power: int) -> Floats:
    """Return lower and upper ends of the bars of some points, (2, num_points).

    `rows` are indices of points of the curve.
    """
    value, low, high = curve.background_efficiency[rows], curve.low[rows], curve.high[rows]
    # A rejection has no upper end where the efficiency may be 0: its bar is as long as the other
    # side.
    low = np.where(low > 0, low, value**2 / high)
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
    is_limit = (curve.background_efficiency[point_rows] <= 0) & (curve.high[point_rows] > 0)
    rows = point_rows[is_limit]
    limits = curve.high[rows] ** power
    # Arrows point to half of an efficiency, or to twice a rejection.
    arrow_length = 0.5 if power > 0 else 2.0
    arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0}
    for signal, limit in zip(curve.signal_efficiency[rows], limits, strict=True):
        x = min(signal + shift, 1.0)
        axes.annotate("", (x, limit * arrow_length), (x, limit), arrowprops=arrow)
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
        value, low, high = ratio(curve, reference)
    else:
        value, low, high = ratio(reference, curve)
    is_drawn = (curve.signal_efficiency >= lowest) & np.isfinite(value) & (value > 0)
    signal, value = curve.signal_efficiency[is_drawn], value[is_drawn]
    bottom, top = _RATIO_RANGE
    look = line_look(index)
    # The line has gaps where it leaves the panel, the band ends at its edges.
    in_range = np.where((value >= bottom) & (value <= top), value, np.nan)
    axes.plot(signal, in_range, linewidth=1.4, **look)
    axes.fill_between(
        signal,
        np.clip(low[is_drawn], bottom, top),
        np.clip(high[is_drawn], bottom, top),
        color=look["color"],
        alpha=0.15,
        linewidth=0,
    )
