"""Compares data with the simulation: histograms of inputs and scores, and their chi-squares.

Blinding hides the data where a signal may show, so that nobody tunes an analysis on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import hist
import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from features.columns import HIGH_LEVEL, Binning
from hep_core.weight_sums import are_positive
from models.evaluation.discriminant import log_odds, odds_range
from models.evaluation.evaluation_task import EvaluationTask
from models.evaluation.intervals import Floats
from models.evaluation.scored_events import ScoredEvents
from models.evaluation.style import axis_label

#: Bins of the score, and highest number of bins of a feature.
_BINS: Final = 20
#: Tolerance, since a bin edge may differ by rounding from the score at which blinding begins.
_ROUNDING: Final = 1e-9
#: Least numbers of events in a bin of a chi-square: expected, and effectively simulated.
_FEWEST_EXPECTED: Final = 5.0
_FEWEST_SIMULATED: Final = 10.0


class DataEvents(NamedTuple):
    """Selected events without labels, as an experiment records them."""

    hlf: NDArray[np.float32]
    """(num_events, NUM_HLF) raw high-level features."""
    probabilities: Floats
    """(num_events, num_classes)."""
    copies: Mapping[str, int] = {}
    """Number of events that are copies of others, by where these are: in the `data` or in the
    `simulation`."""
    num_files: int = 0
    """Number of files of the data."""
    num_entries: int = 0
    """Entries of the files, before the selection."""


class Overlay(NamedTuple):
    """A histogram of the data on those of the simulated classes, over the same bins."""

    data: Any
    """Histogram of the counts of data."""
    classes: list[Any]
    """Weighted histogram of each simulated class, by label."""
    label: str
    """Label of the horizontal axis."""
    blind_from: float = np.inf
    """Lower edge of the first bin without data; infinite if no bin is blinded."""

    @property
    def is_visible(self) -> NDArray[np.bool_]:
        """(num_bins,) whether the data of a bin are not blinded."""
        return np.asarray(self.data.axes[0].edges[:-1] < self.blind_from - _ROUNDING)

    @property
    def simulation(self) -> Any:
        """The sum of the histograms of all classes."""
        return sum(self.classes[1:], self.classes[0])

    def chi_square(self, *, is_normalised: bool) -> dict[str, float]:
        """Compare data and simulation in the visible bins; see the function `chi_square`."""
        is_visible = self.is_visible
        simulation = self.simulation
        counts = self.data.values()[is_visible]
        expected = simulation.values()[is_visible]
        variances = simulation.variances()[is_visible]
        return chi_square(counts, expected, variances, is_normalised=is_normalised)


class ScoreAxis(NamedTuple):
    """The score of a model, as log odds, with the bins of its histogram and where it is blinded.

    Log odds are log10(s / b) of the score s / (s + b).
    """

    simulation_odds: Floats
    """(num_simulated,)."""
    data_odds: Floats
    """(num_events,)."""
    axis: Any
    """Bins of the histogram, over the range of the simulated scores."""
    blind_from: float
    """Lower edge of the first blinded bin; infinite if none is."""

    @classmethod
    def for_events(cls, simulation: ScoredEvents, data: DataEvents, task: EvaluationTask) -> Self:
        """Compute the scores of simulation and data, and bins over the range of the simulated ones.

        A bin is blinded if it reaches above the score `task.blind_above`.
        """
        simulation_odds = log_odds(task.score(simulation.probabilities))
        data_odds = log_odds(task.score(data.probabilities))
        axis = hist.axis.Regular(_BINS, *odds_range(simulation_odds), flow=False)
        blind_from = np.inf
        if task.blind_above is not None:
            blind_odds = log_odds(np.array(task.blind_above))
            is_blind = axis.edges[1:] > blind_odds + _ROUNDING
            # The last bin also holds the scores beyond it.
            is_blind[-1] = True
            first_blind = np.argmax(is_blind)
            blind_from = float(axis.edges[first_blind])
        return cls(simulation_odds, data_odds, axis, blind_from)


class _VisibleEvents(NamedTuple):
    """Marks which events each kind of histogram may show, (num_events,) each.

    The score's own histogram draws simulation beyond its blinding edge too, so it needs other
    marks.
    """

    simulation: NDArray[np.bool_]
    """Simulated events that no score blinds; they enter all numbers."""
    data: NDArray[np.bool_]
    """Data events that no score blinds."""
    simulation_for_score: NDArray[np.bool_]
    """Simulated events that no score of another model blinds."""
    data_for_score: NDArray[np.bool_]
    """Data events that no score of another model blinds."""

    @classmethod
    def of_score(cls, score: ScoreAxis, blinding_axes: Sequence[ScoreAxis]) -> Self:
        """Mark the visible events of a score; `blinding_axes` are the scores of other models."""
        simulation = np.ones(len(score.simulation_odds), np.bool_)
        data = np.ones(len(score.data_odds), np.bool_)
        # An event is hidden if any other model's score is in a blinded bin.
        for axis in blinding_axes:
            simulation &= axis.simulation_odds < axis.blind_from
            data &= axis.data_odds < axis.blind_from
        simulation_below = score.simulation_odds < score.blind_from
        data_below = score.data_odds < score.blind_from
        return cls(
            simulation=simulation & simulation_below,
            data=data & data_below,
            simulation_for_score=simulation,
            data_for_score=data,
        )


def overlays(
    simulation: ScoredEvents,
    data: DataEvents,
    task: EvaluationTask,
    blinding_axes: Sequence[ScoreAxis] = (),
) -> tuple[dict[str, Overlay], dict[str, Any]]:
    """Make histograms of the score and of each high-level feature, and compute their chi-squares.

    The simulation is normalised to the luminosity if cross-sections are known. Else a `scale`
    normalises it to the number of data events that are not blinded. The outer bins of an axis hold
    what lies outside it.

    With `task.blind_above` the bins of the score that reach above it have no data. The features,
    and every number, are those of the events below it, of data and simulation alike. The scores of
    other models, `blinding_axes`, blind events too, which are then in no histogram: a model that
    finds nothing would show them all.

    Returns:
        The overlays by name (`score` or the name of a feature), and the numbers, ready for JSON.
    """
    score = ScoreAxis.for_events(simulation, data, task)
    visible = _VisibleEvents.of_score(score, blinding_axes)
    # Weights add up to expected events; without cross-sections a scale makes them match the data.
    weights = _expected_weights(simulation, task)
    num_data = int(visible.data.sum())
    num_expected = float(weights[visible.simulation].sum())
    scale = None
    if task.expected is None and num_expected > 0:
        scale = num_data / num_expected
        weights *= scale

    def class_histograms(axis: Any, values: NDArray[Any], is_drawn: NDArray[np.bool_]) -> list[Any]:
        """Fill one weighted histogram for each class with the events to draw."""
        histograms = []
        for label in range(len(task.classes)):
            rows = is_drawn & (simulation.labels == label)
            histogram = hist.Hist(axis, storage=hist.storage.Weight())
            inside = _clip(values[rows], axis)
            histogram.fill(inside, weight=weights[rows])
            histograms.append(histogram)
        return histograms

    # The simulated scores are drawn where data are blinded, too.
    data_odds = score.data_odds[visible.data_for_score]
    score_overlay = Overlay(
        _counts(score.axis, data_odds, below=score.blind_from),
        class_histograms(score.axis, score.simulation_odds, visible.simulation_for_score),
        "log10 of s / b (score)",
        score.blind_from,
    )
    drawn = {"score": score_overlay}
    for index, feature in enumerate(HIGH_LEVEL):
        simulated = simulation.hlf[:, index]
        measured = data.hlf[visible.data, index]
        # A feature without bins, or with a single value, has no histogram.
        varies = _varies(simulated[visible.simulation]) or _varies(measured)
        if feature.binning and varies:
            axis = _feature_axis(feature.binning)
            drawn[feature.name] = Overlay(
                _counts(axis, measured),
                class_histograms(axis, simulated, visible.simulation),
                axis_label(feature),
            )
    is_normalised = task.expected is None
    chi_squares = {}
    for name, overlay in drawn.items():
        chi_squares[name] = overlay.chi_square(is_normalised=is_normalised)
    numbers = {
        "num_files": data.num_files,
        "num_entries": data.num_entries,
        "num_events": num_data,
        "blind_above": task.blind_above,
        "scale": scale,
        "num_expected": float(weights[visible.simulation].sum()),
        "copies": data.copies,
        "chi_square": chi_squares,
    }
    return drawn, numbers


def _feature_axis(binning: Binning) -> Any:
    """Make the axis of a feature, with at most as many bins as the score."""
    num_bins = min(binning.bins, _BINS)
    return hist.axis.Regular(num_bins, binning.low, binning.high, flow=False)


def _expected_weights(simulation: ScoredEvents, task: EvaluationTask) -> Floats:
    """Scale the weights of each class so that they add up to its expected number of events."""
    num_classes = len(task.classes)
    expected_by_label = task.expected_events(simulation)
    expected = np.array(list(expected_by_label.values()))
    sums = np.bincount(simulation.labels, simulation.weights, num_classes)
    squares = np.bincount(simulation.labels, np.square(simulation.weights), num_classes)
    # A class without positive weight gets the factor 0.
    is_positive = are_positive(sums, squares)
    zero_factors = np.zeros(num_classes)
    factors = np.divide(expected, sums, out=zero_factors, where=is_positive)
    return np.asarray(simulation.weights * factors[simulation.labels])


def _counts(axis: Any, values: NDArray[Any], below: float = np.inf) -> Any:
    """Count the values in bins, without those at or above an edge."""
    inside = _clip(values, axis)
    is_below = inside < below
    histogram = hist.Hist(axis, storage=hist.storage.Double())
    return histogram.fill(inside[is_below])


def _clip(values: NDArray[Any], axis: Any) -> NDArray[Any]:
    """Move values outside an axis into its first and last bin."""
    lowest, end = axis.edges[0], axis.edges[-1]
    highest_inside = np.nextafter(end, -np.inf)
    return np.asarray(np.clip(values, lowest, highest_inside))


def _varies(values: NDArray[Any]) -> bool:
    """Whether there are at least two different values."""
    return values.size > 0 and np.ptp(values) > 0


def chi_square(
    data: Floats, expected: Floats, variances: Floats, *, is_normalised: bool
) -> dict[str, float]:
    """Compute the chi-square of counts against a weighted simulation, with the errors of both.

    The chi-square is the sum over bins of (count - expected)^2 / (expected + variance of the
    simulation). Neighbouring bins are joined until 5 events are expected in each, from effectively
    10 simulated ones or more, so that both have nearly normal errors.

    Args:
        data: (num_bins,) counts.
        expected: (num_bins,) sums of the simulated weights.
        variances: (num_bins,) sums of their squares.
        is_normalised: Whether the simulation is scaled to the number of events, which takes one
            degree of freedom.

    Returns:
        The chi-square as `value`, the `degrees` of freedom, and the `p_value`.
    """
    groups = _bin_groups(expected, variances)
    counts = np.bincount(groups, data)
    means = np.bincount(groups, expected)
    simulation_variances = np.bincount(groups, variances)
    # The variance of a count is its expectation; that of the simulation comes on top.
    spread = np.maximum(means, 1e-12) + simulation_variances
    terms = np.square(counts - means) / spread
    value = float(terms.sum())
    degrees = len(counts)
    if is_normalised:
        degrees = max(degrees - 1, 0)
    p_value = 1.0
    if degrees > 0:
        p_value = float(chi2.sf(value, degrees))
    return {"value": value, "degrees": degrees, "p_value": p_value}


def _bin_groups(expected: Floats, variances: Floats) -> NDArray[np.int64]:
    """Assign each bin to a group of neighbours; returns the index of the group, (num_bins,).

    From the left, a group takes bins until 5 events are expected in it, from effectively 10
    simulated ones. Bins left over at the right belong to the last full group.
    """
    groups = np.zeros(len(expected), np.int64)
    group, total, variance = 0, 0.0, 0.0
    for index in range(len(expected)):
        groups[index] = group
        total += expected[index]
        variance += variances[index]
        expects_enough = total >= _FEWEST_EXPECTED
        # The effective number of simulated events is total**2 / variance.
        simulates_enough = total**2 >= _FEWEST_SIMULATED * variance
        if expects_enough and simulates_enough:
            group += 1
            total, variance = 0.0, 0.0
    # Bins that are left over belong to the last full group.
    return np.minimum(groups, max(group - 1, 0))
