"""Figures of a study: functions of its results that return matplotlib figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import (
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
    StrMethodFormatter,
)

from hep_studies.cells import Cell
from hep_studies.measures import CURVES, measure_of
from hep_studies.study import key_label
from hep_studies.study_result import Floats, StudyResult
from hep_studies.study_sections import EPOCH, SECONDS, Panel, StudyFigure
from models.evaluation.style import (
    COLOURS,
    DASHES,
    GREY,
    PlotLabels,
    new_figure,
    new_grid,
    save_figure,
    styled,
)

#: Opacity of the bands of standard deviation around curves.
_BAND_OPACITY: Final = 0.2
#: Percentage of the values of all curves that lie below the visible range: the first epochs.
_PERCENT_BELOW_AXIS: Final = 4
#: Room above and below the curves, as a share of their range.
_ROOM: Final = 0.15
#: Ratio of highest to lowest value of a logarithmic axis below which a decade has three labels.
_FEW_DECADES: Final = 300
#: Ratio below which a logarithmic axis has room for only one or two of its labels.
_NARROW: Final = 10
#: Panels of more lines have a common legend below them.
_MOST_LINES_IN_PANEL_LEGEND: Final = 4
#: Markers of matplotlib, for the lines of a method in turn.
_MARKERS: Final = "os^Dv<>Pp"
#: Up to this number of values of a key, each has a tick.
_MOST_TICKS: Final = 8

Styles = Mapping[Cell, dict[str, Any]]
"""Arguments of matplotlib for each line."""


def draw_all(result: StudyResult, labels: PlotLabels, folder: Path) -> None:
    """Draw all figures of a study into a folder, each into a file of its name.

    The labels of the plots get the warning of a result whose times are unreliable.
    """
    folder.mkdir(exist_ok=True)
    if result.warning:
        note = f"{labels.sample_note}; {result.warning}".lstrip("; ")
        labels = labels._replace(sample_note=note)
    for figure in result.study.figures:
        save_figure(draw(result, figure, labels), folder / figure.name)


@styled
def draw(result: StudyResult, figure: StudyFigure, labels: PlotLabels) -> Figure:
    """Draw the panels of a figure side by side.

    They share the vertical axis, and its label at the left, if all show the same quantity. A method
    has the same style in all panels.
    """
    panels = figure.panels
    shares_axis = len({panel.y for panel in panels}) == 1
    if shares_axis:
        drawing, first_axes = new_figure(labels, panels=len(panels))
        all_axes = [first_axes, *drawing.axes[1:]]
    else:
        drawing, all_axes = new_grid(labels, panels=len(panels), columns=len(panels))
        drawing.set_figheight(6.2)
    styles = _line_styles(line for panel in panels for line in _cells_by_line(panel, result))
    for axes, panel in zip(all_axes, panels, strict=True):
        _draw_panel(axes, panel, result, styles)
    if shares_axis:
        for axes in all_axes[1:]:
            axes.set_ylabel("")
    _add_legend(drawing, all_axes, panels)
    return drawing


def _draw_panel(axes: Axes, panel: Panel, result: StudyResult, styles: Styles) -> None:
    """Draw boxes, curves over epochs or time, or a measure against a key, as the panel's x says."""
    if panel.x is None:
        _draw_boxes(axes, panel, result, styles)
    elif panel.x in (EPOCH, SECONDS):
        _draw_curves(axes, panel, result, styles)
    else:
        _draw_measure(axes, panel, panel.x, result, styles)
    if panel.title:
        corner: dict[str, Any] = {"transform": axes.transAxes, "ha": "left", "va": "top"}
        axes.text(0.04, 0.96, panel.title, fontsize="small", **corner)


def _cells_by_line(panel: Panel, result: StudyResult) -> dict[Cell, list[Cell]]:
    """Return the lines of a panel, each with its cells: a point of a measure, or one whole curve.

    A line is named by what its cells have in common, which is a cell itself.
    """
    lines: dict[Cell, list[Cell]] = {}
    for cell in result.cells(panel.methods, panel.where):
        lines.setdefault(_line_of(cell, panel), []).append(cell)
    return lines


def _line_of(cell: Cell, panel: Panel) -> Cell:
    """Return a cell without the key on the horizontal axis and without the panel's fixed keys."""
    return cell.without(panel.x, *panel.where)


