"""Figures of an evaluation: functions of arrays that return matplotlib figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from features.columns import HIGH_LEVEL, HLF_NAMES
from models.evaluation.measurements import ScoredEvents
from models.evaluation.metrics import RocCurve
from models.evaluation.style import COLOURS, DASHES, SMALL, PlotLabels, new_figure, new_grid, plain

Floats = NDArray[np.float64]

_SCORE_BINS: Final = 20
#: Panels per row in the figure of the efficiencies.
_COLUMNS: Final = 3


def plot_roc(curves: Mapping[str, RocCurve], labels: PlotLabels) -> Figure:
    """ROC curves in the HEP form: background efficiency on a logarithmic axis against signal efficiency."""
    figure, axes = new_figure(labels)
    lowest = 1.0
    for index, (name, curve) in enumerate(curves.items()):
        positive = curve.background_efficiency > 0
        lowest = min(lowest, curve.background_efficiency[positive].min())
        axes.plot(
            curve.signal_efficiency[positive],
            curve.background_efficiency[positive],
            color=COLOURS[index % len(COLOURS)],
            linestyle=DASHES[index % len(DASHES)],
            label=plain(name),
        )
    chance = np.geomspace(lowest / 2, 1, 200)
    axes.plot(chance, chance, color="#717581", linewidth=1, label="by chance")
    axes.set(
        xlabel="Signal efficiency",
        ylabel="Background efficiency",
        yscale="log",
        xlim=(0, 1),
        ylim=(lowest / 2, 1.5),
    )
    axes.legend(loc="center", fontsize="small", frameon=True)
    return figure


def plot_confusion(matrix: NDArray[np.float64], classes: Sequence[str], labels: PlotLabels) -> Figure:
    """Confusion matrix: rows are true classes and add up to 1, columns are predicted classes."""
    figure, axes = new_figure(labels)
    axes.imshow(matrix, vmin=0, vmax=1, cmap="Blues")
    for (row, column), value in np.ndenumerate(matrix):
        colour = "white" if value > 0.5 else "black"
        axes.text(column, row, f"{value:.3f}", ha="center", va="center", color=colour)
    ticks = range(len(classes))
    names = [plain(name) for name in classes]
    axes.set_xticks(ticks, names)
    axes.set_yticks(ticks, names)
    axes.tick_params(which="both", length=0)
    axes.set(xlabel="Predicted class", ylabel="True class (each row adds up to 1)")
    return figure


def plot_scores(
    test: ScoredEvents,
    train: ScoredEvents | None,
    tests: Mapping[str, Mapping[str, Any]],
    classes: Sequence[str],
    labels: PlotLabels,
) -> Figure:
    """Distribution of each output of the network for the events of each true class; one panel per output.

    Args:
        test: Events drawn as points with statistical errors.
        train: Events drawn as lines; None for no lines.
        tests: Two-sample test of the two splits for each output and true class; the legend shows its p-value.
        classes: Names of the classes.
        labels: Words on the plot.
    """
    figure, first = new_figure(labels, panels=len(classes))
    edges = np.linspace(0, 1, _SCORE_BINS + 1)
    centres = (edges[1:] + edges[:-1]) / 2
    for output, axes in enumerate(figure.axes):
        for index, name in enumerate(classes):
            colour, dashes = COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)]
            heights, errors = _shares(test, output, index, edges)
            axes.errorbar(centres, heights, errors, color=colour, marker="o", markersize=4, linestyle="", elinewidth=1)
            words = f"true {plain(name)}"
            if train is not None:
                words += f" (p = {tests[classes[output]][name]['p_value']:.2g})"
                heights, _ = _shares(train, output, index, edges)
            axes.stairs(heights, edges, color=colour, linestyle=dashes, linewidth=2, label=words)
        axes.set(xlabel=f"Probability of {plain(classes[output])}", xlim=(0, 1))
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        title = "lines: training, points: test" if train is not None else None
        axes.legend(fontsize=SMALL - 3, title=title, title_fontsize=SMALL - 3)
    first.set_ylabel(f"Share of events / {1 / _SCORE_BINS:g}")
    return figure


def _shares(events: ScoredEvents, output: int, truth: int, edges: NDArray[np.float64]) -> tuple[Floats, Floats]:
    """Share of a class's events in each bin of an output, and its error."""
    chosen = events.labels == truth
    scores, weights = events.probabilities[chosen, output], events.weights[chosen]
    heights, _ = np.histogram(scores, edges, weights=weights)
    squares, _ = np.histogram(scores, edges, weights=np.square(weights))
    return heights / weights.sum(), np.sqrt(squares) / abs(weights.sum())


