"""Curves and comparisons of an evaluation: background efficiencies, kinematics, two samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kstwo

from models.errors import UndefinedMetricError
from models.evaluation.bootstrap import lower_end, upper_end
from models.evaluation.discriminant import ReplicatedScore
from models.evaluation.intervals import Efficiency, Floats, WeightSums, efficiency

#: Bin edges of the variables in plots of efficiencies; names as in `features.columns.HIGH_LEVEL`.
#: pT, HT and missing ET are in GeV. The leptons begin at the published selection; see
#: `kinematic_edges`.
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
    """(num_points,), rising to 1."""
    background_efficiency: Floats
    """(num_points,) at the highest threshold with this signal efficiency."""
    low: Floats
    """(num_points,) lower end of the one-sigma interval of the background efficiency."""
    high: Floats
    """(num_points,) upper end of the one-sigma interval of the background efficiency."""
    replicas: Floats
    """(num_points, num_replicas) background efficiency in each replica."""


def background_curve(score: ReplicatedScore, fractions: Mapping[int, float]) -> EfficiencyCurve:
    """Compute which share of some backgrounds passes at each signal efficiency of a score.

    Each point is a working point: each replica, a copy of the events with random weights, has its
    own threshold for the same signal efficiency. `fractions` are those of the backgrounds in their
    mixture, by label.
    """
    share = score.mixture_share(fractions)
    intervals = [share.interval(point) for point in range(len(score.shares))]
    low_ends = [interval.low for interval in intervals]
    high_ends = [interval.high for interval in intervals]
    # The ends differ by the margin for events that were not seen; the curve takes their middle.
    replicas = (share.low + share.high) / 2
    return EfficiencyCurve(
        signal_efficiency=score.shares,
        background_efficiency=share.value,
        low=np.array(low_ends),
        high=np.array(high_ends),
        replicas=replicas,
    )


def ratio(curve: EfficiencyCurve, reference: EfficiencyCurve) -> tuple[Floats, Floats, Floats]:
    """Return background efficiency relative to that of another model, and the ends of its interval.

    Both curves have the same signal efficiencies and the same replicas, so that common fluctuations
    cancel. The three results are (num_points,). The ratio is NaN where the reference lets nothing
    pass.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        value = curve.background_efficiency / reference.background_efficiency
        replicas = curve.replicas / reference.replicas
    finite_value = np.where(np.isfinite(value), value, np.nan)
    return finite_value, lower_end(replicas), upper_end(replicas)


def kolmogorov_smirnov(
    first: Floats, first_weights: Floats, second: Floats, second_weights: Floats
) -> dict[str, float | None]:
    """Test whether two weighted samples follow the same distribution.

    `distance` is the largest difference of the two weighted distribution functions. `p_value` is
    the probability of a distance at least as large if they are the same.

    For unit weights the p-value equals that of scipy's `ks_2samp(method="asymp")`. Else it uses the
    effective numbers of events and is approximate (Monahan, Numerical Methods of Statistics, 2011).
    Ties make it too large. With negative weights a distribution function may fall, or leave the
    range 0 to 1; the distance is still the largest one and may exceed 1.

    The p-value of samples so small that the formula does not hold is None. Both numbers are None if
    the weights of a sample add up to 0 or less.
    """
    first_sums = WeightSums.of(first_weights)
    second_sums = WeightSums.of(second_weights)
    if not (first_sums.is_positive and second_sums.is_positive):
        return {"distance": None, "p_value": None}
    distance = cumulative_distance(first, first_weights, second, second_weights)
    first_size, _ = first_sums.effective_events(1.0)
    second_size, _ = second_sums.effective_events(1.0)
    # The formula takes n1 n2 / (n1 + n2), which scipy rounds to whole events. Rounding to 9 digits
    # first keeps a common factor of the weights from tipping a half.
    exact_size = first_size * second_size / (first_size + second_size)
    size = round(round(exact_size, 9))
    p_value = None
    if size >= 1:
        p_value = float(kstwo.sf(distance, size))
    return {"distance": distance, "p_value": p_value}


