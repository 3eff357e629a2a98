"""Measures whether the score of the signal depends on columns of the events, within a class.

The score of a model that was trained with `train.decorrelate` should not. The distance correlation
is that of `training.workloads.distance_correlation`, whose module names the papers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
import scipy
from numpy.typing import NDArray

from features.columns import NUM_PARTICLES, hlf_names
from models.evaluation.bootstrap import Replicas, estimate
from models.evaluation.curves import efficiencies_json, efficiency_against
from models.evaluation.evaluation_task import EvaluationTask
from models.evaluation.intervals import Floats, WeightSums
from models.evaluation.scored_events import ScoredEvents
from models.prediction import column_array

#: Highest number of events of a class in a distance correlation, whose time and memory grow with
#: the square. Rows are in random order, so the first ones are a random sample.
MOST_EVENTS: Final = 2000
#: Number of replicas in its error.
_NUM_REPLICAS: Final = 200
#: Highest number of bins of a column.
_MOST_BINS: Final = 8
#: Effective number of events that pass, and that fail, which a bin needs on average for the
#: chi-square.
_EVENTS_PER_BIN: Final = 5


#: Result of `correlation_in_replicas` where the column is not finite.
_NO_CORRELATION: Final = {
    "value": math.nan,
    "error": math.nan,
    "independent": math.nan,
    "num_events": 0,
}
#: Result of `flatness` where nothing can be tested.
_NO_FLATNESS: Final[dict[str, Any]] = {
    "edges": [],
    "efficiency": [],
    "chi_square": None,
    "degrees_of_freedom": None,
    "p_value": None,
}


class ScoreCut(NamedTuple):
    """A cut on the score, at a working point."""

    wanted: float
    """Signal efficiency of the working point."""
    threshold: float
    """Score from which on events pass."""


class _Distances(NamedTuple):
    """Distances between the values of a column in all pairs of events."""

    pairs: Floats
    """(num_events, num_events)."""
    means: Floats
    """(num_events, num_weightings) mean distance of each event from all events."""

    @classmethod
    def of_column(cls, values: Floats, shares: Floats) -> Self:
        """Compute the distances of (num_events,) values, with means for several weightings.

        `shares` are those of the events in the sum of weights, (num_events, num_weightings).
        """
        pairs = np.abs(np.subtract.outer(values, values))
        return cls(pairs, pairs @ shares)


class Independence(NamedTuple):
    """How the score depends on columns."""

    numbers: dict[str, Any]
    """By column and class: `distance_correlation`, with its error and its mean for an independent
    score, and `points`, one for each cut, with the efficiency in bins of the column. Within a class
    in which the column is not finite, nothing is measured."""
    sentences: list[str]
    """What is not measured, and why."""


def measure_independence(
    predictions: pa.Table,
    events: ScoredEvents,
    replicas: Replicas,
    task: EvaluationTask,
    cuts: Sequence[ScoreCut],
) -> Independence:
    """Measure how the score depends on the columns of the task, within the classes of the task.

    Args:
        predictions: The test events, with the columns.
        events: The test events of the measurable classes.
        replicas: Bootstrap replicas of these.
        task: Names columns and classes.
        cuts: Cuts on the score.

    Returns:
        The numbers, and a sentence about each that these events do not measure.
    """
    scores = task.score(events.probabilities)
    is_measured = np.isin(predictions["label"].to_numpy(), task.measured_labels)
    labels = [label for label in task.independent_within if label in task.measured_labels]
    present = _present_columns(predictions, task)
    sentences = [
        f"the dependence of the score on {name} is not measured: these events have no such column."
        for name in task.independent_of
        if name not in present
    ]
    numbers: dict[str, Any] = {}
    for name in present:
        values = column_values(predictions, name)[is_measured]
        numbers[name] = {}
        for label in labels:
            in_class = events.labels == label
            class_name = task.classes[label]
            is_finite = np.isfinite(values[in_class])
            num_not_finite = np.count_nonzero(~is_finite)
            if num_not_finite:
                correlation: dict[str, Any] = dict(_NO_CORRELATION)
                points = [_NO_FLATNESS | cut._asdict() for cut in cuts]
                sentences.append(
                    f"the dependence of the score on {name} is not measured for {class_name}: "
                    f"{num_not_finite} of its {len(is_finite)} test events have no finite {name}."
                )
            else:
                correlation = correlation_in_replicas(scores, values, replicas, label)
                points = _flatness_at_cuts(values, scores, events, label, cuts)
                sentences += _unmeasured(correlation, points, name, class_name)
            numbers[name][class_name] = {"distance_correlation": correlation, "points": points}
    return Independence(numbers, sentences)


def _flatness_at_cuts(
    values: Floats, scores: Floats, events: ScoredEvents, label: int, cuts: Sequence[ScoreCut]
) -> list[dict[str, Any]]:
    """Measure for each cut how flat the efficiency of a class is in a column."""
    in_class = events.labels == label
    values_of_class = values[in_class]
    scores_of_class = scores[in_class]
    weights_of_class = events.weights[in_class]
    points = []
    for cut in cuts:
        passing = scores_of_class >= cut.threshold
        point = flatness(values_of_class, passing, weights_of_class)
        points.append(point | cut._asdict())
    return points


def _unmeasured(
    correlation: dict[str, Any], points: Sequence[dict[str, Any]], name: str, class_name: str
) -> list[str]:
    """Write a sentence about each number of a class and a column that is not measured."""
    sentences = []
    results = [correlation["value"], correlation["error"], correlation["independent"]]
    if not np.isfinite(results).all():
        sentences.append(
            f"the distance correlation of score and {name} is not measured for {class_name}: of "
            f"the {correlation['num_events']} events that count, all with a weight have the same "
            f"score or the same {name}."
        )
    untested = [point["wanted"] for point in points if point["p_value"] is None]
    if untested:
        efficiencies = ", ".join(f"{100 * efficiency:g} %" for efficiency in untested)
        sentences.append(
            f"whether the efficiency of {class_name} is flat in {name} is not tested at signal "
            f"efficiencies of {efficiencies}: too few events pass or fail, or all have the "
            f"same {name}."
        )
    if any(None in point["efficiency"] for point in points):
        sentences.append(
            f"the efficiency of {class_name} is not measured in all bins of {name}: the weights "
            f"in a bin add up to 0 or less."
        )
    return sentences


def columns_beside(task: EvaluationTask) -> list[str]:
    """Return the inputs that the columns of the task need of a prediction, beside `hlf`."""
    return [name for name in task.independent_of if name == NUM_PARTICLES.name]


def _present_columns(predictions: pa.Table, task: EvaluationTask) -> list[str]:
    """Return the columns of the task that some events have."""
    available = {*hlf_names(), *predictions.column_names}
    return [name for name in task.independent_of if name in available]


def column_values(predictions: pa.Table, name: str) -> Floats:
    """Return a column of the events, (num_events,): a high-level feature, or one beside them."""
    if name in hlf_names():
        features = column_array(predictions, "hlf")
        column = hlf_names().index(name)
        return np.asarray(features[:, column], dtype=np.float64)
    return column_array(predictions, name).astype(np.float64)


def correlation_in_replicas(
    scores: Floats, values: Floats, replicas: Replicas, label: int
) -> dict[str, Any]:
    """Measure dCorr² of the score and a column within a class, with its error from replicas.

    A stratum holds the events of the class in one sample, and keeps its share of the class in each
    replica. Events count by the size of their weight, as in the training.

    Args:
        scores: (num_events,).
        values: (num_events,) the column.
        replicas: The events with their random weights.
        label: The class.

    Returns:
        `value` and `error`; `independent`, the mean of the value for independent columns, which
        falls with the number of events; and `num_events`, those that count. The first three are NaN
        if score or column is constant over the events with a weight.
    """
    strata = replicas.strata_of_class(label)
    num_in_class = sum(len(stratum.rows) for stratum in strata)
    share_of_rows = min(1, MOST_EVENTS / num_in_class)
    rows: list[NDArray[np.int64]] = []
    shares: list[Floats] = []
    for stratum in strata:
        num_rows = math.ceil(len(stratum.rows) * share_of_rows)
        first_rows = stratum.rows[:num_rows]
        groups = stratum.groups[:num_rows]
        random_weights = stratum.random_weights[groups, : 1 + _NUM_REPLICAS]
        sizes = np.abs(replicas.weights[first_rows])
        weights = sizes[:, None] * random_weights
        totals = weights.sum(axis=0)
        rows.append(first_rows)
        shares.append(stratum.fraction * weights / totals)
    all_rows = np.concatenate(rows)
    all_shares = np.concatenate(shares)
    correlations, independent = _distance_correlations(
        scores[all_rows], values[all_rows], all_shares
    )
    return {
        **estimate(correlations)._asdict(),
        "independent": independent,
        "num_events": len(all_rows),
    }


def _distance_correlations(first: Floats, second: Floats, shares: Floats) -> tuple[Floats, float]:
    """Compute dCorr² of two columns for several weightings of the events.

    Args:
        first: (num_events,).
        second: (num_events,).
        shares: (num_events, num_weightings) share of each event in the sum of weights.

    Returns:
        (num_weightings,) dCorr², and its mean for independent columns with the first weighting:
        E|x - x'| E|y - y'| times the sum of squared shares, over the root of the variances
        (Székely, Rizzo, Bakirov 2007, theorem 5). Both are NaN if a column is constant over the
        events with a share.
    """
    measured_shares = shares[:, 0]
    has_share = measured_shares > 0
    num_first = len(np.unique(first[has_share]))
    num_second = len(np.unique(second[has_share]))
    if num_first < 2 or num_second < 2:
        return np.full(shares.shape[1], np.nan), math.nan
    first_distances = _Distances.of_column(first, shares)
    second_distances = _Distances.of_column(second, shares)
    first_variance = _distance_covariance(first_distances, first_distances, shares)
    second_variance = _distance_covariance(second_distances, second_distances, shares)
    covariance = _distance_covariance(first_distances, second_distances, shares)
    scale = np.sqrt(first_variance * second_variance)
    first_mean = measured_shares @ first_distances.means[:, 0]
    second_mean = measured_shares @ second_distances.means[:, 0]
    sum_of_squares = np.square(measured_shares).sum()
    independent = sum_of_squares * (first_mean * second_mean) / scale[0]
    return covariance / scale, float(independent)


def _distance_covariance(first: _Distances, second: _Distances, shares: Floats) -> Floats:
    """Compute dCov² of two columns for all weightings, (num_weightings,).

    With the distances a and b it is E[ab] - 2 E[a_i b_i] + E[a] E[b].
    """
    products = (first.pairs * second.pairs) @ shares
    mean_product = (shares * products).sum(axis=0)
    mean_product_of_rows = (shares * first.means * second.means).sum(axis=0)
    first_mean = (shares * first.means).sum(axis=0)
    second_mean = (shares * second.means).sum(axis=0)
    return np.asarray(mean_product - 2 * mean_product_of_rows + first_mean * second_mean)


def flatness(values: Floats, passing: NDArray[np.bool_], weights: Floats) -> dict[str, Any]:
    """Measure the efficiency of a cut in bins of a column, and test whether it is flat.

    Args:
        values: (num_events,) the column.
        passing: (num_events,) whether each event passes the cut.
        weights: (num_events,).

    Returns:
        `edges` of bins of nearly equal numbers of events, `efficiency` of each bin (None without
        weight), and `chi_square`, `degrees_of_freedom` and `p_value` of equal efficiencies: for
        weights of 1 Pearson's test, else with effective numbers of events. With too few events that
        pass or fail, or a single bin with a weight, `edges` and `efficiency` are empty, and the
        others None.
    """
    efficiency = float(weights[passing].sum() / weights.sum())
    num_effective, _ = WeightSums.of(weights).effective_events(1.0)
    # The fewer of those that pass and those that fail limit the number of bins.
    num_rarer = num_effective * min(efficiency, 1 - efficiency)
    num_bins = min(_MOST_BINS, int(num_rarer / _EVENTS_PER_BIN))
    edges = _edges(values, num_bins)
    if len(edges) < 3:
        return _NO_FLATNESS
    shares = efficiency_against(values, passing, weights, edges)
    bins = np.searchsorted(edges[1:-1], values, side="right")
    chi_square, num_terms = 0.0, 0
    for index, share in enumerate(shares):
        if share is None:
            continue
        weights_of_bin = weights[bins == index]
        events_of_bin, _ = WeightSums.of(weights_of_bin).effective_events(1.0)
        variance = efficiency * (1 - efficiency) / events_of_bin
        chi_square += (share.value - efficiency) ** 2 / variance
        num_terms += 1
    if num_terms < 2:
        return _NO_FLATNESS
    degrees = num_terms - 1
    p_value = scipy.stats.chi2.sf(chi_square, degrees)
    return {
        "edges": edges.tolist(),
        "efficiency": efficiencies_json(shares),
        "chi_square": chi_square,
        "degrees_of_freedom": degrees,
        "p_value": float(p_value),
    }


def _edges(values: Floats, num_bins: int) -> Floats:
    """Return edges of at most `num_bins` bins of nearly equal numbers of events.

    A bin holds its lower edge, and the last one also its upper edge. Numbers that repeat, such as
    those of jets, are never divided. There are fewer than three edges if one bin holds all.
    """
    if num_bins < 2:
        return np.empty(0)
    steps = np.arange(num_bins) / num_bins
    lower_edges = np.unique(np.quantile(values, steps, method="lower"))
    # A last bin of a single value is as wide as the bin below it.
    end = values.max()
    if end == lower_edges[-1] and len(lower_edges) > 1:
        end = 2 * lower_edges[-1] - lower_edges[-2]
    return np.append(lower_edges, end)
