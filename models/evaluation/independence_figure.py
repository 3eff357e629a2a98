"""Draws the efficiency of cuts on the score against columns that the score shall not depend on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from features.columns import HIGH_LEVEL, hlf_names
from models.evaluation.intervals import Floats
from models.evaluation.rounding import with_error
from models.evaluation.style import (
    PlotLabels,
    axis_label,
    literal_text,
    new_grid,
    point_look,
    styled,
)

#: Panels per row.
_COLUMNS: Final = 2
#: Highest width of the last bin, relative to the bin below it.
_LAST_WIDTH: Final = 2.0


@styled
def plot_independence(independence: Mapping[str, Any], signal: str, labels: PlotLabels) -> Figure:
    """Draw the efficiency of a class against a column, a panel for each pair of these.

    Each cut has points of its own, with the p-value of a flat efficiency in the legend.

    Args:
        independence: The result of `models.evaluation.independence.measure_independence`.
        signal: Name of the signal, whose efficiency names a cut.
        labels: Labels of the figure.
    """
    pairs = []
    for column, by_class in independence.items():
        for class_name, numbers in by_class.items():
            pairs.append((column, class_name, numbers))
    figure, panels = new_grid(labels, panels=len(pairs), columns=_COLUMNS, height=3.6)
    for axes, (column, class_name, numbers) in zip(panels, pairs, strict=True):
        highest = 0.0
        for index, point in enumerate(numbers["points"]):
            highest_bar = _draw_efficiency(axes, point, index)
            highest = max(highest, highest_bar)
        correlation = numbers["distance_correlation"]
        correlation_text = with_error(correlation["value"], correlation["error"])
        # Points need room for the legend above them.
        top = 1.9 * highest or 1
        axes.set(xlabel=_label_of_column(column), ylim=(0, top))
        axes.set_ylabel(f"Efficiency of {literal_text(class_name)}")
        axes.legend(
            title=f"dCorr² {correlation_text}; cuts by {literal_text(signal)} efficiency",
            fontsize="small",
            title_fontsize="small",
            loc="upper left",
            alignment="left",
        )
    return figure


def _draw_efficiency(axes: Axes, point: Mapping[str, Any], index: int) -> float:
    """Draw the efficiency of a cut in bins of a column; return the highest end of a bar.

    Args:
        axes: The panel.
        point: The cut, a result of `models.evaluation.independence.flatness`.
        index: Index of the cut, which gives colour and marker.
    """
    name = f"{100 * point['wanted']:g} %"
    if point["p_value"] is None:
        # Bars without points only add a line to the legend.
        axes.errorbar([], [], [], label=f"{name}: not measurable", **point_look(index))
        return 0.0
    edges = drawn_edges(point["edges"])
    efficiencies = point["efficiency"]
    is_measured = np.array([share is not None for share in efficiencies])
    shares = [share for share in efficiencies if share is not None]
    heights = np.array([share["value"] for share in shares])
    low = np.array([share["low"] for share in shares])
    high = np.array([share["high"] for share in shares])
    centres = (edges[:-1] + edges[1:]) / 2
    half_widths = np.diff(edges) / 2
    # Negative weights may push a value out of its interval; bars have no negative length.
    bars = np.maximum([heights - low, high - heights], 0)
    look = {"label": f"{name}: p = {point['p_value']:.2g} for flat", **point_look(index)}
    axes.errorbar(centres[is_measured], heights, bars, xerr=half_widths[is_measured], **look)
    return float(high.max())


def drawn_edges(edges: Sequence[float]) -> Floats:
    """Return the edges of bins as they are drawn: a tail in the last bin is cut.

    Examples:
        >>> drawn_edges([20.0, 30.0, 40.0, 900.0]).tolist()
        [20.0, 30.0, 40.0, 60.0]
    """
    drawn = np.array(edges, dtype=np.float64)
    widest = _LAST_WIDTH * (drawn[-2] - drawn[-3])
    drawn[-1] = min(drawn[-1], drawn[-2] + widest)
    return drawn


def _label_of_column(name: str) -> str:
    """Return the label of an axis: that of a high-level feature, or the name of the column."""
    if name in hlf_names():
        feature = HIGH_LEVEL[hlf_names().index(name)]
        return axis_label(feature)
    return literal_text(name)
