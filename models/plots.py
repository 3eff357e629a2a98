"""Figures of an evaluation: functions of arrays that return matplotlib figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from models.metrics import RocCurve
from models.style import COLOURS, DASHES, PlotLabels, new_figure, plain

_SCORE_BINS: Final = 20


def plot_roc(curves: Mapping[str, RocCurve], labels: PlotLabels) -> Figure:
    """ROC curves in the HEP form: signal efficiency across, background efficiency up on a logarithmic axis."""
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
    """Confusion matrix: true class down, predicted class across, rows add up to 1."""
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
    truth: NDArray[np.int64],
    scores: NDArray[np.float64],
    weights: NDArray[np.float64],
    classes: Sequence[str],
    labels: PlotLabels,
) -> Figure:
    """How each output of the network is distributed for events of each true class; one panel per output."""
    figure, first = new_figure(labels, panels=len(classes))
    panels = figure.axes
    edges = np.linspace(0, 1, _SCORE_BINS + 1)
    for output, axes in enumerate(panels):
        for index, name in enumerate(classes):
            chosen = truth == index
            heights, _ = np.histogram(scores[chosen, output], edges, weights=weights[chosen])
            axes.stairs(
                heights / weights[chosen].sum(),
                edges,
                color=COLOURS[index % len(COLOURS)],
                linestyle=DASHES[index % len(DASHES)],
                linewidth=2,
                label=f"true {plain(name)}",
            )
        axes.set(xlabel=f"Probability of {plain(classes[output])}", xlim=(0, 1))
    first.set_ylabel(f"Share of events / {1 / _SCORE_BINS:g}")
    panels[-1].legend(fontsize="x-small")
    return figure


def plot_learning_curve(history: Sequence[dict[str, Any]], labels: PlotLabels) -> Figure:
    """Loss of both splits against the epoch, and the epoch whose model was kept."""
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
    axes.legend()
    return figure
