"""Curves and comparisons of an evaluation: background efficiencies, kinematics, two samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kstwo

from models.errors import UndefinedMetricError
from models.evaluation.bootstrap import lower_end, upper_end
from models.evaluation.discriminant import Scored
from models.evaluation.intervals import Efficiency, Floats, WeightSums, efficiency

#: Bin edges of the variables in plots of efficiencies; names as in `features.columns.HIGH_LEVEL`. pT, HT and missing ET
#: in GeV. Those of the leptons are of the published selection; see `kinematic_edges`.
KINEMATIC_EDGES: Final[dict[str, tuple[float, ...]]] = {
    "lepton_pt": (23, 30, 40, 50, 70, 100, 150, 300),
    "lepton_eta": (-2.5, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5),
    "ht": (0, 100, 200, 300, 400, 600, 1000),
    "met": (0, 20, 40, 60, 100, 150, 300),
    "num_jets": (-0.5, 0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5),
}


class EfficiencyCurve(NamedTuple):
    """Background efficiency against signal efficiency."""

    signal_efficiency: Floats
    """(num_points,) wanted signal efficiencies, rising to 1."""
    background_efficiency: Floats
    """(num_points,) background efficiency at the highest threshold that keeps the wanted signal efficiency."""
    low: Floats
    """(num_points,) lower end of the one-sigma interval of the background efficiency."""
    high: Floats
    """(num_points,) upper end of the one-sigma interval of the background efficiency."""
    replicas: Floats
    """(num_points, num_replicas) background efficiency in each replica."""


def background_curve(scored: Scored, fractions: Mapping[int, float]) -> EfficiencyCurve:
    """Share of a mixture of backgrounds that passes at each wanted signal efficiency of a score.

    Each point is a working point: the threshold is found anew in each replica of the events.
    """
    found = scored.of_mixture(fractions)
    ends = [found.interval(point) for point in range(len(scored.wanted))]
    low, high = (np.array([getattr(each, name) for each in ends]) for name in ("low", "high"))
    return EfficiencyCurve(scored.wanted, found.value, low, high, (found.low + found.high) / 2)


def ratio(curve: EfficiencyCurve, reference: EfficiencyCurve) -> tuple[Floats, Floats, Floats]:
    """Background efficiency relative to that of another model at the same signal efficiency, with its interval.

    Both curves are of the same replicas, so that what the events have in common cancels. It is not a number where the
    other model lets nothing pass.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        value = curve.background_efficiency / reference.background_efficiency
        replicas = curve.replicas / reference.replicas
    return np.where(np.isfinite(value), value, np.nan), lower_end(replicas), upper_end(replicas)


def kolmogorov_smirnov(
    first: Floats, first_weights: Floats, second: Floats, second_weights: Floats
) -> dict[str, float | None]:
    """Largest `distance` of the weighted distribution functions of two samples, and its `p_value`.

    For unit weights the p-value equals that of scipy's `ks_2samp(method="asymp")`; else it uses the effective numbers
    of events and is approximate (Monahan, Numerical Methods of Statistics, 2011). Ties make it too large. With negative
    weights a distribution function may fall, or leave the range 0 to 1; the distance is still the largest one and may
    exceed 1. The p-value of samples so small that the formula does not hold is None; so are both numbers of a sample
    whose weights add up to 0 or less.
    """
    sums = [WeightSums.of(weights) for weights in (first_weights, second_weights)]
    if not all(each.is_positive for each in sums):
        return {"distance": None, "p_value": None}
    distance = cumulative_distance(first, first_weights, second, second_weights)
    first_size, second_size = (each.counted(1.0)[0] for each in sums)
    # scipy rounds to whole events. Round to 9 digits first, so that a common weight factor cannot tip a half.
    size = round(round(first_size * second_size / (first_size + second_size), 9))
    p_value = float(kstwo.sf(distance, size)) if size >= 1 else None
    return {"distance": distance, "p_value": p_value}


def weighted_histogram(values: Floats, edges: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Sums of weights in bins, and their statistical errors."""
    (sums, squares) = (
        np.histogram(values, edges, weights=each)[0] for each in (weights, np.square(weights))
    )
    return sums, np.sqrt(squares)


def cumulative_distance(
    first: Floats, first_weights: Floats, second: Floats, second_weights: Floats
) -> float:
    """Largest difference of the weighted distribution functions of two samples; arguments as `kolmogorov_smirnov`."""
    places = np.unique(np.concatenate([first, second]))
    difference = _distribution_at(first, first_weights, places) - _distribution_at(
        second, second_weights, places
    )
    return float(np.abs(difference).max())


def _distribution_at(values: Floats, weights: Floats, places: Floats) -> Floats:
    """Share of the weight with values at or below each place."""
    order = np.argsort(values)
    below = np.concatenate([[0.0], np.cumsum(weights[order])])
    below = below[np.searchsorted(values[order], places, side="right")]
    return np.asarray(below / weights.sum(), dtype=np.float64)


def kinematic_edges(
    min_lepton_pt: float, max_lepton_abs_eta: float | None
) -> dict[str, tuple[float, ...]]:
    """`KINEMATIC_EDGES`, where the leptons begin and end at the cuts of the selection.

    Examples:
        >>> edges = kinematic_edges(26.0, 2.1)
        >>> edges["lepton_pt"][:3], edges["lepton_eta"][:2], edges["lepton_eta"][-2:]
        ((26.0, 30, 40), (-2.1, -2.0), (2.0, 2.1))
    """
    pt, eta = (KINEMATIC_EDGES[name] for name in ("lepton_pt", "lepton_eta"))
    end = max_lepton_abs_eta or eta[-1]
    above = [edge for edge in pt if edge > min_lepton_pt] or [2 * min_lepton_pt]
    inside = [edge for edge in eta if abs(edge) < end]
    return {
        **KINEMATIC_EDGES,
        "lepton_pt": (min_lepton_pt, *above),
        "lepton_eta": (-end, *inside, end),
    }


def efficiency_against(
    variable: Floats, passing: NDArray[np.bool_], weights: Floats, edges: Sequence[float] | Floats
) -> list[Efficiency | None]:
    """Share of events that pass, in bins of a variable; None for bins whose weights add up to 0 or less.

    A bin contains its lower edge. The first bin also holds all events below it, the last all events above it. The
    (num_bins + 1,) edges rise. A value that is not a number is an `UndefinedMetricError`.
    """
    if np.isnan(variable).any():
        raise UndefinedMetricError("a value of the variable is not a number. Check the features.")
    place = np.searchsorted(np.asarray(edges[1:-1], dtype=np.float64), variable, side="right")
    chosen = [place == index for index in range(len(edges) - 1)]
    return [
        efficiency(passing[each], weights[each])
        if WeightSums.of(weights[each]).is_positive
        else None
        for each in chosen
    ]
