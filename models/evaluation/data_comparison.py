"""Data beside the simulation: histograms of inputs and scores, and their chi-squares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import hist
import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from features.columns import HIGH_LEVEL
from models.evaluation.discriminant import log_odds, odds_range
from models.evaluation.evaluation_task import EvaluationTask
from models.evaluation.intervals import Floats
from models.evaluation.scored_events import ScoredEvents
from models.evaluation.style import axis_label

_BINS: Final = 20
#: A bin edge may differ by rounding from the score at which blinding begins.
_ROUNDING: Final = 1e-9
#: Least number of events that are expected in a bin of a chi-square, and effectively simulated.
_FEWEST_EXPECTED: Final = 5.0
_FEWEST_SIMULATED: Final = 10.0


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
    def is_visible(self) -> NDArray[np.bool_]:
        """(num_bins,) whether the data of a bin are not blinded."""
        return np.asarray(self.data.axes[0].edges[:-1] < self.blind_from - _ROUNDING)

    @property
    def simulation(self) -> Any:
        """The histogram of all classes."""
        return sum(self.classes[1:], self.classes[0])

    def chi_square(self, *, is_normalised: bool) -> dict[str, float]:
        """The chi-square of the visible bins; see `chi_square`."""
        return chi_square(
            self.data.values()[self.is_visible],
            self.simulation.values()[self.is_visible],
            self.simulation.variances()[self.is_visible],
            is_normalised=is_normalised,
        )


class ScoreAxis(NamedTuple):
    """The score of a model, as log odds, and where it is blinded."""

    simulation_odds: Floats
    """(num_simulated,)."""
    data_odds: Floats
    """(num_events,)."""
    axis: Any
    blind_from: float
    """Lower edge of the first blinded bin; infinite if none is."""

    @classmethod
    def for_events(cls, simulation: ScoredEvents, data: DataEvents, task: EvaluationTask) -> Self:
        """The axis that holds the simulated scores."""
        simulation_odds = log_odds(task.score(simulation.probabilities))
        data_odds = log_odds(task.score(data.probabilities))
        axis = hist.axis.Regular(_BINS, *odds_range(simulation_odds), flow=False)
        blind_from = np.inf
        if task.blind_above is not None:
            is_blind = axis.edges[1:] > log_odds(np.array(task.blind_above)) + _ROUNDING
            # The last bin also holds the scores beyond it.
            is_blind[-1] = True
            blind_from = float(axis.edges[:-1][is_blind][0])
        return cls(simulation_odds, data_odds, axis, blind_from)


class _VisibleEvents(NamedTuple):
    """The events that no score blinds, and those that only the score of the model may blind."""

    simulation: NDArray[np.bool_]
    data: NDArray[np.bool_]
    simulation_for_score: NDArray[np.bool_]
    data_for_score: NDArray[np.bool_]

    @classmethod
    def of_score(cls, score: ScoreAxis, blinding_axes: Sequence[ScoreAxis]) -> Self:
        """The visible events of a score and those of other models."""
        simulation = np.ones(len(score.simulation_odds), np.bool_)
        data = np.ones(len(score.data_odds), np.bool_)
        for axis in blinding_axes:
            simulation &= axis.simulation_odds < axis.blind_from
            data &= axis.data_odds < axis.blind_from
        return cls(
            simulation=simulation & (score.simulation_odds < score.blind_from),
            data=data & (score.data_odds < score.blind_from),
            simulation_for_score=simulation,
            data_for_score=data,
        )


def overlays(
    simulation: ScoredEvents,
    data: DataEvents,
    task: EvaluationTask,
    blinding_axes: Sequence[ScoreAxis] = (),
) -> tuple[dict[str, Overlay], dict[str, Any]]:
    """Histograms of the score and of each high-level feature, and their chi-squares, for JSON.

    The simulation is normalised to the luminosity if cross-sections are known. Else a `scale`
    normalises it to the number of data events that are not blinded. The outer bins of an axis hold
    what lies outside it.

    With `blind_above` the bins of the score that reach above it have no data. The features, and
    every number, are those of the events below it, of data and simulation alike. The scores of
    other models, `blinding_axes`, blind events too, which are then in no histogram: a model that
    finds nothing would show them all.
    """
    score = ScoreAxis.for_events(simulation, data, task)
    visible = _VisibleEvents.of_score(score, blinding_axes)
    weights = _expected_weights(simulation, task)
    num_data = int(visible.data.sum())
    num_expected = float(weights[visible.simulation].sum())
    scale = None
    if task.expected is None and num_expected > 0:
        scale = num_data / num_expected
        weights *= scale

    def class_histograms(axis: Any, values: NDArray[Any], is_drawn: NDArray[np.bool_]) -> list[Any]:
        histograms = []
        for label in range(len(task.classes)):
            rows = is_drawn & (simulation.labels == label)
            histogram = hist.Hist(axis, storage=hist.storage.Weight())
            histogram.fill(_clip(values[rows], axis), weight=weights[rows])
            histograms.append(histogram)
        return histograms

    # The simulated scores are drawn where data are blinded, too.
    drawn = {
        "score": Overlay(
            _counts(score.axis, score.data_odds[visible.data_for_score], below=score.blind_from),
            class_histograms(score.axis, score.simulation_odds, visible.simulation_for_score),
            "log10 of s / b (score)",
            score.blind_from,
        )
    }
    for index, feature in enumerate(HIGH_LEVEL):
        simulated, measured = simulation.hlf[:, index], data.hlf[visible.data, index]
        varies = _varies(simulated[visible.simulation]) or _varies(measured)
        if feature.binning and varies:
            num_bins = min(feature.binning.bins, _BINS)
            low, high = feature.binning.low, feature.binning.high
            axis = hist.axis.Regular(num_bins, low, high, flow=False)
            drawn[feature.name] = Overlay(
                _counts(axis, measured),
                class_histograms(axis, simulated, visible.simulation),
                axis_label(feature),
            )
    chi_squares = {
        name: overlay.chi_square(is_normalised=task.expected is None)
        for name, overlay in drawn.items()
    }
    return drawn, {
        "num_files": data.num_files,
        "num_entries": data.num_entries,
        "num_events": num_data,
        "blind_above": task.blind_above,
        "scale": scale,
        "num_expected": float(weights[visible.simulation].sum()),
        "copies": data.copies,
        "chi_square": chi_squares,
    }


def _expected_weights(simulation: ScoredEvents, task: EvaluationTask) -> Floats:
    """(num_simulated,) weights that add up to the expected number of events of each class."""
    expected = np.array(list(task.expected_events(simulation).values()))
    sums = np.bincount(simulation.labels, simulation.weights, len(task.classes))
    factors = np.divide(expected, sums, out=np.zeros(len(sums)), where=sums > 0)
    return np.asarray(simulation.weights * factors[simulation.labels])


def _counts(axis: Any, values: NDArray[Any], below: float = np.inf) -> Any:
    """A histogram of the values in bins below an edge."""
    values = _clip(values, axis)
    return hist.Hist(axis, storage=hist.storage.Double()).fill(values[values < below])


def _clip(values: NDArray[Any], axis: Any) -> NDArray[Any]:
    """Move values outside an axis into its first and last bin."""
    return np.asarray(np.clip(values, axis.edges[0], np.nextafter(axis.edges[-1], -np.inf)))


def _varies(values: NDArray[Any]) -> bool:
    return values.size > 0 and np.ptp(values) > 0


def chi_square(
    data: Floats, expected: Floats, variances: Floats, *, is_normalised: bool
) -> dict[str, float]:
    """Chi-square of counts and a weighted simulation, with the statistical errors of both.

    Neighbouring bins are joined until 5 events are expected in each, from effectively 10 simulated
    ones or more, so that both have nearly normal errors. A simulation that is normalised to the
    number of events takes one degree of freedom. The arrays are (num_bins,) each.
    """
    groups = _bin_groups(expected, variances)
    counts, means = np.bincount(groups, data), np.bincount(groups, expected)
    spread = np.maximum(means, 1e-12) + np.bincount(groups, variances)
    value = float((np.square(counts - means) / spread).sum())
    degrees = len(counts)
    if is_normalised:
        degrees = max(degrees - 1, 0)
    p_value = float(chi2.sf(value, degrees)) if degrees > 0 else 1.0
    return {"value": value, "degrees": degrees, "p_value": p_value}


def _bin_groups(expected: Floats, variances: Floats) -> NDArray[np.int64]:
    """(num_bins,) group of each bin; neighbours are joined until a group has enough events."""
    groups = np.zeros(len(expected), np.int64)
    group, total, variance = 0, 0.0, 0.0
    for index in range(len(expected)):
        groups[index] = group
        total += expected[index]
        variance += variances[index]
        # The effective number of simulated events is total**2 / variance.
        if total >= _FEWEST_EXPECTED and total**2 >= _FEWEST_SIMULATED * variance:
            group, total, variance = group + 1, 0.0, 0.0
    # Bins that are left over belong to the last full group.
    return np.minimum(groups, max(group - 1, 0))
