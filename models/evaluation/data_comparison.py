"""Data without labels beside the simulation: histograms of inputs and scores with ratios and chi-squares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import hist
import mplhep
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import chi2

from features.columns import HIGH_LEVEL
from models.evaluation.figures import log_odds, odds_range
from models.evaluation.intervals import Floats
from models.evaluation.measurements import EvaluationTask, expected_events
from models.evaluation.scored_events import ScoredEvents
from models.evaluation.style import COLOURS, WIDTH, axis_label, legend_below, plain, put_labels, styled

_BINS: Final = 20
_COLUMNS: Final = 3
#: Least expected, and effectively simulated, number of events in a bin of a chi-square.
_FEWEST: Final = (5.0, 10.0)


class DataEvents(NamedTuple):
    """Selected events without labels."""

    hlf: NDArray[np.float32]
    """(num_events, NUM_HLF) raw high-level features."""
    probabilities: Floats
    """(num_events, num_classes)."""
    copies: Mapping[str, int] = {}
    """Number of events that the `data`, or the `simulation`, hold too."""


class Overlay(NamedTuple):
    """A histogram of the data on those of the simulated classes."""

    data: Any
    classes: list[Any]
    """By label."""
    label: str
    blind_from: float | None = None
    """Lower edge of the first bin without data; None if all are shown."""


class ScoreAxis(NamedTuple):
    """The score of a model, as log odds."""

    odds: list[Floats]
    """Of the simulation, (num_simulated,), and of the data, (num_events,)."""
    axis: Any
    cut: float | None
    """Lower edge of the first blinded bin; None if all are shown."""

    @classmethod
    def of(cls, test: ScoredEvents, data: DataEvents, task: EvaluationTask) -> Self:
        """The axis of the simulated scores."""
        odds = [log_odds(task.score(each.probabilities)) for each in (test, data)]
        axis, cut = hist.axis.Regular(_BINS, *odds_range(odds[0]), flow=False), None
        if task.blind_above is not None:
            above = axis.edges[1:] > log_odds(np.array(task.blind_above)) + 1e-9
            # It holds all that lies beyond.
            above[-1] = True
            cut = float(axis.edges[:-1][above][0])
        return cls(odds, axis, cut)

    @property
    def shown(self) -> list[NDArray[np.bool_]]:
        """Which events of the simulation and of the data are not blinded."""
        return [np.ones(len(each), np.bool_) if self.cut is None else each < self.cut for each in self.odds]


def overlays(
    test: ScoredEvents, data: DataEvents, task: EvaluationTask, others: Sequence[ScoreAxis] = ()
) -> tuple[dict[str, Overlay], dict[str, Any]]:
    """Histograms of the score and of each high-level feature, and their chi-squares, for JSON.

    The simulation is normalised to the luminosity if cross-sections are known, else to the number of data events that
    are shown. What lies outside an axis is in its outer bins. With `blind_above` the score's bins that reach above it
    have no data, the features are those of the events below it, of data and simulation alike, and so is each number.
    Events that one of the `others`, scores of other models, blinds are in no histogram: a model that finds nothing
    would show them all.
    """
    expected = expected_events(test, task)
    factors = np.array(list(expected.values())) / np.bincount(test.labels, test.weights, len(task.classes))
    weights = test.weights * factors[test.labels]
    (odds, axis, cut), own = (score := ScoreAxis.of(test, data, task)), score.shown
    kept = [np.logical_and.reduce([np.ones_like(own[i]), *(each.shown[i] for each in others)]) for i in range(2)]
    shown = [each & mask for each, mask in zip(own, kept, strict=True)]
    num_shown, there = int(shown[1].sum()), float(weights[shown[0]].sum())
    if task.expected is None and there > 0:
        weights *= num_shown / there
    scores = [each[mask] for each, mask in zip(odds, kept, strict=True)]
    of_kept = (weights[kept[0]], test.labels[kept[0]], len(task.classes))
    found = {"score": _overlay(scores, axis, *of_kept, "log10 of s / b (score)", cut)}
    for place, feature in enumerate(HIGH_LEVEL):
        if feature.binning is None:
            continue
        values = [test.hlf[shown[0], place], data.hlf[shown[1], place]]
        if not any(each.size and np.ptp(each) > 0 for each in values):
            continue
        bins = feature.binning
        axis = hist.axis.Regular(min(bins.bins, _BINS), bins.low, bins.high, flow=False)
        found[feature.name] = _overlay(
            values, axis, weights[shown[0]], test.labels[shown[0]], len(task.classes), axis_label(feature)
        )
    squares = {name: chi_square_of(each, is_normalised=task.expected is None) for name, each in found.items()}
    return found, {
        "num_events": num_shown,
        "blind_above": task.blind_above,
        "copies": data.copies,
        "chi_square": squares,
    }


def _overlay(
    values: Sequence[NDArray[Any]],
    axis: Any,
    weights: Floats,
    labels: NDArray[np.int64],
    num_classes: int,
    label: str,
    blind_from: float | None = None,
) -> Overlay:
    # The first and the last bin hold what lies beyond them.
    simulated, data = (np.clip(each, axis.edges[0], np.nextafter(axis.edges[-1], -np.inf)) for each in values)
    filled = [hist.Hist(axis, storage=hist.storage.Weight()) for _ in range(num_classes)]
    for number, each in enumerate(filled):
        each.fill(simulated[labels == number], weight=weights[labels == number])
    kept = data if blind_from is None else data[data < blind_from]
    return Overlay(hist.Hist(axis, storage=hist.storage.Double()).fill(kept), filled, label, blind_from)


def chi_square_of(overlay: Overlay, *, is_normalised: bool) -> dict[str, float]:
    """`chi_square` of an overlay over its bins with data."""
    shown = ~_is_hidden(overlay)
    model, squares = (
        np.sum([np.asarray(getattr(each, name)()) for each in overlay.classes], axis=0)
        for name in ("values", "variances")
    )
    return chi_square(overlay.data.values()[shown], model[shown], squares[shown], is_normalised=is_normalised)


def _is_hidden(overlay: Overlay) -> NDArray[np.bool_]:
    """(num_bins,) whether the data of a bin are blinded."""
    edges = overlay.data.axes[0].edges[:-1]
    return np.asarray(edges >= (np.inf if overlay.blind_from is None else overlay.blind_from - 1e-9))


def chi_square(data: Floats, model: Floats, variances: Floats, *, is_normalised: bool) -> dict[str, float]:
    """Chi-square of counts and a weighted simulation, with the statistical errors of both; (num_bins,) each.

    Neighbouring bins are joined until 5 events are expected in each, from effectively 10 simulated ones or more, so
    that both have nearly normal errors. An expectation that is scaled to the number of events takes one degree of
    freedom.

    Examples:
        >>> chi_square(np.array([30.0, 0.0, 3.0]), np.array([20.0, 2.0, 5.0]), np.array([5.0, 0.0, 0.0]),
        ...     is_normalised=False)["value"]
        6.285714285714286
    """
    groups, group, total, square = np.zeros(len(model), np.int64), 0, 0.0, 0.0
    for place, (each, variance) in enumerate(zip(model, variances, strict=True)):
        groups[place], total, square = group, total + each, square + variance
        if total >= _FEWEST[0] and total**2 >= _FEWEST[1] * square:
            group, total, square = group + 1, 0.0, 0.0
    # What is left over belongs to the last group that is full.
    groups = np.minimum(groups, max(group - 1, 0))
    counts, expected, squares = (np.bincount(groups, each) for each in (data, model, variances))
    spread = np.maximum(expected, 1e-12) + squares
    value, degrees = float((np.square(counts - expected) / spread).sum()), max(len(counts) - is_normalised, 0)
    return {"value": value, "degrees": degrees, "p_value": float(chi2.sf(value, degrees)) if degrees > 0 else 1.0}


@styled
def plot_overlays(
    found: Mapping[str, Overlay], numbers: Mapping[str, Any], task: EvaluationTask, labels: Any
) -> Figure:
    """Data on the stacked simulation, with the ratio of both below; one panel for each histogram."""
    columns = min(_COLUMNS, len(found))
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(WIDTH, 1.0 + (6.4 if columns == 1 else 4.2) * rows))
    FigureCanvasAgg(figure)
    grid = figure.subplots(2 * rows, columns, squeeze=False, height_ratios=[3, 1] * rows)
    # mplhep draws the figure to fit its labels, which takes seconds with all panels.
    for axes in figure.axes:
        axes.set_visible(False)
    order = [*task.mixture.fractions, *task.signals]
    panels: list[Axes] = []
    for place, (name, each) in enumerate(found.items()):
        row, column = divmod(place, columns)
        main, below = grid[2 * row][column], grid[2 * row + 1][column]
        panels.append(main)
        for axes in (main, below):
            axes.set_visible(True)
        # mplhep's own way to blind hides the simulation too. Negative weights may leave a bin without a ratio.
        expected = np.sum([simulated.values() for simulated in each.classes], axis=0)
        has_ratio = expected > 0
        shown = each.data.copy()
        shown.view()[_is_hidden(each) | ~has_ratio] = np.nan
        mplhep.comp.data_model(
            shown,
            stacked_components=[each.classes[label] for label in order],
            stacked_labels=[plain(task.classes[label]) for label in order],
            stacked_colors=[COLOURS[label % len(COLOURS)] for label in order],
            xlabel=each.label, ylabel="Events", fig=figure, ax_main=main, ax_comparison=below, flow="none",
        )  # fmt: skip
        if (alone := ~_is_hidden(each) & ~has_ratio & (each.data.values() > 0)).any():
            counts = each.data.values()[alone]
            main.errorbar(each.data.axes[0].centers[alone], counts, np.sqrt(counts), fmt="k.")
        if legend := main.get_legend():
            legend.remove()
        _fit_ratios(below, shown, expected)
        square = numbers["chi_square"][name]
        words = f"χ² = {square['value']:.1f} / {square['degrees']}, p = {square['p_value']:.2g}"
        main.text(0.96, 0.96, words, transform=main.transAxes, ha="right", va="top", fontsize="x-small")
        main.set_ylim(0, 1.35 * main.get_ylim()[1])
        for axes in (main, below):
            axes.set_visible(False)
    for axes in figure.axes:
        axes.set_visible(True)
    for axes in _unused(grid, len(found), columns):
        axes.set_axis_off()
    figure.set_layout_engine("constrained")
    put_labels(grid[0][0], grid[0][-1], labels)
    legend_below(figure, panels[0])
    return figure


def _fit_ratios(axes: Axes, data: Any, expected: Floats) -> None:
    """Label the panel of ratios; triangles at its upper edge stand for those that lie above it."""
    ratios = np.divide(data.values(), expected, out=np.full(len(expected), np.nan), where=data.values() > 0)
    top = max(2.0, 1.5 * float(np.median(ratios[ratios > 0]))) if (ratios > 0).any() else 2.0
    above = ratios > top
    axes.plot(data.axes[0].centers[above], np.full(above.sum(), 0.93 * top), "k^", markersize=4)
    axes.set_ylim(0, top)
    axes.set_ylabel("Data / MC", fontsize="x-small")


def _unused(grid: NDArray[Any], num: int, columns: int) -> list[Axes]:
    """The panels of the last row that hold nothing."""
    return [axes for column in range(num % columns or columns, columns) for axes in grid[-2:, column]]
