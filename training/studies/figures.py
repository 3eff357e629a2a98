"""Figures of a comparison: functions of its results that return matplotlib figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator, StrMethodFormatter
from numpy.typing import NDArray

from models.evaluation.style import COLOURS, DASHES, PlotLabels, new_figure, new_grid
from training.studies.results import Comparison, Floats
from training.studies.timing import CLOUD, THIS_MACHINE
from training.studies.variants import ALONE, METHODS, TableColumn, Variant, title_of

_COLOUR: Final = dict(zip(METHODS, COLOURS, strict=False))
_DASH: Final = dict(zip(TableColumn, DASHES, strict=False))
_METHOD_DASH: Final = dict(zip(METHODS, DASHES, strict=False))
_FEW_DECADES: Final = 300
#: Ratio of highest to lowest value below which a logarithmic axis has room for only one or two of its labels.
_NARROW: Final = 10
_MARKER: Final = dict(zip(METHODS, "osD", strict=True))
_COLUMN_COLOUR: Final = dict(zip(TableColumn, (COLOURS[4], COLOURS[3], COLOURS[5]), strict=True))
_BAND: Final = 0.2
#: Percentage of the values of all curves below the axis: the first epochs.
_BELOW_AXIS: Final = 4


class Times(NamedTuple):
    """Times of epochs, one number per epoch [s]."""

    communicate: Floats
    seconds: Floats


def plot_epoch_times(times: Mapping[str, Times], labels: PlotLabels) -> Figure:
    """Figure 4.1: times of communication and of whole epochs, as boxes (quartiles; whiskers 5 and 95 %)."""
    figure, first = new_figure(labels, panels=2)
    for axes, name, words in zip(figure.axes, Times._fields, ("communicating", "in all"), strict=True):
        for place, (method, found) in enumerate(times.items()):
            boxes = axes.boxplot(
                getattr(found, name),
                positions=[place],
                widths=0.55,
                orientation="horizontal",
                whis=(5, 95),
                showfliers=False,
                patch_artist=True,
                medianprops={"color": "black"},
            )
            boxes["boxes"][0].set(facecolor=_COLOUR[method], alpha=0.7)
        axes.set_xlabel(f"Time per epoch, {words} [s]")
        low, high = axes.dataLim.intervalx
        if high < _NARROW * low:
            axes.xaxis.set_major_locator(MaxNLocator(5))
        else:
            axes.set_xscale("log")
            _decimal_ticks(axes, "x")
        axes.tick_params(axis="y", which="both", length=0)
        axes.yaxis.set_minor_locator(NullLocator())
    first.set_yticks(range(len(times)), [title_of(method) for method in times])
    first.invert_yaxis()
    return figure


def plot_scaling(measured: Sequence[dict[str, Any]], scaling: Sequence[dict[str, Any]], labels: PlotLabels) -> Figure:
    """Figure 4.2: speed-up and time per batch against workers; points measured, lines simulated."""
    figure, panels = new_grid(labels, panels=4, columns=2)
    for row, (network, letters) in enumerate(((THIS_MACHINE, "ab"), (CLOUD, "cd"))):
        simulated = next(each for each in scaling if each["network"] == network)
        speed_up, batch = panels[2 * row : 2 * row + 2]
        ideal = [1, max(simulated["workers"])]
        speed_up.plot(ideal, ideal, color="#717581", linewidth=1, label="ideal")
        alone = simulated["samples_per_second"][simulated["method"].index(ALONE)]
        alone_here = _alone(measured)["samples_per_second"]
        for method in METHODS:
            chosen = [place for place, name in enumerate(simulated["method"]) if name == method]
            workers, rate, seconds = (
                np.array([simulated[name][place] for place in chosen])
                for name in ("workers", "samples_per_second", "seconds_per_batch")
            )
            look: dict[str, Any] = {"color": _COLOUR[method], "linestyle": _METHOD_DASH[method]}
            speed_up.plot(workers, rate / alone, label=f"{title_of(method)}, simulated", **look)
            batch.plot(workers, 1e3 * seconds, **look)
            if network == THIS_MACHINE:
                points = [each for each in measured if each["method"] == method]
                style: dict[str, Any] = {"color": _COLOUR[method], "marker": _MARKER[method], "linestyle": ""}
                counts = [each["workers"] for each in points]
                rates = [each["samples_per_second"] / alone_here for each in points]
                speed_up.plot(counts, rates, label=f"{title_of(method)}, measured", **style)
                batch.plot(counts, [1e3 * each["seconds_per_batch"] for each in points], **style)
        if network == THIS_MACHINE:
            star: dict[str, Any] = {"marker": "*", "color": "black", "linestyle": "", "markersize": 10}
            speed_up.plot(1, 1, label="SGD, one worker, measured", **star)
            batch.plot(1, 1e3 * _alone(measured)["seconds_per_batch"], **star)
        _finish_scaling(speed_up, batch, network, letters)
    handles, words = panels[0].get_legend_handles_labels()
    figure.legend(handles, words, loc="outside lower center", ncols=3, fontsize="x-small")
    return figure


def _alone(measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One worker alone with the batch size of the comparison, the smaller of the two measured ones."""
    return min((each for each in measured if each["workers"] == 1), key=lambda each: int(each["batch_size"]))


