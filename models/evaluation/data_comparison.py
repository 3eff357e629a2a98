"""Data without labels beside the simulation: histograms of inputs and scores with ratios and chi-squares."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Final, NamedTuple, Self

import hist
import mplhep
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import chi2

from features.columns import HIGH_LEVEL
from models.evaluation.figures import log_odds, odds_range
from models.evaluation.intervals import Floats
from models.evaluation.measurements import EvaluationTask, expected_events
from models.evaluation.scored_events import ScoredEvents
from models.evaluation.style import (
    COLOURS,
    GREY,
    PlotLabels,
    axis_label,
    legend_below,
    new_grid,
    plain,
    styled,
)

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
    num_files: int = 0
    num_entries: int = 0
    """Entries of the files, before the selection."""


class Overlay(NamedTuple):
    """A histogram of the data on those of the simulated classes."""

    data: Any
    classes: list[Any]
    """By label."""
    label: str
    blind_from: float = np.inf
    """Lower edge of the first bin without data."""

    @property
    def is_shown(self) -> NDArray[np.bool_]:
        """(num_bins,) whether the data of a bin are not blinded."""
        return np.asarray(self.data.axes[0].edges[:-1] < self.blind_from - 1e-9)

    @property
    def model(self) -> Any:
        """The histogram of all classes."""
        return reduce(operator.add, self.classes)


class ScoreAxis(NamedTuple):
    """The score of a model, as log odds."""

    odds: list[Floats]
    """Of the simulation, (num_simulated,), and of the data, (num_events,)."""
    axis: Any
    cut: float
    """Lower edge of the first blinded bin; infinite if all are shown."""

    @classmethod
    def of(cls, test: ScoredEvents, data: DataEvents, task: EvaluationTask) -> Self:
        """The axis of the simulated scores."""
        odds = [log_odds(task.score(each.probabilities)) for each in (test, data)]
        axis, cut = hist.axis.Regular(_BINS, *odds_range(odds[0]), flow=False), np.inf
        if task.blind_above is not None:
            above = axis.edges[1:] > log_odds(np.array(task.blind_above)) + 1e-9
            # It holds all that lies beyond.
            above[-1] = True
            cut = float(axis.edges[:-1][above][0])
        return cls(odds, axis, cut)

    @property
    def shown(self) -> list[NDArray[np.bool_]]:
        """Which events of the simulation and of the data are not blinded."""
        return [each < self.cut for each in self.odds]


def overlays(
    test: ScoredEvents, data: DataEvents, task: EvaluationTask, others: Sequence[ScoreAxis] = ()
) -> tuple[dict[str, Overlay], dict[str, Any]]:
    """Histograms of the score and of each high-level feature, and their chi-squares, for JSON.

    The simulation is normalised to the luminosity if cross-sections are known, else to the number of data events that
    are shown, by a `scale`. What lies outside an axis is in its outer bins. With `blind_above` the score's bins that
    reach above it have no data, the features are those of the events below it, of data and simulation alike, and so is
    each number. Events that one of the `others`, scores of other models, blinds are in no histogram: a model that finds
    nothing would show them all.
    """
    expected = expected_events(test, task)
    sizes = np.bincount(test.labels, test.weights, len(task.classes))
    factors = np.divide(
        np.array(list(expected.values())), sizes, out=np.zeros(len(sizes)), where=sizes > 0
    )
    weights = test.weights * factors[test.labels]
    odds, axis, cut = score = ScoreAxis.of(test, data, task)
    kept = [
        np.logical_and.reduce(each) for each in zip(*(other.shown for other in others), strict=True)
    ] or [np.ones(len(each), np.bool_) for each in odds]
    shown = [each & mask for each, mask in zip(score.shown, kept, strict=True)]
    num_shown, num_expected = int(shown[1].sum()), float(weights[shown[0]].sum())
    scale = None
    if task.expected is None and num_expected > 0:
        scale = num_shown / num_expected
        weights *= scale

    def overlay(
        axis: Any, values: Sequence[NDArray[Any]], rows: NDArray[np.bool_], label: str, cut: float
    ) -> Overlay:
        # The first and the last bin hold what lies beyond them.
        simulated, measured = (
            np.clip(each, axis.edges[0], np.nextafter(axis.edges[-1], -np.inf)) for each in values
        )
        filled = [hist.Hist(axis, storage=hist.storage.Weight()) for _ in task.classes]
        for number, each in enumerate(filled):
            chosen = test.labels[rows] == number
            each.fill(simulated[chosen], weight=weights[rows][chosen])
        counts = hist.Hist(axis, storage=hist.storage.Double()).fill(measured[measured < cut])
        return Overlay(counts, filled, label, cut)

    scores = [each[mask] for each, mask in zip(odds, kept, strict=True)]
    found = {"score": overlay(axis, scores, kept[0], "log10 of s / b (score)", cut)}
    for place, feature in enumerate(HIGH_LEVEL):
        values = [hlf[rows, place] for hlf, rows in zip((test.hlf, data.hlf), shown, strict=True)]
        if (bins := feature.binning) and any(each.size and np.ptp(each) > 0 for each in values):
            axis = hist.axis.Regular(min(bins.bins, _BINS), bins.low, bins.high, flow=False)
            found[feature.name] = overlay(axis, values, shown[0], axis_label(feature), np.inf)
    squares = {}
    for name, each in found.items():
        counts, model, variances = each.data.values(), each.model.values(), each.model.variances()
        of_shown = (of[each.is_shown] for of in (counts, model, variances))
        squares[name] = chi_square(*of_shown, is_normalised=task.expected is None)
    return found, {
        "num_files": data.num_files,
        "num_entries": data.num_entries,
        "num_events": num_shown,
        "blind_above": task.blind_above,
        "scale": scale,
        "num_expected": float(weights[shown[0]].sum()),
        "copies": data.copies,
        "chi_square": squares,
    }


def chi_square(
    data: Floats, model: Floats, variances: Floats, *, is_normalised: bool
) -> dict[str, float]:
    """Chi-square of counts and a weighted simulation, with the statistical errors of both; (num_bins,) each.

    Neighbouring bins are joined until 5 events are expected in each, from effectively 10 simulated ones or more, so
    that both have nearly normal errors. An expectation that is scaled to the number of events takes one degree of
    freedom.
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
    value, degrees = (
        float((np.square(counts - expected) / spread).sum()),
        max(len(counts) - is_normalised, 0),
    )
    return {
        "value": value,
        "degrees": degrees,
        "p_value": float(chi2.sf(value, degrees)) if degrees > 0 else 1.0,
    }


