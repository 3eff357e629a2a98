"""The dataset card: distributions of the features in each class."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import hist
import mplhep
import numpy as np
import uhi.io.json
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from features.columns import Binning
from features.distributions import HISTOGRAMS, histogrammed_features
from models.evaluation.style import (
    PlotLabels,
    axis_label,
    legend_below,
    line_look,
    literal_text,
    new_grid,
    save_figure,
    show_positive,
    styled,
)

#: Captions of the figures, by the part of a histogram's name before the dot.
CAPTIONS: Final = {
    "hlf": (
        "High-level features of the selected events by class, and the number of particles; areas "
        "are 1, error bars statistical; what lies outside an axis is not shown, nor a feature "
        "whose events are all in one bin."
    ),
    "particles": (
        "Main features of the particles (of the first events of each row group, a random sample)."
    ),
}


def load_histograms(folder: Path) -> dict[str, hist.Hist[Any]]:
    """Read the histograms of the features by name (`hlf.ht`), as objects of the package `hist`.

    The first axis is the feature, the second the class; bins hold sums of weights with variances.
    """
    text = (folder / HISTOGRAMS).read_text(encoding="utf-8")
    histograms = json.loads(text, object_hook=uhi.io.json.object_hook)
    return {name: hist.Hist(histogram) for name, histogram in histograms.items()}


def plot_card(
    histograms: Mapping[str, hist.Hist[Any]],
    classes: Sequence[str],
    labels: PlotLabels,
    folder: Path,
) -> None:
    """Write the figures of the dataset card to a new folder, each as PNG and PDF.

    They are `hlf` and, if there are any, `particles`. `classes` are names in the order of labels.
    """
    folder.mkdir()
    for figure_name in CAPTIONS:
        panels = {
            name: histogram
            for name, histogram in histograms.items()
            if name.startswith(f"{figure_name}.") and shows_something(histogram)
        }
        if panels:
            save_figure(plot_distributions(panels, classes, labels), folder / figure_name)


def shows_something(histogram: hist.Hist[Any]) -> bool:
    """Return whether a panel would show a distribution of the feature.

    That is so if some events are inside the axis, and events fill more than one bin. Bins outside
    the axis count for the second condition.
    """
    # Shape (bins + 2,), with underflow first and overflow last; a bin with an event has a variance.
    is_filled = np.asarray(histogram.variances(flow=True)).sum(axis=1) > 0
    return bool(is_filled[1:-1].any() and is_filled.sum() > 1)


@styled
def plot_distributions(
    histograms: Mapping[str, hist.Hist[Any]], classes: Sequence[str], labels: PlotLabels
) -> Figure:
    """Plot one panel for each feature, one line for each class, normalised to an area of 1.

    The area includes events outside the axis. Steeply falling features get a logarithmic axis.
    """
    figure, panels = new_grid(labels, panels=len(histograms), columns=4)
    for axes, (name, histogram) in zip(panels, histograms.items(), strict=True):
        # The name of the histogram gives the feature, for the label, and its bins.
        feature, binning = histogrammed_features()[name]
        ends_of_bars = _draw_classes(axes, histogram, classes, is_log=binning.log)
        axes.set_xlabel(axis_label(feature), fontsize="small")
        axes.tick_params(labelsize="x-small")
        axes.set_ylabel("")
        if _has_integer_bins(binning):
            # Ticks are whole numbers.
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(histogram.axes[0].edges[0], histogram.axes[0].edges[-1])
        if binning.log:
            show_positive(axes, ends_of_bars)
        else:
            # Negative weights may give negative bins, which stay visible.
            axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    panels[0].set_ylabel("Density", fontsize="small")
    legend_below(figure, panels[0])
    return figure


def _draw_classes(
    axes: Axes, histogram: hist.Hist[Any], classes: Sequence[str], *, is_log: bool
) -> list[Any]:
    """Draw the densities of all classes that have events; returns the ends of their error bars.

    The density of a bin is its sum of weights over total weight and width. The ends are two arrays
    of a class, lower and upper, each with one number for each bin.
    """
    ends_of_bars: list[Any] = []
    for index, class_name in enumerate(classes):
        class_histogram: Any = histogram[:, index]
        total = class_histogram.sum(flow=True).value
        if total <= 0:
            continue
        edges = class_histogram.axes[0].edges
        # Sum of weights in a bin, divided by this, is a density.
        scale = total * np.diff(edges)
        densities = class_histogram.values() / scale
        errors = np.sqrt(class_histogram.variances()) / scale
        # A bar down to 0 has no end on a logarithmic axis, so it ends at 0.4 of its value.
        lower_errors = np.minimum(errors, 0.6 * np.abs(densities)) if is_log else errors
        ends_of_bars += [densities - lower_errors, densities + errors]
        mplhep.histplot(
            densities,
            edges,
            yerr=[lower_errors, errors],
            ax=axes,
            linewidth=1.4,
            label=literal_text(class_name),
            flow="none",
            **line_look(index),
        )
    return ends_of_bars


def _has_integer_bins(binning: Binning) -> bool:
    """Return whether each bin is a whole number: bins of width 1 with edges at halves."""
    return binning.high - binning.low == binning.bins and binning.low % 1 == 0.5
