"""What is drawn on a figure, read back from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle, StepPatch


def data_outside_axes(figure: Figure) -> list[str]:
    """Data that the axes of a figure cut off; empty if every line, point, bar and band lies inside."""
    figure.canvas.draw()
    results = []
    for index, axes in enumerate(figure.axes):
        for kind_name, points in _data(axes):
            inside = _inside(points[:, 0], axes.get_xlim(), axes.get_xscale())
            inside &= _inside(points[:, 1], axes.get_ylim(), axes.get_yscale())
            if not inside.all():
                results.append(
                    f"panel {index}: {kind_name} {points[~inside][:3].tolist()} outside {axes.viewLim.extents}"
                )
    return results


def style_faults(make: Callable[[], Figure]) -> list[str]:
    """What of a figure lacks the CMS look of all: labels at the ends of the axes, ticks inside, free legends."""
    with mpl.rc_context({"legend.frameon": True, "xaxis.labellocation": "center", "font.size": 4}):
        figure = make()
    figure.canvas.draw()
    results = []
    for index, axes in enumerate(figure.axes):
        label = axes.xaxis.label
        if axes.axison and axes.get_xlabel():
            is_right, tick = (
                label.get_horizontalalignment() == "right",
                axes.xaxis.get_major_ticks()[0],
            )
            results += (
                [] if is_right else [f"panel {index}: the label is not at the end of the axis"]
            )
            results += (
                [] if float(label.get_fontsize()) >= 10 else [f"panel {index}: the label is small"]
            )
            results += [] if tick.get_tickdir() == "in" else [f"panel {index}: ticks are outside"]
    legends = [*figure.legends, *(axis.get_legend() for axis in figure.axes)]
    for legend in filter(None, legends):
        is_small = any(float(text.get_fontsize()) < 10 for text in legend.get_texts())
        results += ["a legend has a frame"] * legend.get_frame_on() + [
            "a legend is small"
        ] * is_small
    return results


def _data(axes: Axes) -> list[tuple[str, np.ndarray]]:
    """(num_points, 2) places of everything that stands in the coordinates of the data."""
    results: list[tuple[str, Any]] = [
        ("line", line.get_xydata()) for line in axes.lines if line.get_transform() == axes.transData
    ]
    for collection in axes.collections:
        if isinstance(collection, LineCollection):
            results += [("bar", segment) for segment in collection.get_segments()]
        elif isinstance(collection, PolyCollection):
            results += [("band", path.vertices) for path in collection.get_paths()]
    for patch in axes.patches:
        if isinstance(patch, StepPatch):
            values, edges, _ = patch.get_data()
            results.append(("step", np.stack([(edges[1:] + edges[:-1]) / 2, values], axis=1)))
        elif isinstance(patch, Rectangle):
            results.append(("bar", patch.get_bbox().get_points()))
    return [
        (kind_name, np.asarray(points, dtype=float)) for kind_name, points in results if len(points)
    ]


def _inside(values: np.ndarray, limits: tuple[float, float], scale: str) -> np.ndarray:
    low, high = sorted(limits)
    room = 1e-6 * (high - low)
    # A logarithmic axis has no place for 0, and nothing is drawn there.
    nothing = ~np.isfinite(values) | ((values <= 0) & (scale == "log"))
    inside: np.ndarray = nothing | ((values >= low - room) & (values <= high + room))
    return inside
