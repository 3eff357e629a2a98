"""Figures of an evaluation: functions of arrays that return matplotlib figures, in mplhep's style.

Colours are those of Petroff (2021), chosen for colour-blind readers; lines differ in dashes too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import matplotlib as mpl
import mplhep
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from models.metrics import RocCurve

_COLOURS: Final = ("#3f90da", "#bd1f01", "#ffa90e", "#832db6", "#94a4a2", "#a96b59")
_DASHES: Final = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (1, 1)))
_SCORE_BINS: Final = 20


class PlotLabels(NamedTuple):
    """Words on every plot."""

    experiment: str
    sample_note: str
    energy_tev: float


def plot_roc(curves: Mapping[str, RocCurve], labels: PlotLabels) -> Figure:
    """ROC curves in the HEP form: signal efficiency across, background efficiency up on a logarithmic axis."""
    figure, axes = _figure(labels)
    lowest = 1.0
    for index, (name, curve) in enumerate(curves.items()):
        positive = curve.background_efficiency > 0
        lowest = min(lowest, curve.background_efficiency[positive].min())
        axes.plot(
            curve.signal_efficiency[positive],
            curve.background_efficiency[positive],
            color=_COLOURS[index % len(_COLOURS)],
            linestyle=_DASHES[index % len(_DASHES)],
            label=_plain(name),
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
    figure, axes = _figure(labels)
    axes.imshow(matrix, vmin=0, vmax=1, cmap="Blues")
    for (row, column), value in np.ndenumerate(matrix):
        colour = "white" if value > 0.5 else "black"
        axes.text(column, row, f"{value:.3f}", ha="center", va="center", color=colour)
    ticks = range(len(classes))
    names = [_plain(name) for name in classes]
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
    figure, first = _figure(labels, panels=len(classes))
    panels = figure.axes
    edges = np.linspace(0, 1, _SCORE_BINS + 1)
    for output, axes in enumerate(panels):
        for index, name in enumerate(classes):
            chosen = truth == index
            heights, _ = np.histogram(scores[chosen, output], edges, weights=weights[chosen])
            axes.stairs(
                heights / weights[chosen].sum(),
                edges,
                color=_COLOURS[index % len(_COLOURS)],
                linestyle=_DASHES[index % len(_DASHES)],
                linewidth=2,
                label=f"true {_plain(name)}",
            )
        axes.set(xlabel=f"Probability of {_plain(classes[output])}", xlim=(0, 1))
    first.set_ylabel(f"Share of events / {1 / _SCORE_BINS:g}")
    panels[-1].legend(fontsize="x-small")
    return figure


def plot_learning_curve(history: Sequence[dict[str, Any]], labels: PlotLabels) -> Figure:
    """Loss of both splits against the epoch, and the epoch whose model was kept."""
    figure, axes = _figure(labels)
    epochs = [record["epoch"] + 1 for record in history]
    validation = [record["val_loss"] for record in history]
    axes.plot(
        epochs,
        [record["train_loss"] for record in history],
        color=_COLOURS[0],
        linestyle="--",
        label="training",
    )
    axes.plot(epochs, validation, color=_COLOURS[1], label="validation")
    best = int(np.argmin(validation))
    axes.plot(
        epochs[best],
        validation[best],
        marker="o",
        linestyle="",
        color=_COLOURS[1],
        label=f"kept: epoch {epochs[best]}",
    )
    axes.set(xlabel="Epoch", ylabel="Weighted cross-entropy", xlim=(0.5, epochs[-1] + 0.5))
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis.set_minor_locator(MaxNLocator(1))
    axes.legend()
    return figure


def save_figure(figure: Figure, stem: Path) -> None:
    """Write `stem.png` and `stem.pdf`; no creation time inside, so that the same figure gives the same bytes."""
    figure.savefig(stem.with_suffix(".png"), dpi=110)
    figure.savefig(stem.with_suffix(".pdf"), metadata={"CreationDate": None})


def _figure(labels: PlotLabels, *, panels: int = 1) -> tuple[Figure, Axes]:
    """A figure with the experiment, the sample and the energy above its (first) axes. No pyplot: no global state."""
    with mpl.rc_context(_style()):
        figure = Figure(figsize=(1.5 + 5.5 * panels, 6.2), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, panels, sharey=True, squeeze=False)[0]
    words = f"{labels.experiment} {labels.sample_note}".strip()
    axes[0].set_title(words, loc="left", fontsize="medium", fontstyle="italic", parse_math=False)
    axes[-1].set_title(f"{labels.energy_tev:g} TeV", loc="right", fontsize="medium")
    return figure, axes[0]


def _plain(words: str) -> str:
    """Words that matplotlib does not take for a formula."""
    return words.replace("$", r"\$")


def _style() -> Any:
    """The CMS style of mplhep, smaller, in matplotlib's own font (mplhep's may be missing)."""
    return {
        **mplhep.style.CMS,
        "font.size": 15,
        "font.sans-serif": ["DejaVu Sans"],
        "mathtext.fontset": "dejavusans",
    }
