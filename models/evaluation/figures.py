"""Figures of an evaluation: functions of arrays that return matplotlib figures."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

import hist
import mplhep
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, StrMethodFormatter
from numpy.typing import NDArray

from features.columns import HIGH_LEVEL, hlf_names
from models.evaluation.curves import EfficiencyCurve, ratio, weighted_histogram
from models.evaluation.intervals import Floats, WeightSums
from models.evaluation.rounding import NOT_MEASURABLE, with_interval
from models.evaluation.scored_events import ScoredEvents
from models.evaluation.style import (
    COLOURS,
    GREY,
    PlotLabels,
    axis_label,
    legend_below,
    line_look,
    new_figure,
    new_grid,
    plain,
    point_look,
    show_positive,
    styled,
    symbol_of,
)

_SCORE_BINS: Final = 20
#: Panels per row in the figure of the efficiencies.
_COLUMNS: Final = 3
#: Letters of a line over all panels.
_LETTERS: Final = 110
#: Background efficiency that the curves reach, where events suffice.
_REACHED: Final = 1e-3
#: Range of the panels of ratios.
_RATIOS: Final = (0.2, 5.0)

Curves = Mapping[str, Mapping[str, EfficiencyCurve]]


@styled
def plot_confusion(found: Mapping[str, Any], labels: PlotLabels) -> Figure:
    """Confusion matrix: rows are true classes and columns predicted classes, as shares of a row and as events."""
    classes, shares = found["classes"], np.array(found["by_truth"])
    figure, first = new_figure(labels, panels=2, height=5.6)
    names = [plain(name) for name in classes]
    cells = {"shares of a row": ("{:.3f}", shares), "events": ("{:,}", np.array(found["events"]))}
    for axes, (words, (form, values)) in zip(figure.axes, cells.items(), strict=True):
        axes.imshow(shares, vmin=0, vmax=1, cmap="Blues", aspect="auto")
        for (row, column), value in np.ndenumerate(values):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, form.format(value), ha="center", va="center", color=colour)
        axes.set_xticks(range(len(classes)), names)
        axes.tick_params(which="both", length=0)
        axes.set_xlabel(f"Predicted class ({words})")
    first.set_yticks(range(len(classes)), names)
    first.set_ylabel("True class")
    return figure


@styled
def plot_scores(
    test: ScoredEvents,
    train: ScoredEvents | None,
    tests: Mapping[str, Mapping[str, Any]],
    classes: Sequence[str],
    outputs: Sequence[int],
    labels: PlotLabels,
) -> Figure:
    """Distribution of outputs of the network for the events of each true class; one panel per output.

    Test events are points with statistical errors; classes stand beside each other within a bin. Training events, if
    there are any, are lines. `tests` has the two-sample test of both for each output and true class.
    """
    figure, first = new_figure(labels, panels=len(outputs))
    edges = np.linspace(0, 1, _SCORE_BINS + 1)
    shown: list[Floats] = []
    for output, axes in zip(outputs, figure.axes, strict=True):
        for index, name in enumerate(classes):
            centres = edges[:-1] + (index + 1) / (len(classes) + 1) / _SCORE_BINS
            shares = _shares(test, output, index, edges)
            shown += _draw_points(
                axes, centres, *shares, label=f"true {plain(name)}, test", **point_look(index)
            )
            if train is not None:
                heights, _ = _shares(train, output, index, edges)
                words = f"true {plain(name)}, training"
                axes.stairs(heights, edges, linewidth=1.5, label=words, **line_look(index))
                shown.append(heights)
                p_value = tests[classes[output]][name]["p_value"]
                compared = NOT_MEASURABLE if p_value is None else f"p = {p_value:.2g}"
                place: dict[str, Any] = {"transform": axes.transAxes, "ha": "center", "va": "top"}
                axes.text(
                    0.5,
                    0.97 - 0.06 * index,
                    f"{plain(name)}: {compared}",
                    fontsize="x-small",
                    **place,
                )
        axes.set(xlabel=f"Probability of {plain(classes[output])}", xlim=(0, 1))
    show_positive(first, shown, room=12)
    first.set_ylabel(f"Share of events / {1 / _SCORE_BINS:g}")
    legend_below(figure, first, columns=3)
    return figure


def _shares(events: ScoredEvents, output: int, truth: int, edges: Floats) -> tuple[Floats, Floats]:
    """Share of a class's events in each bin of an output, and its error; not numbers without weight."""
    chosen = events.labels == truth
    weights = events.weights[chosen]
    heights, errors = weighted_histogram(events.probabilities[chosen, output], edges, weights)
    if not WeightSums.of(weights).is_positive:
        return np.full_like(heights, np.nan), np.full_like(errors, np.nan)
    return heights / weights.sum(), errors / weights.sum()