def _line_styles(lines: Iterable[Cell]) -> dict[Cell, dict[str, Any]]:
    """Return the style of each line: a colour for each method, dashes and markers for its lines.

    If all methods have one line each, dashes tell apart those that share a colour.
    """
    lines_by_method: dict[str, list[Cell]] = {}
    for line in dict.fromkeys(lines):
        lines_by_method.setdefault(line.method, []).append(line)
    styles = {}
    for method_index, method_lines in enumerate(lines_by_method.values()):
        for line_index, line in enumerate(method_lines):
            dash_index = line_index
            if len(method_lines) == 1:
                # Neighbours differ in their dashes, and so do methods that share a colour.
                dash_index = method_index + method_index // len(COLOURS)
            styles[line] = {
                "color": COLOURS[method_index % len(COLOURS)],
                "linestyle": DASHES[dash_index % len(DASHES)],
                "marker": _MARKERS[line_index % len(_MARKERS)],
            }
    return styles


def _curves(panel: Panel, result: StudyResult) -> dict[Cell, Floats]:
    """Return the quantity of a panel for each cell, (num_seeds, num_epochs).

    Cells whose runs all diverged are left out.
    """
    curves = {}
    for cell in result.cells(panel.methods, panel.where):
        values = result.curves(cell, panel.y)
        if values.size:
            curves[cell] = values
    return curves


def _draw_curves(axes: Axes, panel: Panel, result: StudyResult, styles: Styles) -> None:
    """Draw a quantity of each epoch against epochs or time, a line for each cell.

    A line is the mean over the seeds, its band the standard deviation.
    """
    curves = _curves(panel, result)
    is_log = "y" in panel.log
    if is_log:
        # Methods that average all gradients have a consensus distance of 0, which a logarithmic
        # axis cannot show.
        curves = {cell: values for cell, values in curves.items() if np.median(values) > 0}
    for cell, values in curves.items():
        if panel.x == EPOCH:
            x = np.arange(1, values.shape[1] + 1)
        else:
            # End of each epoch since the start of the run, the mean over the seeds [s].
            x = result.curves(cell, "seconds").cumsum(axis=1).mean(axis=0)
        line = _line_of(cell, panel)
        style = {**styles[line], "marker": None}
        mean = values.mean(axis=0)
        axes.plot(x, mean, **style, linewidth=2, label=result.title(line))
        if len(values) > 1:
            spread = values.std(axis=0, ddof=1)
            band = {"color": style["color"], "alpha": _BAND_OPACITY, "linewidth": 0}
            axes.fill_between(x, mean - spread, mean + spread, **band)

    if panel.x == EPOCH:
        _label_axes(axes, panel, "Epoch", CURVES[panel.y])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.xaxis.set_minor_locator(MaxNLocator(1))
    else:
        time_label = "Time, simulated [s]" if result.is_simulated else "Time [s]"
        _label_axes(axes, panel, time_label, CURVES[panel.y])
        axes.set_xlim(left=0)
    if curves:
        _limit_vertical_axis(axes, list(curves.values()), is_log=is_log)


def _limit_vertical_axis(axes: Axes, curves: Sequence[Floats], *, is_log: bool) -> None:
    """Limit the vertical axis so that the end of the training fills it, without the first epochs.

    A logarithmic axis begins at a tenth of the lowest median of a curve. A linear one leaves out
    the lowest values of all curves. `curves`: (num_seeds, num_epochs) each.
    """
    if is_log:
        medians = [float(np.median(values)) for values in curves]
        axes.set_ylim(bottom=min(medians) / 10)
        return
    means = np.concatenate([values.mean(axis=0) for values in curves])
    low, high = np.percentile(means, [_PERCENT_BELOW_AXIS, 100])
    if high > low:
        room = _ROOM * (high - low)
        axes.set_ylim(low - room, high + room)


