"""The dataset card: distributions of the features in each class, from the histograms of the stage `features`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import hist
import mplhep
import numpy as np
import uhi.io.json
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from features.distributions import HISTOGRAMS, histogrammed_features
from models.evaluation.style import (
    PlotLabels,
    axis_label,
    legend_below,
    line_look,
    new_grid,
    plain,
    save_figure,
    show_positive,
    styled,
)

#: Captions of the figures, by the part of a histogram's name before the dot.
CAPTIONS: Final = {
    "hlf": "High-level features of the selected events by class, and the number of particles; areas are 1, error bars "
    "statistical; what lies outside an axis is not shown, nor a feature whose events are all in one bin.",
    "particles": "Main features of the particles (of the first events of each row group, a random sample).",
}


def load_histograms(folder: Path) -> dict[str, hist.Hist[Any]]:
    """`hist.Hist` objects by name (`hlf.ht`); the first axis is the feature, the second the class."""
    content = json.loads(
        (folder / HISTOGRAMS).read_text(encoding="utf-8"), object_hook=uhi.io.json.object_hook
    )
    return {name: hist.Hist(each) for name, each in content.items()}


def plot_card(
    histograms: Mapping[str, hist.Hist[Any]],
    classes: Sequence[str],
    labels: PlotLabels,
    folder: Path,
) -> None:
    """Write `hlf` and, if there are any, `particles` as PNG and PDF to a new folder."""
    folder.mkdir()
    for kind in CAPTIONS:
        shown = {
            name: histogram
            for name, histogram in histograms.items()
            if name.startswith(f"{kind}.") and shows_something(histogram)
        }
        if shown:
            save_figure(plot_distributions(shown, classes, labels), folder / kind)


def shows_something(histogram: hist.Hist[Any]) -> bool:
    """Whether a panel would show a distribution: events inside the axis, and not all of them in one bin."""
    is_filled = np.asarray(histogram.variances(flow=True)).sum(axis=1) > 0
    return bool(is_filled[1:-1].any() and is_filled.sum() > 1)


@styled
def plot_distributions(
    histograms: Mapping[str, hist.Hist[Any]], classes: Sequence[str], labels: PlotLabels
) -> Figure:
    """One panel for each feature, one line for each class, normalised to an area of 1."""
    figure, panels = new_grid(labels, panels=len(histograms), columns=4)
    for axes, (name, histogram) in zip(panels, histograms.items(), strict=True):
        feature, binning = histogrammed_features()[name]
        shown: list[Any] = []
        for index, class_name in enumerate(classes):
            of_class: Any = histogram[:, index]
            if of_class.sum(flow=True).value <= 0:
                continue
            scale = of_class.sum(flow=True).value * np.diff(of_class.axes[0].edges)
            heights, errors = of_class.values() / scale, np.sqrt(of_class.variances()) / scale
            # A bar down to 0 has no end on a logarithmic axis.
            down = np.minimum(errors, 0.6 * np.abs(heights)) if binning.log else errors
            shown += [heights - down, heights + errors]
            mplhep.histplot(
                heights,
                of_class.axes[0].edges,
                yerr=[down, errors],
                ax=axes,
                linewidth=1.4,
                label=plain(class_name),
                flow="none",
                **line_look(index),
            )
        axes.set_xlabel(axis_label(feature), fontsize="small")
        axes.tick_params(labelsize="x-small")
        axes.set_ylabel("")
        if binning.high - binning.low == binning.bins and binning.low % 1 == 0.5:
            # Each bin is a whole number.
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(histogram.axes[0].edges[0], histogram.axes[0].edges[-1])
        if binning.log:
            show_positive(axes, shown)
        else:
            axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    panels[0].set_ylabel("Density", fontsize="small")
    legend_below(figure, panels[0])
    return figure