def _draw_points(
    axes: Axes, across: Floats, heights: Floats, errors: Floats, **look: Any
) -> list[Floats]:
    """Draw the heights above 0 with errors on a logarithmic axis; returns the ends of the bars."""
    there = heights > 0
    # A bar down to 0 has no end.
    down, up = np.minimum(errors, 0.6 * heights)[there], errors[there]
    axes.errorbar(across[there], heights[there], [down, up], **look)
    return [heights[there] - down, heights[there] + up]


@styled
def plot_discriminant(
    events: ScoredEvents,
    score: Floats,
    expected: Mapping[int, float],
    signals: Sequence[int],
    classes: Sequence[str],
    found: Mapping[str, Any],
    labels: PlotLabels,
) -> Figure:
    """Events against the logarithm of the score s / b, and the significance behind each cut below them.

    The (num_events,) score is s / (s + b), `expected` the number of events of each class, and `found` the
    `significance` of `models.evaluation.measurements`.
    """
    figure, main = new_figure(labels, height=7.4, ratios=(2, 1))
    below, odds = figure.axes[1], log_odds(score)
    axis = hist.axis.Regular(_SCORE_BINS, *odds_range(odds), flow=True)
    totals = np.bincount(events.labels, events.weights, len(classes))
    shown: list[Floats] = []
    backgrounds = [label for label in range(len(classes)) if label not in signals]
    for label in [*backgrounds, *signals]:
        if totals[label] <= 0:
            continue
        chosen, look = events.labels == label, line_look(label)
        filled: Any = hist.Hist(axis, storage=hist.storage.Weight())
        filled.fill(odds[chosen], weight=events.weights[chosen] * expected[label] / totals[label])
        mplhep.histplot(
            filled, ax=main, label=plain(classes[label]), flow="show", yerr=False, **look
        )
        bars = {"color": look["color"], "linestyle": "", "elinewidth": 1}
        shown += _draw_points(
            main, axis.centers, filled.values(), np.sqrt(filled.variances()), **bars
        )
        shown.append(filled.values(flow=True))
    show_positive(main, shown, room=6)
    main.set(xlabel="", ylabel=found["of"].capitalize())
    cuts = log_odds(np.array(found["threshold"]))
    systematic = f", background ± {100 * found['uncertainty']:g} %" if found["uncertainty"] else ""
    below.plot(cuts, found["simple"], color=COLOURS[0], linestyle="--", label=r"$S / \sqrt{B}$")
    below.plot(cuts, found["asimov"], color=COLOURS[1], label=f"Asimov{systematic}")
    below.fill_between(cuts, found["low"], found["high"], color=COLOURS[1], alpha=0.15, linewidth=0)
    if (best := found["best"]) is None:
        below.plot(
            [], [], " ", label="behind every cut effectively fewer than 10 background events"
        )
    else:
        highest = {
            "value": found["asimov"][best],
            "low": found["low"][best],
            "high": found["high"][best],
        }
        words = f"highest: {with_interval(highest)}"
        if found["best_is_at_end"]:
            words += ", perhaps more at tighter cuts"
        below.plot(
            cuts[best],
            found["asimov"][best],
            color=COLOURS[1],
            marker="o",
            linestyle="",
            label=words,
        )
    below.set(xlabel="log10 of signal / background (score)", ylabel="Significance", ylim=(0, None))
    main.legend(fontsize="small")
    below.legend(fontsize="small")
    return figure


