"""The figures of a grid search: accuracy against cost, and speed-up on several task slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from models.evaluation.style import COLOURS, GREY, PlotLabels, new_figure, styled
from training.gridsearch.results import Cost, Score, latency, num_parameters, pareto_front, ranked

_COSTS: Final[dict[str, Callable[[Score], Cost]]] = {
    "Parameters": num_parameters,
    "Time for one event [µs]": latency,
}


@styled
def plot_pareto(scores: Sequence[Score], labels: PlotLabels) -> Figure:
    """Validation accuracy against the number of parameters and against the inference time, each with its front.

    The figure shows all settings of an architecture. Bars, on the front only: standard errors of the cost, and of the
    difference to the best setting.
    """
    figure, first = new_figure(labels, panels=len(_COSTS))
    for axes, (words, cost) in zip(figure.axes, _COSTS.items(), strict=True):
        _plot_front(axes, scores, cost)
        axes.set(xlabel=words)
        axes.margins(x=0.1, y=0.1)
    first.set(ylabel="Validation accuracy, mean over the folds", xscale="log")
    first.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    first.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    first.xaxis.set_minor_formatter(NullFormatter())
    return figure


def _plot_front(axes: Axes, scores: Sequence[Score], cost: Callable[[Score], Cost]) -> None:
    axes.plot(
        [cost(each).value for each in scores],
        [each.accuracy for each in scores],
        "o",
        color=COLOURS[4],
        markersize=4,
        alpha=0.7,
        label="settings tried",
    )
    front = pareto_front(scores, cost)
    axes.errorbar(
        [cost(each).value for each in front],
        [each.accuracy for each in front],
        xerr=[cost(each).error for each in front],
        yerr=[ranked(scores)[0].ahead_of(each).error for each in front],
        color=COLOURS[0],
        marker="D",
        markersize=6,
        capsize=3,
        drawstyle="steps-post",
        label="Pareto front",
    )
    # Numbers on the front, and their layers below the panel: neighbours on the front are close.
    for number, each in enumerate(front, start=1):
        axes.annotate(
            str(number),
            (cost(each).value, each.accuracy),
            xytext=(-4, 6),
            textcoords="offset points",
            ha="right",
            fontsize="small",
        )
        axes.plot([], [], linestyle="", label=f"{number}: {'-'.join(map(str, each.trial.hidden))}")
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, handlelength=1, fontsize="x-small"
    )


@styled
def plot_speed_up(
    expected: Mapping[int, float], measured: tuple[int, float] | None, labels: PlotLabels
) -> Figure:
    """Speed-up of the search on several task slots over one slot.

    `expected`: speed-up by slots, from the measured times of the trainings alone (`training.gridsearch.results`).
    `measured`: slots and speed-up of this search; None if an earlier search did parts of it.
    """
    figure, axes = new_figure(labels)
    slots = list(expected)
    axes.plot(slots, slots, color=GREY, linewidth=1, label="ideal")
    axes.plot(
        slots,
        list(expected.values()),
        "o--",
        color=COLOURS[0],
        label="from the times of the trainings",
    )
    if measured is not None:
        axes.plot(
            *measured, "D", color=COLOURS[1], markersize=10, label="this search, start-up included"
        )
    axes.set(xlabel="Task slots", ylabel="Speed-up", xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(base=2))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.legend()
    return figure
