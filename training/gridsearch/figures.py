"""The figure of a grid search: accuracy against size, and what no smaller network beats."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from models.style import COLOURS, PlotLabels, new_figure
from training.gridsearch.results import Score, pareto_front


def plot_pareto(scores: Sequence[Score], labels: PlotLabels) -> Figure:
    """Validation accuracy against the number of parameters; the front as a line, its networks by their layers.

    Of the settings of one architecture all are shown. Bars: standard deviation over the folds, of the front only.
    """
    figure, axes = new_figure(labels)
    sizes, accuracies = np.array([(each.num_parameters, each.accuracy) for each in scores]).T
    axes.plot(sizes, accuracies, "o", color=COLOURS[4], markersize=4, alpha=0.7, label="settings tried")
    front = pareto_front(scores)
    across = [each.num_parameters for each in front]
    axes.errorbar(
        across,
        [each.accuracy for each in front],
        yerr=[0.0 if np.isnan(each.accuracy_spread) else each.accuracy_spread for each in front],
        color=COLOURS[0],
        marker="D",
        markersize=6,
        capsize=3,
        drawstyle="steps-post",
        label="not beaten by a smaller one",
    )
    for each in front:
        axes.annotate(
            "-".join(map(str, each.trial.hidden)),
            (each.num_parameters, each.accuracy),
            xytext=(5, -14),
            textcoords="offset points",
            fontsize="x-small",
        )
    axes.set(xlabel="Parameters", ylabel="Validation accuracy, mean over the folds", xscale="log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(x=0.1, y=0.1)
    axes.legend(loc="lower right", fontsize="small", frameon=True)
    return figure