def log_odds(score: Floats) -> Floats:
    """log10(s / b) of scores s / (s + b); scores of 0 and 1 become the last ones that floats distinguish."""
    inside = np.clip(score, 1e-12, 1 - 1e-12)
    return np.asarray(np.log10(inside / (1 - inside)), dtype=np.float64)


def odds_range(odds: Floats) -> tuple[float, float]:
    """Ends of an axis that holds all but a hundredth of some log odds on either side."""
    low, high = np.quantile(odds, [0.01, 0.99])
    return float(np.floor(low)), float(max(np.ceil(high), np.floor(low) + 1))


@styled
def plot_calibration(found: Mapping[str, Any], labels: PlotLabels) -> Figure:
    """Observed share of a class against its predicted probability; one panel per class."""
    figure, first = new_figure(labels, panels=len(found))
    for axes, (name, content) in zip(figure.axes, found.items(), strict=True):
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=1)
        across = [each["mean_predicted"] for each in content["bins"]]
        observed = [each["observed"] for each in content["bins"]]
        axes.errorbar(
            across,
            *_values_and_bars(observed),
            color=COLOURS[0],
            marker="o",
            linestyle="",
            capsize=3,
        )
        words = (
            "distance {error:.3f}\nof a perfect model {expected:.3f}\np = {p_value:.2g}".format_map(
                content
            )
        )
        axes.text(0.05, 0.96, words, transform=axes.transAxes, fontsize="x-small", va="top")
        axes.set(xlabel=f"Probability of {plain(name)}", xlim=(-0.04, 1.04), ylim=(-0.05, 1.3))
    first.set_ylabel("Observed share (classes weighted equally)")
    return figure


@styled
def plot_efficiencies(
    found: Mapping[str, Any], signal: str, wanted: float, labels: PlotLabels
) -> Figure:
    """Efficiency of each class at a working point against kinematic variables; uneven bins are drawn equally wide."""
    figure, panels = new_grid(labels, panels=len(found), columns=_COLUMNS)
    for axes, (variable, content) in zip(panels, found.items(), strict=True):
        edges = np.array(content["edges"])
        if np.ptp(np.diff(edges)) > 0:
            axes.set_xticks(range(len(edges)), [f"{edge:g}" for edge in edges])
            axes.xaxis.set_minor_locator(NullLocator())
            edges = np.arange(len(edges), dtype=np.float64)
        axes.axhline(wanted, color=GREY, linewidth=1)
        num_classes = len(content["classes"])
        for place, (name, bins) in enumerate(content["classes"].items()):
            measured = [index for index, each in enumerate(bins) if each is not None]
            # Classes stand beside each other within a bin.
            across = (edges[:-1] + np.diff(edges) * (place + 1) / (num_classes + 1))[measured]
            values = _values_and_bars([bins[index] for index in measured])
            axes.errorbar(across, *values, label=plain(name), **point_look(place))
        axes.set_xlabel(axis_label(HIGH_LEVEL[hlf_names().index(variable)]))
        axes.set(xlim=(edges[0], edges[-1]), ylim=(-0.05, 1.09))
        axes.vlines(edges[1:-1], -0.05, 1.09, color=GREY, linewidth=0.4, alpha=0.4)
    for axes in panels[::_COLUMNS]:
        axes.set_ylabel(f"Efficiency at {100 * wanted:g}% {plain(signal)}")
    legend_below(figure, panels[-1])
    return figure


def _values_and_bars(found: Sequence[Mapping[str, float]]) -> tuple[Floats, Floats]:
    """Values, and lengths of the bars down and up; at least 0, even if negative weights push a value out of its bar."""
    values, low, high = (
        np.array([each[key] for each in found]) for key in ("value", "low", "high")
    )
    return values, np.maximum([values - low, high - values], 0)