def _draw_boxes(axes: Axes, panel: Panel, result: StudyResult, styles: Styles) -> None:
    """Draw a horizontal box for each cell: a quantity of all epochs but the first, and all seeds.

    A box has the quartiles and the median, its whiskers are at 5 and 95 %. The axis is logarithmic
    if the values differ by more than a factor of ten. A cell whose runs all diverged has a label
    and no box.
    """
    cells = result.cells(panel.methods, panel.where)
    curves = _curves(panel, result)
    if not curves:
        # All runs diverged.
        return
    samples = []
    for values in curves.values():
        later_epochs = values[:, 1:] if values.shape[1] > 1 else values
        samples.append(later_epochs.ravel())
    drawn = axes.boxplot(
        samples,
        positions=[cells.index(cell) for cell in curves],
        widths=0.55,
        orientation="horizontal",
        whis=(5, 95),
        showfliers=False,
        patch_artist=True,
        medianprops={"color": "black"},
    )
    for box, cell in zip(drawn["boxes"], curves, strict=True):
        box.set(facecolor=styles[_line_of(cell, panel)]["color"], alpha=0.7)
    low, high = axes.dataLim.intervalx
    if high < _NARROW * low:
        axes.xaxis.set_major_locator(MaxNLocator(5))
    else:
        axes.set_xscale("log")
        _set_decimal_ticks(axes.xaxis)
    axes.set_xlabel(CURVES[panel.y])
    axes.tick_params(axis="y", which="both", length=0)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_yticks(range(len(cells)), [result.title(cell) for cell in cells])
    # The first cell is at the top.
    axes.set_ylim(len(cells) - 0.4, -0.6)


def _draw_measure(axes: Axes, panel: Panel, key: str, result: StudyResult, styles: Styles) -> None:
    """Draw a measure against the values of a varied key: mean over the seeds, bars of deviation.

    Numbers that are not finite, such as the time to a goal that was not reached, are left out. A
    panel of speed-ups also has the ideal line, n times the speed for n workers.
    """
    varied_values = result.study.vary[key]
    for line, cells in _cells_by_line(panel, result).items():
        numbers = _numbers_by_value(result, cells, panel.y, key)
        finite_numbers = numbers[np.isfinite(numbers)]
        summary = finite_numbers.groupby(level=0).agg(["mean", "std"]).fillna(0.0)
        style = {**styles[line], "markersize": 5, "label": result.title(line)}
        axes.errorbar(summary.index, summary["mean"], yerr=summary["std"], **style)
    if panel.y == "speed_up":
        ends = [min(varied_values), max(varied_values)]
        axes.plot(ends, ends, color=GREY, linewidth=1, label="ideal")

    label = measure_of(panel.y).label
    y_label = label[0].upper() + label[1:]
    x_label = key_label(key).capitalize()
    _label_axes(axes, panel, x_label, y_label)
    if len(varied_values) <= _MOST_TICKS:
        axes.set_xticks(varied_values)
        axes.xaxis.set_minor_locator(NullLocator())


def _numbers_by_value(
    result: StudyResult, cells: Sequence[Cell], measure: str, key: str
) -> pd.Series:
    """Return a measure of the runs of some cells, indexed by the value of a varied key and by seed.

    A method without the key has the same number at all of its values.
    """
    numbers_by_value = {}
    for cell in cells:
        values = result.study.vary[key]
        if key in cell.plain_values:
            values = [cell.plain_values[key]]
        for value in values:
            numbers_by_value[float(value)] = result.numbers(cell, measure)
    return pd.concat(numbers_by_value)


def _label_axes(axes: Axes, panel: Panel, x_label: str, y_label: str) -> None:
    """Set the labels and the logarithmic scales of a panel."""
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if "x" in panel.log:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    if "y" in panel.log:
        axes.set_yscale("log")
        _set_decimal_ticks(axes.yaxis)


def _set_decimal_ticks(axis: Axis) -> None:
    """Set the ticks of a logarithmic axis, in plain digits.

    They are at 1, 2 and 5 in each decade, or at 1 only if there are more than a few decades.
    """
    low, high = axis.get_view_interval()
    digits = (1, 2, 5) if high < _FEW_DECADES * low else (1,)
    axis.set_major_locator(LogLocator(subs=digits))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def _add_legend(figure: Figure, all_axes: Sequence[Axes], panels: Sequence[Panel]) -> None:
    """Add a legend in each panel if the panels have different lines, and few; else one below all.

    Boxes have labels on their axis and need none.
    """
    handles_by_label: dict[str, Any] = {}
    labels_of_panels = []
    for axes in all_axes:
        handles, labels = axes.get_legend_handles_labels()
        handles_by_label |= dict(zip(labels, handles, strict=True))
        labels_of_panels.append(labels)
    differ = any(labels != labels_of_panels[-1] for labels in labels_of_panels)
    if differ and max(map(len, labels_of_panels)) <= _MOST_LINES_IN_PANEL_LEGEND:
        for axes, panel in zip(all_axes, panels, strict=True):
            if panel.x is not None:
                axes.legend(fontsize="small", loc="best")
    elif handles_by_label:
        figure.legend(
            handles_by_label.values(),
            handles_by_label,
            loc="outside lower center",
            ncols=3,
            fontsize="x-small",
        )
