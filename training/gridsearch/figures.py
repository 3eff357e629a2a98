"""The figures of a grid search: accuracy against cost, and speed-up on several task slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from models.evaluation.style import COLOURS, GREY, PlotLabels, new_figure, styled
from training.gridsearch.results import (
    Cost,
    Score,
    latency_cost,
    parameter_cost,
    pareto_front,
    rank_scores,
)

_COSTS: Final[dict[str, Callable[[Score], Cost]]] = {
    "Parameters": parameter_cost,
    "Time for one event [µs]": latency_cost,
}


@styled
def plot_pareto(scores: Sequence[Score], labels: PlotLabels) -> Figure:
    """Plot validation accuracy against the number of parameters and against the inference time.

    Each panel shows all settings and its own Pareto front, the settings that no cheaper one equals.
    Only the front has bars: standard errors of the cost, and of the difference to the best setting.
    """
    figure, first_axes = new_figure(labels, panels=len(_COSTS))
    for axes, (label, cost) in zip(figure.axes, _COSTS.items(), strict=True):
        _plot_settings_and_front(axes, scores, cost)
        axes.set(xlabel=label)
        axes.margins(x=0.1, y=0.1)
    first_axes.set(ylabel="Validation accuracy, mean over the folds", xscale="log")
    first_axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    first_axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    first_axes.xaxis.set_minor_formatter(NullFormatter())
    return figure


def _plot_settings_and_front(
    axes: Axes, scores: Sequence[Score], cost: Callable[[Score], Cost]
) -> None:
    """Draw all settings as points, and the front as a numbered line of steps, with a legend."""
    axes.plot(
        [cost(score).value for score in scores],
        [score.accuracy for score in scores],
        "o",
        color=COLOURS[4],
        markersize=4,
        alpha=0.7,
        label="settings tried",
    )
    best = rank_scores(scores)[0]
    front = pareto_front(scores, cost)
    axes.errorbar(
        [cost(score).value for score in front],
        [score.accuracy for score in front],
        xerr=[cost(score).error for score in front],
        yerr=[best.lead_over(score).error for score in front],
        color=COLOURS[0],
        marker="D",
        markersize=6,
        capsize=3,
        drawstyle="steps-post",
        label="Pareto front",
    )
    # Points of the front are close, so they get numbers. The legend names the layers of each by an
    # empty plot.
    for front_number, score in enumerate(front, start=1):
        axes.annotate(
            str(front_number),
            (cost(score).value, score.accuracy),
            xytext=(-4, 6),
            textcoords="offset points",
            ha="right",
            fontsize="small",
        )
        layers = "-".join(map(str, score.trial.hidden))
        axes.plot([], [], linestyle="", label=f"{front_number}: {layers}")
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, handlelength=1, fontsize="x-small"
    )


@styled
def plot_speed_up(
    expected: Mapping[int, float], measured: tuple[int, float] | None, labels: PlotLabels
) -> Figure:
    """Plot the speed-up of the search on several task slots over one slot.

    `expected`: speed-up by slots, from the times of the trainings alone (`speed_ups`).
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