@styled
def plot_importance(
    found: Mapping[str, Mapping[str, Mapping[str, float]]], signal: str, labels: PlotLabels
) -> Figure:
    """Loss of area under the ROC curve when a feature is shuffled, by model; the most important feature first."""
    figure, axes = new_figure(labels)
    first = next(iter(found.values()))
    features = sorted(first, key=lambda name: first[name]["value"])
    height = 0.8 / len(found)
    for place, (name, values) in enumerate(found.items()):
        across, errors = (
            [values[feature][key] for feature in features] for key in ("value", "error")
        )
        places = np.arange(len(features)) + 0.4 - height * (place + 0.5)
        look = {"color": line_look(place)["color"], "error_kw": {"elinewidth": 1}}
        axes.barh(places, across, height, xerr=errors, label=plain(name), **look)
    axes.set_yticks(
        np.arange(len(features)), [symbol_of(name) for name in features], fontsize="small"
    )
    axes.tick_params(axis="y", which="both", length=0)
    axes.set_xlabel(f"AUC of {plain(signal)} lost when shuffled")
    axes.legend(loc="lower right", fontsize="small")
    return figure


@styled
def plot_learning_curve(history: Sequence[Mapping[str, Any]], labels: PlotLabels) -> Figure:
    """Loss of both splits against the epoch, and the epoch of the kept model; for several workers their distance."""
    apart = [record.get("consensus_distance", 0.0) for record in history]
    figure, axes = new_figure(labels)
    epochs = [record["epoch"] + 1 for record in history]
    training, validation = (
        [record[f"{split}_loss"] for record in history] for split in ("train", "val")
    )
    axes.plot(epochs, training, color=COLOURS[0], linestyle="--", label="training")
    axes.plot(epochs, validation, color=COLOURS[1], label="validation")
    best = int(np.argmin(validation))
    look: dict[str, Any] = {"marker": "o", "linestyle": "", "color": COLOURS[1]}
    axes.plot(epochs[best], validation[best], label=f"kept: epoch {epochs[best]}", **look)
    axes.set(xlabel="Epoch", ylabel="Weighted cross-entropy", xlim=(0.5, epochs[-1] + 0.5))
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis.set_minor_locator(MaxNLocator(1))
    if max(apart) > 0:
        other = axes.twinx()
        other.plot(epochs, apart, color=COLOURS[3], linestyle=":")
        other.set_ylabel("Consensus distance")
        other.set_ylim(bottom=0)
        axes.plot([], [], color=COLOURS[3], linestyle=":", label="consensus distance")
    axes.legend()
    return figure


