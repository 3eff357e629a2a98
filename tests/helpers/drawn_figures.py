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

#: Points.
SMALLEST_TEXT = 10


def data_outside_axes(figure: Figure) -> list[str]:
    """Lines, points, bars and bands that the axes of a figure cut off; empty if all lie inside."""
    figure.canvas.draw()
    faults = []
    for index, axes in enumerate(figure.axes):
        for shape, points in _data(axes):
            is_inside = _is_inside(points[:, 0], axes.get_xlim(), axes.get_xscale())
            is_inside &= _is_inside(points[:, 1], axes.get_ylim(), axes.get_yscale())
            if not is_inside.all():
                outside = points[~is_inside][:3].tolist()
                faults.append(f"panel {index}: {shape} {outside} outside {axes.viewLim.extents}")
    return faults


def legend_texts(figure: Figure) -> list[str]:
    """The texts of all legends as they are drawn."""
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    texts = []
    for legend in legends:
        if legend:
            texts += [text.get_text().replace(r"\$", "$") for text in legend.get_texts()]
    return texts


def style_faults(make: Callable[[], Figure]) -> list[str]:
    """What a figure lacks of the CMS look: labels at the ends of axes, ticks inside, no frames."""
    with mpl.rc_context({"legend.frameon": True, "xaxis.labellocation": "center", "font.size": 4}):
        figure = make()
    figure.canvas.draw()
    faults = []
    for index, axes in enumerate(figure.axes):
        if axes.axison and axes.get_xlabel():
            faults += [f"panel {index}: {fault}" for fault in _axis_faults(axes)]
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    for legend in legends:
        if legend is None:
            continue
        if legend.get_frame_on():
            faults.append("a legend has a frame")
        if any(float(text.get_fontsize()) < SMALLEST_TEXT for text in legend.get_texts()):
            faults.append("a legend is small")
    return faults


def _axis_faults(axes: Axes) -> list[str]:
    """What a horizontal axis lacks."""
    faults = []
    label = axes.xaxis.label
    if label.get_horizontalalignment() != "right":
        faults.append("the label is not at the end of the axis")
    if float(label.get_fontsize()) < SMALLEST_TEXT:
        faults.append("the label is small")
    if axes.xaxis.get_major_ticks()[0].get_tickdir() != "in":
        faults.append("ticks are outside")
    return faults


def _data(axes: Axes) -> list[tuple[str, np.ndarray]]:
    """Points (num_points, 2) of everything that is drawn in coordinates of the data."""
    data_lines = [line for line in axes.lines if line.get_transform() == axes.transData]
    shapes: list[tuple[str, Any]] = [("line", line.get_xydata()) for line in data_lines]
    for collection in axes.collections:
        if isinstance(collection, LineCollection):
            shapes += [("bar", segment) for segment in collection.get_segments()]
        elif isinstance(collection, PolyCollection):
            shapes += [("band", path.vertices) for path in collection.get_paths()]
    for patch in axes.patches:
        if isinstance(patch, StepPatch):
            values, edges, _ = patch.get_data()
            centres = (edges[1:] + edges[:-1]) / 2
            shapes.append(("step", np.stack([centres, values], axis=1)))
        elif isinstance(patch, Rectangle):
            shapes.append(("bar", patch.get_bbox().get_points()))
    return [(shape, np.asarray(points, dtype=float)) for shape, points in shapes if len(points)]


def _is_inside(values: np.ndarray, limits: tuple[float, float], scale: str) -> np.ndarray:
    """Mask of the values within the limits of an axis, and of those that are not drawn."""
    low, high = sorted(limits)
    tolerance = 1e-6 * (high - low)
    is_drawn = np.isfinite(values)
    if scale == "log":
        is_drawn &= values > 0
    is_within = (values >= low - tolerance) & (values <= high + tolerance)
    is_inside: np.ndarray = is_within | ~is_drawn
    return is_inside
