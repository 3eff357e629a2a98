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

from hep_studies.measures import CURVES, measure_of
from hep_studies.study import EPOCH, SECONDS, Panel, StudyFigure, short
from hep_studies.study_result import Cell, Floats, StudyResult
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

_BAND: Final = 0.2
#: Percentage of the values of all curves below the axis: the first epochs.
_BELOW_AXIS: Final = 4
_ROOM: Final = 0.15
_FEW_DECADES: Final = 300
#: Ratio of highest to lowest value below which a logarithmic axis has room for only one or two of its labels.
_NARROW: Final = 10
_MOST_IN_PANEL: Final = 4
_MARKERS: Final = "os^Dv<>Pp"
#: Number of values of a key that have a tick each.
_MOST_TICKS: Final = 8


def draw_all(result: StudyResult, labels: PlotLabels, folder: Path) -> None:
    """Draw all figures of a study into a folder; the labels get the warning of the result."""
    folder.mkdir(exist_ok=True)
    if result.warning:
        labels = labels._replace(sample_note=f"{labels.sample_note}; {result.warning}".lstrip("; "))
    for figure in result.study.figures:
        save_figure(draw(result, figure, labels), folder / figure.name)


@styled
def draw(result: StudyResult, figure: StudyFigure, labels: PlotLabels) -> Figure:
    """A figure of panels side by side; they share the vertical axis if they show the same."""
    panels, is_shared = figure.panels, len({panel.y for panel in figure.panels}) == 1
    if is_shared:
        made, first = new_figure(labels, panels=len(panels))
        drawn = [first, *made.axes[1:]]
    else:
        made, drawn = new_grid(labels, panels=len(panels), columns=len(panels))
        made.set_figheight(6.2)
    looks = _looks(cell for panel in panels for cell in _lines(panel, result))
    for axes, panel in zip(drawn, panels, strict=True):
        drawing = _boxes if panel.x is None else _epochs if panel.x in (EPOCH, SECONDS) else _values
        drawing(axes, panel, result, looks)
        if panel.title:
            axes.text(
                0.04,
                0.96,
                panel.title,
                transform=axes.transAxes,
                ha="left",
                va="top",
                fontsize="small",
            )
    for axes in drawn[1:] if is_shared else ():
        axes.set_ylabel("")
    _legend(made, drawn, panels)
    return made


def _lines(panel: Panel, result: StudyResult) -> dict[Cell, list[Cell]]:
    """The lines of a panel, each with the cells that it goes through."""
    found: dict[Cell, list[Cell]] = {}
    for cell in result.cells(panel.methods, panel.where):
        found.setdefault(_line(cell, panel), []).append(cell)
    return found


def _line(cell: Cell, panel: Panel) -> Cell:
    """A cell without the key on the axis across, and without those that are the same in all of the panel."""
    return cell.without(panel.x, *panel.where)


def _looks(lines: Iterable[Cell]) -> dict[Cell, dict[str, Any]]:
    """A colour for each method; dashes and a marker for each of its lines, where it has several."""
    by_method: dict[str, list[Cell]] = {}
    for line in dict.fromkeys(lines):
        by_method.setdefault(line.method, []).append(line)
    found = {}
    for place, several in enumerate(by_method.values()):
        for number, line in enumerate(several):
            which = number if len(several) > 1 else place + place // len(COLOURS)
            colour, dashes = COLOURS[place % len(COLOURS)], DASHES[which % len(DASHES)]
            found[line] = {
                "color": colour,
                "linestyle": dashes,
                "marker": _MARKERS[number % len(_MARKERS)],
            }
    return found


def _curves(panel: Panel, result: StudyResult) -> dict[Cell, Floats]:
    """A quantity of each seed and epoch, of the cells with a run that did not diverge."""
    cells = result.cells(panel.methods, panel.where)
    return {cell: values for cell in cells if (values := result.curves(cell, panel.y)).size}