@styled
def plot_overlays(
    found: Mapping[str, Overlay],
    numbers: Mapping[str, Any],
    task: EvaluationTask,
    labels: PlotLabels,
) -> Figure:
    """Data on the stacked simulation, with the ratio of both below; one panel for each histogram."""
    columns = min(_COLUMNS, len(found))
    figure, panels = new_grid(
        labels,
        panels=len(found),
        columns=columns,
        height=6.4 if columns == 1 else 4.2,
        ratios=(3, 1),
    )
    order = [*task.mixture.fractions, *task.signal.fractions]
    look: dict[str, Any] = {
        "label": [plain(task.classes[label]) for label in order],
        "color": [COLOURS[label % len(COLOURS)] for label in order],
        "edgecolor": "black",
        "linewidth": 0.5,
    }
    for (main, below), (name, each) in zip(panels, found.items(), strict=True):
        shown, model = each.data.copy(), each.model
        # A bin with neither data nor simulation has no point.
        shown.view()[~each.is_shown | ((model.values() <= 0) & (each.data.values() == 0))] = np.nan
        stacked = [each.classes[label] for label in order]
        mplhep.histplot(stacked, ax=main, stack=True, histtype="fill", flow="none", **look)
        mplhep.histplot(model, ax=main, histtype="band", flow="none", label="MC stat. unc.")
        points = {"histtype": "errorbar", "w2method": "poisson", "color": "black", "label": "Data"}
        mplhep.histplot(shown, ax=main, flow="none", **points)
        main.set(xlabel="", xticklabels=[], ylabel="Events", xlim=each.data.axes[0].edges[[0, -1]])
        square = numbers["chi_square"][name]
        words = f"χ² = {square['value']:.1f} / {square['degrees']}, p = {square['p_value']:.2g}"
        main.text(
            0.96, 0.96, words, transform=main.transAxes, ha="right", va="top", fontsize="x-small"
        )
        main.set_ylim(0, 1.35 * main.get_ylim()[1])
        if not each.is_shown.all():
            _mark_blinded(main, each)
        # Negative weights may leave a bin without a ratio.
        shown.view()[model.values() <= 0] = np.nan
        _plot_ratio(below, shown, model, each.label)
    legend_below(figure, panels[0][0], columns=5)
    return figure


def data_labels(labels: PlotLabels, numbers: Mapping[str, Any]) -> PlotLabels:
    """The words on figures of data: how the simulation is scaled, and whether some data are blinded."""
    note = "Data and simulation"
    if numbers["scale"] is not None:
        note += f" \N{MULTIPLICATION SIGN} {numbers['scale']:.3g}"
    if numbers["blind_above"] is not None:
        note += f", blinded above a score of {numbers['blind_above']:g}"
    return labels._replace(sample_note=note)


def _mark_blinded(axes: Axes, overlay: Overlay) -> None:
    """A grey region without data, and what it is."""
    end = overlay.data.axes[0].edges[-1]
    axes.axvspan(overlay.blind_from, end, color=GREY, alpha=0.15, linewidth=0)
    middle = (overlay.blind_from + end) / 2
    place = axes.get_xaxis_transform()
    axes.text(
        middle, 0.8, "blinded", transform=place, ha="center", fontsize="small", fontstyle="italic"
    )


def _plot_ratio(axes: Axes, data: Any, model: Any, label: str) -> None:
    """Data over simulation; triangles at the upper edge of the panel stand for ratios that lie above it."""
    counts, expected = data.values(), model.values()
    ratios = np.divide(counts, expected, out=np.full(len(expected), np.nan), where=counts > 0)
    top = max(2.0, 1.5 * float(np.median(ratios[ratios > 0]))) if (ratios > 0).any() else 2.0
    mplhep.comp.comparison(
        data, model, axes, xlabel=label, comparison="split_ratio", h1_w2method="poisson",
        comparison_ylim=(0, top), flow="none",
    )  # fmt: skip
    axes.set_ylabel("Data / MC", fontsize="x-small")
    above = ratios > top
    axes.plot(data.axes[0].centers[above], np.full(above.sum(), 0.93 * top), "k^", markersize=4)
