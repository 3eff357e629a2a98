"""The distance correlation of two columns of weighted events, as a function of tensors.

Székely, Rizzo, Bakirov, "Measuring and testing dependence by correlation of distances", Ann. Stat.
35 (2007) 2769; with weights, as a term of a loss: Kasieczka, Shih, "Robust jet classifiers through
distance correlation", Phys. Rev. Lett. 125 (2020) 122001.
"""

from __future__ import annotations

from torch import Tensor


def distance_correlation(first: Tensor, second: Tensor, weights: Tensor) -> Tensor:
    """Return dCorr², the squared distance correlation of two columns: a scalar from 0 to 1, float64.

    It is 1 for a linear relation. For independent columns it tends to 0 with more events. Shifts
    and scales of a column change nothing, an event of weight 2 counts like two equal events.
    Memory and time grow with the square of the number of events.

    Args:
        first: (num_events,) the first column.
        second: (num_events,) the second column.
        weights: (num_events,) at least 0, of any scale.

    Returns:
        0 without a gradient where dCorr² is not defined: a column is constant over the events that
        have a weight, or there is no weight.
    """
    # Differences of means cancel most digits of nearly independent columns, hence float64.
    weights = weights.double()
    undefined = weights.new_zeros(())
    total_weight = weights.sum()
    if total_weight <= 0:
        return undefined
    shares = weights / total_weight
    first_distances = _scaled_distances(first.double(), shares)
    second_distances = _scaled_distances(second.double(), shares)
    if first_distances is None or second_distances is None:
        return undefined
    covariance = _distance_covariance(first_distances, second_distances, shares)
    first_variance = _distance_covariance(first_distances, first_distances, shares)
    second_variance = _distance_covariance(second_distances, second_distances, shares)
    return covariance / (first_variance * second_variance).sqrt()


def _scaled_distances(column: Tensor, shares: Tensor) -> Tensor | None:
    """Return |x_i - x_j| in units of its mean, (num_events, num_events); None if it is always 0.

    The unit is a constant for the gradient, since no scale changes the correlation.
    """
    distances = (column[:, None] - column[None, :]).abs()
    mean_distance = (shares @ distances @ shares).detach()
    if mean_distance <= 0:
        return None
    return distances / mean_distance


def _distance_covariance(first: Tensor, second: Tensor, shares: Tensor) -> Tensor:
    """Return dCov² of two matrices of distances, the mean product of the centred matrices.

    Centred means: minus the means of row and column, plus the mean of all. The products of these
    means add up to E[ab] - 2 E[a_i b_i] + E[a] E[b] with the means a_i and b_i of the rows, which
    needs no centred matrix.

    Args:
        first: (num_events, num_events) distances.
        second: (num_events, num_events) distances.
        shares: (num_events,) share of each event in the sum of weights.
    """
    first_means, second_means = first @ shares, second @ shares
    mean_product = shares @ (first * second) @ shares
    mean_product_of_rows = (shares * first_means * second_means).sum()
    product_of_means = (shares @ first_means) * (shares @ second_means)
    return mean_product - 2 * mean_product_of_rows + product_of_means
