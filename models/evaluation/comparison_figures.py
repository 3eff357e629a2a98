"""Figures of several models on the same axes: ROC curves in the forms that physicists use, with ratios."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from models.evaluation.curves import EfficiencyCurve, ratio
from models.evaluation.efficiencies import Floats
from models.evaluation.style import (
    GREY,
    PlotLabels,
    legend_below,
    line_look,
    new_figure,
    plain,
    point_look,
    show_positive,
    styled,
)

#: Letters of a line over all panels.
_LETTERS: Final = 110
#: Range of the panels of ratios.
_RATIOS: Final = (0.2, 5.0)

Curves = Mapping[str, Mapping[str, EfficiencyCurve]]


@styled
def plot_curves(
    curves: Curves,
    signal: str,
    words: Mapping[str, str],
    points: Sequence[float],
    end: float,
    labels: PlotLabels,
    *,
    rejection: bool,
) -> Figure:
    """Background efficiency against signal efficiency in the working region, and relative to the first model.

    Args:
        curves: Curves by background (one panel each) and model, all of the same replicas.
        signal: Name of the signal class.
        words: Longer names of backgrounds.
        points: Signal efficiencies to mark, with error bars.
        end: Signal efficiency above which nothing is measurable; this region is grey.
        labels: Words on the plot.
        rejection: Whether to draw background rejection, which is 1 / background efficiency.
    """
    panels = len(curves)
    figure, first = new_figure(labels, panels=panels, height=7.4, ratios=(3, 1))
    lowest = min([0.7, *(np.floor(20 * min(points) - 0.5) / 20 for _ in points[:1])])
    shown: list[Floats] = []
    for place, (background, models) in enumerate(curves.items()):
        main, below = figure.axes[place], figure.axes[panels + place]
        reference = next(iter(models.values()))
        for number, (name, curve) in enumerate(models.items()):
            shown += _draw(main, number, name, curve, points, lowest, len(models), rejection=rejection)
            _draw_ratio(below, number, curve, reference, lowest, rejection=rejection)
        for axes in (main, below):
            axes.axvspan(max(end, lowest), 1.005, color=GREY, alpha=0.12, linewidth=0)
        below.axhline(1, color=GREY, linewidth=1)
        below.set(xlabel=f"Efficiency of {plain(signal)}", xlim=(lowest, 1.005), yscale="log", ylim=_RATIOS)
        below.yaxis.set_major_locator(FixedLocator([0.25, 0.5, 1, 2, 4]))
        below.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        below.yaxis.set_minor_locator(NullLocator())
        against = textwrap.fill(f"against {words.get(background, background)}", _LETTERS // panels)
        main.text(0.04, 0.96, plain(against), transform=main.transAxes, va="top", fontsize="x-small")
    show_positive(first, shown, room=4)
    first.set_ylabel("Background rejection" if rejection else "Background efficiency")
    figure.axes[panels].set_ylabel(f"/ {plain(next(iter(next(iter(curves.values())))))}", fontsize="small")
    legend_below(figure, first)
    return figure


def _draw(
    axes: Axes,
    number: int,
    name: str,
    curve: EfficiencyCurve,
    points: Sequence[float],
    lowest: float,
    num_models: int,
    *,
    rejection: bool,
) -> list[Floats]:
    """Draw a line, and marks with error bars at the working points; returns the values that axes must hold."""
    chosen = (curve.signal_efficiency >= lowest) & (curve.background_efficiency > 0)
    value = _form(curve.background_efficiency[chosen], rejection=rejection)
    axes.plot(curve.signal_efficiency[chosen], value, label=plain(name), **line_look(number))
    places = [int(np.argmin(np.abs(curve.signal_efficiency - each))) for each in points]
    marked = np.array([each for each in places if curve.background_efficiency[each] > 0], dtype=np.int64)
    ends = np.stack([curve.low[marked], curve.high[marked]])
    middle = _form(curve.background_efficiency[marked], rejection=rejection)
    # Where the lower end is 0 the bar of a rejection has no end; it is drawn as long as the other side.
    ends = np.where(ends > 0, ends, curve.background_efficiency[marked] ** 2 / ends[1])
    low, high = sorted(_form(ends, rejection=rejection), key=lambda each: float(each.sum()))
    # Models stand beside each other, so that no bar hides another.
    beside = 0.004 * (number - (num_models - 1) / 2)
    axes.errorbar(
        np.minimum(curve.signal_efficiency[marked] + beside, 1.0),
        middle,
        np.maximum([middle - low, high - middle], 0),
        capsize=2,
        **point_look(number) | {"markersize": 5, "elinewidth": 1.4},
    )
    return [value, low, high]


def _form(efficiency: Floats, *, rejection: bool) -> Floats:
    return 1 / efficiency if rejection else efficiency


def _draw_ratio(
    axes: Axes, number: int, curve: EfficiencyCurve, reference: EfficiencyCurve, lowest: float, *, rejection: bool
) -> None:
    """Ratio to the first model with its paired band."""
    if curve is reference:
        return
    value, low, high = ratio(reference, curve) if rejection else ratio(curve, reference)
    chosen = (curve.signal_efficiency >= lowest) & np.isfinite(value) & (value > 0)
    across, look = curve.signal_efficiency[chosen], line_look(number)
    inside = np.where((value >= _RATIOS[0]) & (value <= _RATIOS[1]), value, np.nan)[chosen]
    axes.plot(across, inside, linewidth=1.4, **look)
    bottom, top = (np.clip(each[chosen], *_RATIOS) for each in (low, high))
    axes.fill_between(across, bottom, top, color=look["color"], alpha=0.15, linewidth=0)