def _finish_scaling(speed_up: Axes, batch: Axes, network: str, letters: str) -> None:
    for axes, letter in zip((speed_up, batch), letters, strict=True):
        axes.set(xlabel="Workers", yscale="log")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
        axes.text(0.07, 0.92, f"({letter}) {network}", transform=axes.transAxes, ha="left", va="top", fontsize=9)
        _decimal_ticks(axes, "y")
    speed_up.set_ylabel("Speed-up t(1) / t(n)")
    batch.set_ylabel("Time per batch [ms]")


def _decimal_ticks(axes: Axes, which: Literal["x", "y"]) -> None:
    """1, 2 and 5 in each decade of a logarithmic axis, in plain digits."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < _FEW_DECADES * low else (1,)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


class Convergence(NamedTuple):
    """Validation accuracies of runs, and when their epochs end: (num_seeds, num_epochs) both."""

    accuracy: Floats
    ends: Floats
    """[s]"""


def plot_convergence(found: Mapping[Variant, Convergence], time_label: str, labels: PlotLabels) -> Figure:
    """Figures 4.8 and 4.10: validation accuracy against epochs and against time, both of the same runs."""
    figure, first = new_figure(labels, panels=2)
    over_time = figure.axes[1]
    for variant, (accuracy, ends) in found.items():
        epochs = np.arange(1, accuracy.shape[1] + 1)
        look = _Look(_COLOUR[variant.algorithm], _METHOD_DASH[variant.algorithm])
        _curve(first, epochs, accuracy, variant, look)
        _curve(over_time, ends.mean(axis=0), accuracy, variant, look)
    _epochs_across(first)
    _leave_out_first_epochs(first, [each.accuracy for each in found.values()])
    over_time.set(xlabel=time_label)
    over_time.set_xlim(left=0)
    first.set_ylabel("Validation accuracy")
    over_time.legend(fontsize="small", loc="lower right")
    return figure


def plot_slowmo(comparison: Comparison, model: str, labels: PlotLabels) -> Figure:
    """Figures 4.9 and 4.11: the effect of slow momentum on AD-PSGD and SwarmSGD."""
    figure, first = new_figure(labels, panels=2)
    drawn: list[Floats] = []
    for axes, method in zip(figure.axes, METHODS[1:], strict=True):
        for column in TableColumn:
            variant = Variant(method, column)
            found = comparison.curves(model, variant, "val_accuracy")
            drawn.append(found)
            look = _Look(_COLUMN_COLOUR[column], _DASH[column])
            _curve(axes, np.arange(1, found.shape[1] + 1), found, variant, look)
        _epochs_across(axes)
        axes.legend(fontsize="small", loc="lower right")
    _leave_out_first_epochs(first, drawn)
    first.set_ylabel("Validation accuracy")
    return figure


def plot_consensus(comparison: Comparison, labels: PlotLabels) -> Figure:
    """Consensus distance of the workers at the end of each epoch; one panel per network."""
    figure, first = new_figure(labels, panels=len(comparison.models))
    medians = []
    for axes, model in zip(figure.axes, comparison.models, strict=True):
        for variant in comparison.variants(model):
            found = comparison.curves(model, variant, "consensus_distance")
            # Methods that average all gradients have a distance of 0, which a logarithmic axis cannot show.
            if np.median(found) > 0:
                medians.append(float(np.median(found)))
                look = _Look(_COLOUR[variant.algorithm], _DASH[variant.column])
                _curve(axes, np.arange(1, found.shape[1] + 1), found, variant, look)
        axes.set_yscale("log")
        _epochs_across(axes)
        axes.text(0.97, 0.97, model, transform=axes.transAxes, ha="right", va="top")
    first.set_ylabel("Consensus distance")
    if medians:
        first.set_ylim(bottom=min(medians) / 10)
        handles, words = first.get_legend_handles_labels()
        figure.legend(handles, words, loc="outside lower center", ncols=3, fontsize="x-small")
    return figure


class _Look(NamedTuple):
    """Colour and style of a curve."""

    colour: str
    dashes: Any


def _curve(axes: Axes, across: NDArray[Any], values: Floats, variant: Variant, look: _Look) -> None:
    """Draw the mean over the seeds, with a band of their standard deviation."""
    mean = values.mean(axis=0)
    axes.plot(across, mean, color=look.colour, linestyle=look.dashes, linewidth=2, label=variant.title)
    if len(values) > 1:
        spread = values.std(axis=0, ddof=1)
        axes.fill_between(across, mean - spread, mean + spread, color=look.colour, alpha=_BAND, linewidth=0)


def _leave_out_first_epochs(axes: Axes, drawn: Sequence[Floats]) -> None:
    """Begin the axis above the lowest values, so that the end of the training is visible."""
    means = np.concatenate([values.mean(axis=0) for values in drawn])
    low, high = np.percentile(means, _BELOW_AXIS), max(values.mean(axis=0).max() for values in drawn)
    room = 0.15 * (high - low)
    if room:
        axes.set_ylim(low - room, high + room)


def _epochs_across(axes: Axes) -> None:
    axes.set_xlabel("Epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis.set_minor_locator(MaxNLocator(1))
