"""Figures of data on the stacked simulation, with the ratio of both below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import mplhep
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from models.evaluation.data_comparison import Overlay
from models.evaluation.evaluation_task import EvaluationTask
from models.evaluation.style import (
    COLOURS,
    GREY,
    PlotLabels,
    legend_below,
    literal_text,
    new_grid,
    styled,
)

_COLUMNS: Final = 3


@styled
def plot_overlays(
    overlays: Mapping[str, Overlay],
    numbers: Mapping[str, Any],
    task: EvaluationTask,
    labels: PlotLabels,
) -> Figure:
    """Draw data on the stacked simulation, with the ratio of both below; one panel per histogram.

    Args:
        overlays: The histograms by name.
        numbers: Numbers of the comparison, of which the chi-squares are written into the panels.
        task: The classes and their order.
        labels: Labels of the figure.
    """
    columns = min(_COLUMNS, len(overlays))
    height = 6.4 if columns == 1 else 4.2
    figure, panels = new_grid(
        labels, panels=len(overlays), columns=columns, height=height, ratios=(3, 1)
    )
    for (main, below), (name, overlay) in zip(panels, overlays.items(), strict=True):
        _plot_stack(main, overlay, task)
        _plot_data(main, overlay)
        _write_chi_square(main, numbers["chi_square"][name])
        _, top = main.get_ylim()
        # The text needs some room above the histogram.
        main.set_ylim(0, 1.35 * top)
        if not overlay.is_visible.all():
            _mark_blinded(main, overlay)
        _plot_ratio(below, overlay)
    legend_below(figure, panels[0][0], columns=5)
    return figure


def data_labels(labels: PlotLabels, numbers: Mapping[str, Any]) -> PlotLabels:
    """Return the labels of figures of data, with the scale of the simulation and the blinding."""
    note = "Data and simulation"
    if numbers["scale"] is not None:
        note += f" \N{MULTIPLICATION SIGN} {numbers['scale']:.3g}"
    if numbers["blind_above"] is not None:
        note += f", blinded above a score of {numbers['blind_above']:g}"
    return labels._replace(sample_note=note)


def _plot_stack(axes: Axes, overlay: Overlay, task: EvaluationTask) -> None:
    """Draw the simulated classes stacked, the signal on top, and their statistical uncertainty."""
    # The last of the list is on top: the signal.
    labels = [*task.mixture.fractions, *task.signal.fractions]
    histograms = [overlay.classes[label] for label in labels]
    names = [literal_text(task.classes[label]) for label in labels]
    colours = [COLOURS[label % len(COLOURS)] for label in labels]
    look = {"histtype": "fill", "edgecolor": "black", "linewidth": 0.5}
    mplhep.histplot(
        histograms, ax=axes, stack=True, flow="none", label=names, color=colours, **look
    )
    band = {"histtype": "band", "label": "MC stat. unc."}
    mplhep.histplot(overlay.simulation, ax=axes, flow="none", **band)


def _plot_data(axes: Axes, overlay: Overlay) -> None:
    """Draw the counts of data as points with Poisson errors; blinded bins have none."""
    data = overlay.data.copy()
    expected = overlay.simulation.values()
    # A bin with neither data nor simulation has no point.
    is_empty = (expected <= 0) & (data.values() == 0)
    has_no_point = ~overlay.is_visible | is_empty
    data.view()[has_no_point] = np.nan
    look = {"histtype": "errorbar", "color": "black", "label": "Data"}
    mplhep.histplot(data, ax=axes, flow="none", w2method="poisson", **look)
    edges = data.axes[0].edges
    axes.set(xlabel="", xticklabels=[], ylabel="Events", xlim=edges[[0, -1]])


def _write_chi_square(axes: Axes, chi_square: Mapping[str, float]) -> None:
    """Write chi-square, degrees of freedom and p-value into the upper right corner."""
    text = "χ² = {value:.1f} / {degrees}, p = {p_value:.2g}".format_map(chi_square)
    axes.text(0.96, 0.96, text, transform=axes.transAxes, ha="right", va="top", fontsize="x-small")


def _mark_blinded(axes: Axes, overlay: Overlay) -> None:
    """Draw a grey region without data, and write what it is."""
    end = overlay.data.axes[0].edges[-1]
    axes.axvspan(overlay.blind_from, end, color=GREY, alpha=0.15, linewidth=0)
    middle = (overlay.blind_from + end) / 2
    # The horizontal position is in data units, the vertical one a share of the panel.
    units = axes.get_xaxis_transform()
    look: dict[str, Any] = {"ha": "center", "fontsize": "small", "fontstyle": "italic"}
    axes.text(middle, 0.8, "blinded", transform=units, **look)


def _plot_ratio(axes: Axes, overlay: Overlay) -> None:
    """Draw data over simulation; triangles at the upper edge stand for ratios above it."""
    data = overlay.data.copy()
    simulation = overlay.simulation
    expected = simulation.values()
    # Negative weights may leave a bin without a ratio.
    has_no_ratio = ~overlay.is_visible | (expected <= 0)
    data.view()[has_no_ratio] = np.nan
    counts = data.values()
    undefined = np.full(len(expected), np.nan)
    ratios = np.divide(counts, expected, out=undefined, where=counts > 0)
    positive_ratios = ratios[ratios > 0]
    # The panel ends at 2, or at 1.5 times the median ratio if that is more.
    top = 2.0
    if len(positive_ratios):
        median = float(np.median(positive_ratios))
        top = max(top, 1.5 * median)
    mplhep.comp.comparison(
        data,
        simulation,
        axes,
        xlabel=overlay.label,
        comparison="split_ratio",
        h1_w2method="poisson",
        comparison_ylim=(0, top),
        flow="none",
    )
    axes.set_ylabel("Data / MC", fontsize="x-small")
    is_above = ratios > top
    positions = data.axes[0].centers[is_above]
    heights = np.full(len(positions), 0.93 * top)
    axes.plot(positions, heights, "k^", markersize=4)