def plot_calibration(found: Mapping[str, Any], labels: PlotLabels) -> Figure:
    """Observed share of a class against its predicted probability; one panel per class.

    Args:
        found: `bins` and `error` by class, as in `models.evaluation.measurements`.
        labels: Words on the plot.
    """
    figure, first = new_figure(labels, panels=len(found))
    for axes, (name, content) in zip(figure.axes, found.items(), strict=True):
        axes.plot([0, 1], [0, 1], color="#717581", linewidth=1)
        across = [each["mean_predicted"] for each in content["bins"]]
        observed = [each["observed"] for each in content["bins"]]
        axes.errorbar(across, *_values_and_bars(observed), color=COLOURS[0], marker="o", linestyle="", capsize=3)
        axes.text(0.05, 0.94, f"mean distance {content['error']:.3f}", transform=axes.transAxes, fontsize=SMALL)
        axes.set(xlabel=f"Probability of {plain(name)}", xlim=(0, 1), ylim=(-0.05, 1.05))
    first.set_ylabel("Observed share (classes weighted equally)")
    return figure


def plot_efficiencies(found: Mapping[str, Any], signal: str, wanted: float, labels: PlotLabels) -> Figure:
    """Efficiency of each class at a working point against kinematic variables.

    Args:
        found: `edges` and `classes` by variable, as in `models.evaluation.measurements`.
        signal: Name of the signal class.
        wanted: Signal efficiency at the working point.
        labels: Words on the plot.
    """
    figure, panels = new_grid(labels, panels=len(found), columns=_COLUMNS)
    for axes, (variable, content) in zip(panels, found.items(), strict=True):
        edges = np.array(content["edges"])
        for place, (name, bins) in enumerate(content["classes"].items()):
            measured = [index for index, each in enumerate(bins) if each is not None]
            axes.errorbar(
                (edges[1:] + edges[:-1])[measured] / 2,
                *_values_and_bars([bins[index] for index in measured]),
                xerr=np.diff(edges)[measured] / 2,
                color=COLOURS[place % len(COLOURS)],
                marker="os^vD"[place % 5],
                markersize=4,
                linestyle="",
                elinewidth=1,
                label=plain(name),
            )
        axes.axhline(wanted, color="#717581", linewidth=1)
        axes.set_xlabel(HIGH_LEVEL[HLF_NAMES.index(variable)].label)
        axes.set(xlim=(edges[0], edges[-1]), ylim=(-0.05, 1.09))
    for axes in panels[::_COLUMNS]:
        axes.set_ylabel(f"Efficiency at {100 * wanted:g}% {plain(signal)}")
    panels[-1].legend(fontsize="small")
    return figure


def _values_and_bars(found: Sequence[Mapping[str, float]]) -> tuple[list[float], list[list[float]]]:
    """Values, and lengths of the bars down and up; at least 0, even if negative weights push a value out of its bar."""
    values = [each["value"] for each in found]
    down = [max(0.0, each["value"] - each["low"]) for each in found]
    up = [max(0.0, each["high"] - each["value"]) for each in found]
    return values, [down, up]


def plot_importance(found: Mapping[str, Mapping[str, Mapping[str, float]]], signal: str, labels: PlotLabels) -> Figure:
    """Loss of area under the ROC curve when a feature is shuffled, by model; the most important feature first."""
    figure, axes = new_figure(labels)
    first = next(iter(found.values()))
    features = sorted(first, key=lambda name: first[name]["value"])
    height = 0.8 / len(found)
    for place, (name, values) in enumerate(found.items()):
        axes.barh(
            np.arange(len(features)) + 0.4 - height * (place + 0.5),
            [values[feature]["value"] for feature in features],
            height,
            xerr=[values[feature]["error"] for feature in features],
            color=COLOURS[place % len(COLOURS)],
            error_kw={"elinewidth": 1},
            label=plain(name),
        )
    axes.set_yticks(np.arange(len(features)), features, fontsize="x-small")
    axes.tick_params(axis="y", which="both", length=0)
    axes.set_xlabel(f"AUC of {plain(signal)} lost when shuffled")
    axes.legend(loc="lower right", fontsize="small")
    return figure


def plot_learning_curve(history: Sequence[Mapping[str, Any]], labels: PlotLabels) -> Figure:
    """Loss of both splits against the epoch, and the epoch of the kept model; for several workers their distance.

    Args:
        history: Records of rank 0, one per epoch.
        labels: Words on the plot.
    """
    apart = [record.get("consensus_distance", 0.0) for record in history]
    differs = max(apart) > 0
    figure, axes = new_figure(labels)
    epochs = [record["epoch"] + 1 for record in history]
    validation = [record["val_loss"] for record in history]
    axes.plot(
        epochs,
        [record["train_loss"] for record in history],
        color=COLOURS[0],
        linestyle="--",
        label="training",
    )
    axes.plot(epochs, validation, color=COLOURS[1], label="validation")
    best = int(np.argmin(validation))
    axes.plot(
        epochs[best],
        validation[best],
        marker="o",
        linestyle="",
        color=COLOURS[1],
        label=f"kept: epoch {epochs[best]}",
    )
    axes.set(xlabel="Epoch", ylabel="Weighted cross-entropy", xlim=(0.5, epochs[-1] + 0.5))
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis.set_minor_locator(MaxNLocator(1))
    if differs:
        other = axes.twinx()
        other.plot(epochs, apart, color=COLOURS[3], linestyle=":", label="consensus distance")
        other.set_ylabel("Consensus distance")
        other.set_ylim(bottom=0)
        axes.plot([], [], color=COLOURS[3], linestyle=":", label="consensus distance")
    axes.legend()
    return figure