@styled
def plot_curves(
    curves: Curves,
    signal: str,
    words: Mapping[str, str],
    points: Sequence[float],
    end: float,
    labels: PlotLabels,
    *,
    rejection: bool,
) -> Figure:
    """Background efficiency against signal efficiency in the working region, and relative to the first model.

    Curves, by background (one panel each) and model, are of the same replicas. `words` are longer names of backgrounds.
    `points` are signal efficiencies to mark, with error bars. Above the signal efficiency `end` nothing is measurable;
    this region is grey. With `rejection` the axis is 1 / background efficiency.
    """
    panels = len(curves)
    figure, first = new_figure(labels, panels=panels, height=7.4, ratios=(3, 1))
    lowest = min(
        [0.7, *(np.floor(20 * min(points) - 0.5) / 20 for _ in points[:1]), _reach(curves)]
    )
    shown: list[Floats] = []
    power = -1 if rejection else 1
    for place, (background, models) in enumerate(curves.items()):
        main, below = figure.axes[place], figure.axes[panels + place]
        reference = next(iter(models.values()))
        for number, (name, curve) in enumerate(models.items()):
            shown += _draw(main, curve, name, number, points, lowest, power=power)
            if curve is not reference:
                _draw_ratio(below, curve, reference, lowest, line_look(number), power=power)
        for axes in (main, below):
            axes.axvspan(max(end, lowest), 1.005, color=GREY, alpha=0.12, linewidth=0)
        below.axhline(1, color=GREY, linewidth=1)
        below.set(
            xlabel=f"Efficiency of {plain(signal)}",
            xlim=(lowest, 1.005),
            yscale="log",
            ylim=_RATIOS,
        )
        below.yaxis.set_major_locator(FixedLocator([0.25, 0.5, 1, 2, 4]))
        below.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        below.yaxis.set_minor_locator(NullLocator())
        against = textwrap.fill(f"against {words.get(background, background)}", _LETTERS // panels)
        main.text(
            0.04, 0.96, plain(against), transform=main.transAxes, va="top", fontsize="x-small"
        )
    show_positive(first, shown, room=4)
    first.set_ylabel("Background rejection" if rejection else "Background efficiency")
    figure.axes[panels].set_ylabel(
        f"/ {plain(next(iter(next(iter(curves.values())))))}", fontsize="small"
    )
    legend_below(figure, first)
    return figure


def _reach(curves: Curves) -> float:
    """Signal efficiency from which on the axes hold the background efficiency `_REACHED` of all curves that have it."""
    found = [1.0]
    for curve in (each for models in curves.values() for each in models.values()):
        left = curve.background_efficiency
        found += curve.signal_efficiency[(left > 0) & (left <= _REACHED)][-1:].tolist()
    return float(np.floor(20 * min(found) - 0.5) / 20)


def _draw(
    axes: Axes,
    curve: EfficiencyCurve,
    name: str,
    number: int,
    points: Sequence[float],
    lowest: float,
    *,
    power: int,
) -> list[Floats]:
    """Draw a line, and marks with error bars at the working points; returns the values that axes must hold."""
    across = curve.signal_efficiency
    chosen = (across >= lowest) & (curve.background_efficiency > 0)
    value = curve.background_efficiency[chosen] ** power
    axes.plot(across[chosen], value, label=plain(name), **line_look(number))
    places = np.array([np.argmin(np.abs(across - each)) for each in points], dtype=np.int64)
    marked = places[curve.background_efficiency[places] > 0]
    middle, low, high = (
        each[marked] for each in (curve.background_efficiency, curve.low, curve.high)
    )
    # Where the lower end is 0 the bar of a rejection has no end; it is drawn as long as the other side.
    ends = np.sort([np.where(low > 0, low, middle**2 / high) ** power, high**power], axis=0)
    middle = middle**power
    bars = np.maximum([middle - ends[0], ends[1] - middle], 0)
    # Models stand beside each other, so that no bar hides another.
    look = point_look(number) | {"markersize": 5, "elinewidth": 1.4, "capsize": 2}
    shift = 0.004 * number
    axes.errorbar(np.minimum(across[marked] + shift, 1.0), middle, bars, **look)
    limits = _draw_limits(axes, curve, places, shift, look["color"], power=power)
    return [value, *ends, limits]


def _draw_limits(
    axes: Axes,
    curve: EfficiencyCurve,
    places: NDArray[np.int64],
    shift: float,
    colour: str,
    *,
    power: int,
) -> Floats:
    """Arrows from the limits at working points where no background passes; returns the limits."""
    is_limit = (curve.background_efficiency[places] <= 0) & (curve.high[places] > 0)
    limited = places[is_limit]
    limits = curve.high[limited] ** power
    end = 0.5 if power > 0 else 2.0
    for across, limit in zip(curve.signal_efficiency[limited], limits, strict=True):
        place = min(across + shift, 1.0)
        arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (place, limit * end), (place, limit), arrowprops=arrow)
        axes.plot([place - 0.004, place + 0.004], [limit, limit], color=colour, linewidth=1.4)
    return np.concatenate([limits, limits * end])


def _draw_ratio(
    axes: Axes,
    curve: EfficiencyCurve,
    reference: EfficiencyCurve,
    lowest: float,
    look: Mapping[str, Any],
    *,
    power: int,
) -> None:
    """Ratio to the first model with its paired band."""
    value, low, high = ratio(*(curve, reference)[::power])
    chosen = (curve.signal_efficiency >= lowest) & np.isfinite(value) & (value > 0)
    across = curve.signal_efficiency[chosen]
    inside = np.where((value >= _RATIOS[0]) & (value <= _RATIOS[1]), value, np.nan)[chosen]
    axes.plot(across, inside, linewidth=1.4, **look)
    bottom, top = (np.clip(each[chosen], *_RATIOS) for each in (low, high))
    axes.fill_between(across, bottom, top, color=look["color"], alpha=0.15, linewidth=0)