def _epochs(
    axes: Axes, panel: Panel, result: StudyResult, looks: Mapping[Cell, dict[str, Any]]
) -> None:
    """A quantity of each epoch: mean over the seeds, with a band of their standard deviation."""
    found = _curves(panel, result)
    if "y" in panel.log:
        # Methods that average all gradients have a consensus distance of 0, which a logarithmic axis cannot show.
        found = {cell: values for cell, values in found.items() if np.median(values) > 0}
    for cell, values in found.items():
        ends = result.curves(cell, "seconds").cumsum(axis=1).mean(axis=0)
        across = np.arange(1, values.shape[1] + 1) if panel.x == EPOCH else ends
        line, mean = _line(cell, panel), values.mean(axis=0)
        look = {**looks[line], "marker": None}
        axes.plot(across, mean, **look, linewidth=2, label=result.title(line))
        if len(values) > 1:
            spread = values.std(axis=0, ddof=1)
            axes.fill_between(
                across, mean - spread, mean + spread, color=look["color"], alpha=_BAND, linewidth=0
            )
    times = "Time, simulated [s]" if result.is_simulated else "Time [s]"
    _finish(axes, panel, "Epoch" if panel.x == EPOCH else times, CURVES[panel.y])
    if panel.x == EPOCH:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.xaxis.set_minor_locator(MaxNLocator(1))
    else:
        axes.set_xlim(left=0)
    if found and "y" in panel.log:
        axes.set_ylim(bottom=min(float(np.median(values)) for values in found.values()) / 10)
    elif found:
        # The axis begins above the first epochs, so that the end of the training is visible.
        means = np.concatenate([values.mean(axis=0) for values in found.values()])
        low, high = np.percentile(means, [_BELOW_AXIS, 100])
        if high > low:
            axes.set_ylim(low - _ROOM * (high - low), high + _ROOM * (high - low))


def _boxes(
    axes: Axes, panel: Panel, result: StudyResult, looks: Mapping[Cell, dict[str, Any]]
) -> None:
    """A quantity of all epochs but the first, and of all seeds, as boxes (quartiles; whiskers 5 and 95 %)."""
    cells = result.cells(panel.methods, panel.where)
    found = _curves(panel, result)
    if not found:
        # All runs diverged.
        return
    boxes = axes.boxplot(
        [(values[:, 1:] if values.shape[1] > 1 else values).ravel() for values in found.values()],
        positions=[cells.index(cell) for cell in found],
        widths=0.55,
        orientation="horizontal",
        whis=(5, 95),
        showfliers=False,
        patch_artist=True,
        medianprops={"color": "black"},
    )
    for box, cell in zip(boxes["boxes"], found, strict=True):
        box.set(facecolor=looks[_line(cell, panel)]["color"], alpha=0.7)
    low, high = axes.dataLim.intervalx
    if high < _NARROW * low:
        axes.xaxis.set_major_locator(MaxNLocator(5))
    else:
        axes.set_xscale("log")
        _decimal_ticks(axes.xaxis)
    axes.set_xlabel(CURVES[panel.y])
    axes.tick_params(axis="y", which="both", length=0)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_yticks(range(len(cells)), [result.title(cell) for cell in cells])
    axes.set_ylim(len(cells) - 0.4, -0.6)


def _values(
    axes: Axes, panel: Panel, result: StudyResult, looks: Mapping[Cell, dict[str, Any]]
) -> None:
    """A measure against a varied key: mean over the seeds, standard deviation as bars; one line for other values."""
    key = str(panel.x)
    varied = result.study.vary[key]
    for line, cells in _lines(panel, result).items():
        # A method without the key has the same number at all of its values.
        places = [
            (place, cell)
            for cell in cells
            for place in ([cell.plain[key]] if key in cell.plain else varied)
        ]
        numbers = pd.concat({float(place): result.numbers(cell, panel.y) for place, cell in places})
        found = numbers[np.isfinite(numbers)].groupby(level=0).agg(["mean", "std"]).fillna(0.0)
        look = {**looks[line], "markersize": 5, "label": result.title(line)}
        axes.errorbar(found.index, found["mean"], yerr=found["std"], **look)
    if panel.y == "speed_up":
        ideal = [min(varied), max(varied)]
        axes.plot(ideal, ideal, color=GREY, linewidth=1, label="ideal")
    words = measure_of(panel.y).words
    _finish(axes, panel, short(key).capitalize(), words[0].upper() + words[1:])
    if len(varied) <= _MOST_TICKS:
        axes.set_xticks(varied)
        axes.xaxis.set_minor_locator(NullLocator())


def _finish(axes: Axes, panel: Panel, across: str, up: str) -> None:
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    if "x" in panel.log:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    if "y" in panel.log:
        axes.set_yscale("log")
        _decimal_ticks(axes.yaxis)


def _decimal_ticks(axis: Axis) -> None:
    """1, 2 and 5 in each decade of a logarithmic axis, in plain digits."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < _FEW_DECADES * low else (1,)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def _legend(figure: Figure, drawn: Sequence[Axes], panels: Sequence[Panel]) -> None:
    """One legend below panels of the same methods; else one in each."""
    found = [axes.get_legend_handles_labels() for axes in drawn]
    words = [labels for _, labels in found]
    if any(each != words[-1] for each in words) and max(map(len, words)) <= _MOST_IN_PANEL:
        for axes, panel in zip(drawn, panels, strict=True):
            if panel.x is not None:
                axes.legend(fontsize="small", loc="best")
    elif together := {
        word: handle
        for handles, labels in found
        for handle, word in zip(handles, labels, strict=True)
    }:
        figure.legend(
            together.values(), together, loc="outside lower center", ncols=3, fontsize="x-small"
        )