def weighted_histogram(values: Floats, edges: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Compute sums of weights in bins, and their statistical errors."""
    sums, _ = np.histogram(values, edges, weights=weights)
    squares, _ = np.histogram(values, edges, weights=np.square(weights))
    return sums, np.sqrt(squares)


def cumulative_distance(
    first: Floats, first_weights: Floats, second: Floats, second_weights: Floats
) -> float:
    """Compute the largest difference of the weighted distribution functions of two samples.

    The arguments are those of `kolmogorov_smirnov`.
    """
    # Both functions change only at the values, so their largest difference is at one of them.
    points = np.unique(np.concatenate([first, second]))
    first_distribution = _distribution_at(first, first_weights, points)
    second_distribution = _distribution_at(second, second_weights, points)
    return float(np.abs(first_distribution - second_distribution).max())


def _distribution_at(values: Floats, weights: Floats, points: Floats) -> Floats:
    """Compute the share of a sample's weight with values at or below each point, (num_points,)."""
    order = np.argsort(values)
    # Entry k is the weight of the k lowest values.
    rising_sums = np.cumsum(weights[order])
    cumulative = np.concatenate([[0.0], rising_sums])
    num_below = np.searchsorted(values[order], points, side="right")
    shares = cumulative[num_below] / weights.sum()
    return np.asarray(shares, dtype=np.float64)


def kinematic_edges(
    min_lepton_pt: float, max_lepton_abs_eta: float | None
) -> dict[str, tuple[float, ...]]:
    """Return `KINEMATIC_EDGES`, with the lepton bins cut at the edges of the selection.

    Without `max_lepton_abs_eta` the outer eta edges stay.

    Examples:
        >>> edges = kinematic_edges(26.0, 2.1)
        >>> edges["lepton_pt"][:3], edges["lepton_eta"][:2], edges["lepton_eta"][-2:]
        ((26.0, 30, 40), (-2.1, -2.0), (2.0, 2.1))
    """
    pt_edges = KINEMATIC_EDGES["lepton_pt"]
    eta_edges = KINEMATIC_EDGES["lepton_eta"]
    max_abs_eta = max_lepton_abs_eta or eta_edges[-1]
    pt_above = [edge for edge in pt_edges if edge > min_lepton_pt]
    # If the cut lies above all edges, there is one bin up to twice the cut.
    if not pt_above:
        pt_above = [2 * min_lepton_pt]
    eta_inside = [edge for edge in eta_edges if abs(edge) < max_abs_eta]
    return {
        **KINEMATIC_EDGES,
        "lepton_pt": (min_lepton_pt, *pt_above),
        "lepton_eta": (-max_abs_eta, *eta_inside, max_abs_eta),
    }


def efficiency_against(
    variable: Floats, passing: NDArray[np.bool_], weights: Floats, edges: Sequence[float] | Floats
) -> list[Efficiency | None]:
    """Compute the share of events that pass, in bins of a variable, with intervals.

    The share is None for bins whose weights add up to 0 or less. A bin contains its lower edge. The
    first bin also holds all events below it, the last all events above it.

    Args:
        variable: (num_events,); a value that is NaN is an `UndefinedMetricError`.
        passing: (num_events,) whether each event passes.
        weights: (num_events,).
        edges: (num_bins + 1,), rising.
    """
    if np.isnan(variable).any():
        raise UndefinedMetricError("a value of the variable is not a number. Check the features.")
    inner_edges = np.asarray(edges[1:-1], dtype=np.float64)
    # Without the outer edges, values beyond them fall into the first and last bin.
    bins = np.searchsorted(inner_edges, variable, side="right")
    efficiencies: list[Efficiency | None] = []
    for index in range(len(edges) - 1):
        in_bin = bins == index
        bin_weights = weights[in_bin]
        if WeightSums.of(bin_weights).is_positive:
            efficiencies.append(efficiency(passing[in_bin], bin_weights))
        else:
            efficiencies.append(None)
    return efficiencies


def efficiencies_json(efficiencies: Sequence[Efficiency | None]) -> list[dict[str, Any] | None]:
    """Return the efficiencies in bins for JSON; a bin without weight is null."""
    bins: list[dict[str, Any] | None] = []
    for share in efficiencies:
        if share is None:
            bins.append(None)
        else:
            bins.append(share.as_json())
    return bins
