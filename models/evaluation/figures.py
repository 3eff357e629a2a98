"""Figures of one model: functions of arrays that return matplotlib figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
from numpy.typing import NDArray

from features.columns import HIGH_LEVEL, hlf_names
from models.evaluation.curves import weighted_histogram
from models.evaluation.intervals import Floats, WeightSums
from models.evaluation.rounding import NOT_MEASURABLE
from models.evaluation.scored_events import ScoredEvents
from models.evaluation.style import (
    COLOURS,
    GREY,
    PlotLabels,
    axis_label,
    legend_below,
    line_look,
    literal_text,
    new_figure,
    new_grid,
    point_look,
    show_positive,
    styled,
    symbol_of,
)

#: Bins of a probability or a score.
SCORE_BINS: Final = 20
#: Panels per row in the figure of the efficiencies.
_COLUMNS: Final = 3


@styled
def plot_confusion(confusion: Mapping[str, Any], labels: PlotLabels) -> Figure:
    """Draw the confusion matrix, true classes as rows and predicted classes as columns.

    One panel has shares of a row, the other numbers of events. Colours show the shares in both.
    `confusion` has the names of the `classes`, the shares `by_truth` and the numbers of `events`.
    """
    figure, first = new_figure(labels, panels=2, height=5.6)
    names = [literal_text(name) for name in confusion["classes"]]
    positions = range(len(names))
    shares = np.array(confusion["by_truth"])
    counts = np.array(confusion["events"])
    # The panels show the same colours, with shares on the left and counts on the right.
    share_axes, count_axes = figure.axes
    _draw_matrix(share_axes, shares, shares, ".3f")
    _draw_matrix(count_axes, shares, counts, ",")
    for axes, unit in ((share_axes, "shares of a row"), (count_axes, "events")):
        axes.set_xticks(positions, names)
        axes.tick_params(which="both", length=0)
        axes.set_xlabel(f"Predicted class ({unit})")
    first.set_yticks(positions, names)
    first.set_ylabel("True class")
    return figure


def _draw_matrix(axes: Axes, shares: Floats, numbers: NDArray[Any], number_format: str) -> None:
    """Colour the cells of a matrix by shares, and write a number into each."""
    axes.imshow(shares, vmin=0, vmax=1, cmap="Blues", aspect="auto")
    for (row, column), share in np.ndenumerate(shares):
        text = format(numbers[row, column], number_format)
        # White text is readable on dark cells.
        colour = "white" if share > 0.5 else "black"
        axes.text(column, row, text, ha="center", va="center", color=colour)


@styled
def plot_scores(
    test: ScoredEvents,
    train: ScoredEvents | None,
    tests: Mapping[str, Mapping[str, Any]],
    classes: Sequence[str],
    outputs: Sequence[int],
    labels: PlotLabels,
) -> Figure:
    """Draw the distributions of the outputs of a network, by true class of the events.

    There is one panel per output, with a logarithmic axis. Test events are points with statistical
    errors; the points of several classes stand beside each other within a bin. Training events are
    lines.

    Args:
        test: The test events.
        train: The training events; None leaves them out.
        tests: By output and true class the two-sample test of both, with its `p_value`.
        classes: Names of the classes, by label.
        outputs: Labels of the classes whose outputs are drawn.
        labels: Labels of the figure.
    """
    figure, first = new_figure(labels, panels=len(outputs))
    edges = np.linspace(0, 1, SCORE_BINS + 1)
    drawn: list[Floats] = []
    for output, axes in zip(outputs, figure.axes, strict=True):
        output_name = classes[output]
        for label, name in enumerate(classes):
            # Points of the classes stand beside each other, from the left edge of a bin on.
            fraction_of_bin = (label + 1) / (len(classes) + 1)
            positions = edges[:-1] + fraction_of_bin / SCORE_BINS
            heights, errors = _shares_in_bins(test, output, label, edges)
            legend = f"true {literal_text(name)}"
            points = {"label": f"{legend}, test", **point_look(label)}
            drawn += draw_points(axes, positions, heights, errors, **points)
            if train is not None:
                heights, _ = _shares_in_bins(train, output, label, edges)
                line = {"linewidth": 1.5, "label": f"{legend}, training", **line_look(label)}
                axes.stairs(heights, edges, **line)
                drawn.append(heights)
                p_value = tests[output_name][name]["p_value"]
                _write_p_value(axes, name, label, p_value)
        axes.set(xlabel=f"Probability of {literal_text(output_name)}", xlim=(0, 1))
    # The factor leaves room for the p-values at the top.
    show_positive(first, drawn, room=12)
    first.set_ylabel(f"Share of events / {1 / SCORE_BINS:g}")
    legend_below(figure, first, columns=3)
    return figure


def _write_p_value(axes: Axes, name: str, line: int, p_value: float | None) -> None:
    """Write the p-value of one class into a line of its own at the top of a panel."""
    outcome = NOT_MEASURABLE if p_value is None else f"p = {p_value:.2g}"
    text = f"{literal_text(name)}: {outcome}"
    height = 0.97 - 0.06 * line
    look: dict[str, Any] = {"fontsize": "x-small", "ha": "center", "va": "top"}
    axes.text(0.5, height, text, transform=axes.transAxes, **look)


def _shares_in_bins(
    events: ScoredEvents, output: int, label: int, edges: Floats
) -> tuple[Floats, Floats]:
    """Histogram an output for the events of a class, as shares of the class's weight.

    It returns the shares and their statistical errors, (num_bins,) each; NaN without weight.
    """
    in_class = events.labels == label
    weights = events.weights[in_class]
    probabilities = events.probabilities[in_class, output]
    heights, errors = weighted_histogram(probabilities, edges, weights)
    total = np.nan
    if WeightSums.of(weights).is_positive:
        total = weights.sum()
    return heights / total, errors / total


def draw_points(
    axes: Axes, positions: Floats, heights: Floats, errors: Floats, **look: Any
) -> list[Floats]:
    """Draw the heights above 0 with errors on a logarithmic axis; returns the ends of the bars.

    The ends are two arrays, lower and upper. `look` are options of matplotlib.
    """
    # A logarithmic axis only shows numbers above 0.
    is_positive = heights > 0
    positions = positions[is_positive]
    heights = heights[is_positive]
    up = errors[is_positive]
    # A bar down to 0 has no end on a logarithmic axis, so it covers at most 60 % of the height.
    down = np.minimum(up, 0.6 * heights)
    axes.errorbar(positions, heights, [down, up], **look)
    return [heights - down, heights + up]


@styled
def plot_calibration(calibration: Mapping[str, Any], labels: PlotLabels) -> Figure:
    """Draw the observed share of a class against its predicted probability; one panel per class.

    The diagonal is perfect calibration. The text has the mean distance from it, that of a perfect
    model, and the p-value of the distance.
    """
    figure, first = new_figure(labels, panels=len(calibration))
    for axes, (name, numbers) in zip(figure.axes, calibration.items(), strict=True):
        # The diagonal marks a perfect calibration.
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=1)
        predicted = [bin_["mean_predicted"] for bin_ in numbers["bins"]]
        observed = [bin_["observed"] for bin_ in numbers["bins"]]
        shares, bars = _values_and_bars(observed)
        look: dict[str, Any] = {
            "color": COLOURS[0],
            "marker": "o",
            "linestyle": "",
            "capsize": 3,
        }
        axes.errorbar(predicted, shares, bars, **look)
        _write_distance(axes, numbers)
        xlabel = f"Probability of {literal_text(name)}"
        axes.set(xlabel=xlabel, xlim=(-0.04, 1.04), ylim=(-0.05, 1.3))
    first.set_ylabel("Observed share (classes weighted equally)")
    return figure


def _write_distance(axes: Axes, numbers: Mapping[str, Any]) -> None:
    """Write the distance from perfect calibration, and its p-value, into the upper left corner."""
    lines = [
        f"distance {numbers['error']:.3f}",
        f"of a perfect model {numbers['expected']:.3f}",
        f"p = {numbers['p_value']:.2g}",
    ]
    text = "\n".join(lines)
    axes.text(0.05, 0.96, text, transform=axes.transAxes, fontsize="x-small", va="top")


@styled
def plot_efficiencies(
    efficiencies: Mapping[str, Any], signal: str, signal_efficiency: float, labels: PlotLabels
) -> Figure:
    """Draw the efficiency of each class at a working point against kinematic variables.

    Uneven bins are drawn equally wide. A horizontal line marks the signal efficiency of the point.
    """
    figure, panels = new_grid(labels, panels=len(efficiencies), columns=_COLUMNS)
    for axes, (variable, binned) in zip(panels, efficiencies.items(), strict=True):
        edges = _drawn_edges(axes, np.array(binned["edges"]))
        axes.axhline(signal_efficiency, color=GREY, linewidth=1)
        _draw_efficiencies_of_classes(axes, binned["classes"], edges)
        feature = HIGH_LEVEL[hlf_names().index(variable)]
        axes.set_xlabel(axis_label(feature))
        axes.set(xlim=(edges[0], edges[-1]), ylim=(-0.05, 1.09))
        inner_edges = edges[1:-1]
        axes.vlines(inner_edges, -0.05, 1.09, color=GREY, linewidth=0.4, alpha=0.4)
    ylabel = f"Efficiency at {100 * signal_efficiency:g}% {literal_text(signal)}"
    # Only the first panel of a row has a label at its vertical axis.
    for axes in panels[::_COLUMNS]:
        axes.set_ylabel(ylabel)
    legend_below(figure, panels[-1])
    return figure


def _draw_efficiencies_of_classes(
    axes: Axes, bins_by_class: Mapping[str, Sequence[Mapping[str, float] | None]], edges: Floats
) -> None:
    """Draw the efficiency of each class in bins, without the bins in which it is not measured."""
    num_classes = len(bins_by_class)
    widths = np.diff(edges)
    for label, (name, bins) in enumerate(bins_by_class.items()):
        # Classes stand beside each other within a bin.
        positions = edges[:-1] + widths * (label + 1) / (num_classes + 1)
        is_measured = [share is not None for share in bins]
        measured = [share for share in bins if share is not None]
        shares, bars = _values_and_bars(measured)
        look = {"label": literal_text(name), **point_look(label)}
        axes.errorbar(positions[is_measured], shares, bars, **look)


def _drawn_edges(axes: Axes, edges: Floats) -> Floats:
    """Return the positions at which the edges of the bins are drawn.

    Uneven bins become equally wide: the axis gets their edges as labels at whole numbers.
    """
    is_even = np.ptp(np.diff(edges)) <= 0
    if is_even:
        return edges
    texts = [f"{edge:g}" for edge in edges]
    axes.set_xticks(range(len(edges)), texts)
    axes.xaxis.set_minor_locator(NullLocator())
    return np.arange(len(edges), dtype=np.float64)


def _values_and_bars(intervals: Sequence[Mapping[str, float]]) -> tuple[Floats, Floats]:
    """Return the values, (num_points,), and the lengths of the bars down and up, (2, num_points).

    Lengths are at least 0, even if negative weights push a value out of its interval.
    """
    values = np.array([interval["value"] for interval in intervals])
    low = np.array([interval["low"] for interval in intervals])
    high = np.array([interval["high"] for interval in intervals])
    bars = np.maximum([values - low, high - values], 0)
    return values, bars


@styled
def plot_importance(
    importances: Mapping[str, Mapping[str, Mapping[str, float]]], signal: str, labels: PlotLabels
) -> Figure:
    """Draw the area under the ROC curve that is lost when a feature is shuffled, by model.

    The most important feature of the first model is on top. `importances` has `value` and `error`
    of each feature of each model.
    """
    figure, axes = new_figure(labels)
    first = next(iter(importances.values()))
    # Rows count from below, so the most important feature is the last one.
    features = sorted(first, key=lambda name: first[name]["value"])
    # The bars of all models share 0.8 of the row of a feature.
    height = 0.8 / len(importances)
    rows = np.arange(len(features))
    for index, (model, losses) in enumerate(importances.items()):
        # The bars of the first model are the upper ones in each row.
        positions = rows + 0.4 - height * (index + 0.5)
        axes.barh(
            positions,
            [losses[feature]["value"] for feature in features],
            height,
            xerr=[losses[feature]["error"] for feature in features],
            label=literal_text(model),
            color=line_look(index)["color"],
            error_kw={"elinewidth": 1},
        )
    symbols = [symbol_of(name) for name in features]
    axes.set_yticks(rows, symbols, fontsize="small")
    axes.tick_params(axis="y", which="both", length=0)
    axes.set_xlabel(f"AUC of {literal_text(signal)} lost when shuffled")
    axes.legend(loc="lower right", fontsize="small")
    return figure


@styled
def plot_learning_curve(history: Sequence[Mapping[str, Any]], labels: PlotLabels) -> Figure:
    """Draw the loss of both splits against the epoch, and mark the epoch of the kept model.

    `history` has one record per epoch. The kept model has the lowest validation loss. If several
    workers trained, their consensus distance, by which their weights differ, has an axis on the
    right.
    """
    figure, axes = new_figure(labels)
    # Epochs count from 0 in the records, from 1 in the figure.
    epochs = [record["epoch"] + 1 for record in history]
    training = [record["train_loss"] for record in history]
    validation = [record["val_loss"] for record in history]
    axes.plot(epochs, training, color=COLOURS[0], linestyle="--", label="training")
    axes.plot(epochs, validation, color=COLOURS[1], label="validation")
    best = int(np.argmin(validation))
    look: dict[str, Any] = {"marker": "o", "linestyle": "", "color": COLOURS[1]}
    axes.plot(epochs[best], validation[best], label=f"kept: epoch {epochs[best]}", **look)
    axes.set(xlabel="Epoch", ylabel="Weighted cross-entropy", xlim=(0.5, epochs[-1] + 0.5))
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis.set_minor_locator(MaxNLocator(1))
    # A single worker has no distance.
    distances = [record.get("consensus_distance", 0.0) for record in history]
    if max(distances) > 0:
        dotted: dict[str, Any] = {"color": COLOURS[3], "linestyle": ":"}
        right_axes = axes.twinx()
        right_axes.plot(epochs, distances, **dotted)
        right_axes.set_ylabel("Consensus distance")
        right_axes.set_ylim(bottom=0)
        # Only for the legend.
        axes.plot([], [], label="consensus distance", **dotted)
    axes.legend()
    return figure
