"""Draws the expected events against the score of a model, and the significance behind each cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import hist
import mplhep
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from models.evaluation.discriminant import log_odds, odds_range
from models.evaluation.figures import SCORE_BINS, draw_points
from models.evaluation.intervals import Floats
from models.evaluation.rounding import with_interval
from models.evaluation.scored_events import ScoredEvents
from models.evaluation.style import (
    COLOURS,
    PlotLabels,
    line_look,
    literal_text,
    new_figure,
    show_positive,
    styled,
)


@styled
def plot_discriminant(
    events: ScoredEvents,
    score: Floats,
    expected: Mapping[int, float],
    signals: Sequence[int],
    classes: Sequence[str],
    significance: Mapping[str, Any],
    labels: PlotLabels,
) -> Figure:
    """Draw events against log10(s / b) of the score, with the significance behind each cut below.

    Args:
        events: The test events.
        score: (num_events,) s / (s + b).
        expected: Number of events of each class.
        signals: Classes of the signal.
        classes: Names of the classes.
        significance: `significance` of `models.evaluation.cut_measurements`.
        labels: Labels of the figure.
    """
    figure, main = new_figure(labels, height=7.4, ratios=(2, 1))
    below = figure.axes[1]
    odds = log_odds(score)
    axis = hist.axis.Regular(SCORE_BINS, *odds_range(odds), flow=True)
    sums = np.bincount(events.labels, events.weights, len(classes))
    drawn: list[Floats] = []
    backgrounds = [label for label in range(len(classes)) if label not in signals]
    for label in [*backgrounds, *signals]:
        if sums[label] > 0:
            in_class = events.labels == label
            class_odds = odds[in_class]
            # Each class adds up to its expected number of events.
            weights = events.weights[in_class] * expected[label] / sums[label]
            drawn += _draw_histogram(main, axis, class_odds, weights, label, classes[label])
    show_positive(main, drawn, room=6)
    main.set(xlabel="", ylabel=significance["of"].capitalize())
    main.legend(fontsize="small")
    _draw_significance(below, significance)
    return figure


def _draw_histogram(
    axes: Axes, axis: Any, values: Floats, weights: Floats, label: int, name: str
) -> list[Floats]:
    """Draw a weighted histogram of a class with errors; returns the values that axes must hold.

    Values outside the axis are in two further bins, which are drawn at its ends.
    """
    # This storage keeps sums of weights and of their squares, the variances.
    histogram: Any = hist.Hist(axis, storage=hist.storage.Weight())
    histogram.fill(values, weight=weights)
    look = line_look(label)
    mplhep.histplot(histogram, ax=axes, label=literal_text(name), flow="show", yerr=False, **look)
    bars = {"color": look["color"], "linestyle": "", "elinewidth": 1}
    errors = np.sqrt(histogram.variances())
    bar_ends = draw_points(axes, axis.centers, histogram.values(), errors, **bars)
    return [*bar_ends, histogram.values(flow=True)]


def _draw_significance(axes: Axes, significance: Mapping[str, Any]) -> None:
    """Draw the simple and the Asimov significance against the cut, and mark the highest.

    `significance` has the thresholds and one array for each quantity, and the index `best`. The
    band is the one-sigma interval of the Asimov significance.
    """
    cuts = log_odds(np.array(significance["threshold"]))
    asimov = significance["asimov"]
    low, high = significance["low"], significance["high"]
    asimov_label = "Asimov"
    if significance["uncertainty"]:
        asimov_label += f", background ± {100 * significance['uncertainty']:g} %"
    simple_label = r"$S / \sqrt{B}$"
    axes.plot(cuts, significance["simple"], color=COLOURS[0], linestyle="--", label=simple_label)
    axes.plot(cuts, asimov, color=COLOURS[1], label=asimov_label)
    axes.fill_between(cuts, low, high, color=COLOURS[1], alpha=0.15, linewidth=0)
    best = significance["best"]
    if best is None:
        # A plot without points only adds a line to the legend.
        axes.plot([], [], " ", label="behind every cut effectively fewer than 10 background events")
    else:
        interval = {"value": asimov[best], "low": low[best], "high": high[best]}
        best_label = f"highest: {with_interval(interval)}"
        if significance["best_is_at_end"]:
            best_label += ", perhaps more at tighter cuts"
        look: dict[str, Any] = {"color": COLOURS[1], "marker": "o", "linestyle": ""}
        axes.plot(cuts[best], asimov[best], label=best_label, **look)
    axes.set(xlabel="log10 of signal / background (score)", ylabel="Significance", ylim=(0, None))
    axes.legend(fontsize="small")
