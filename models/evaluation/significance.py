"""How significant the signal behind each cut is, for expected numbers of events."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from models.evaluation.bootstrap import ReplicatedInterval, lower_end, sum_intervals, upper_end
from models.evaluation.discriminant import ReplicatedScore
from models.evaluation.intervals import Floats, effective_numbers, typical_weight


def significance(
    score: ReplicatedScore, expected: Mapping[int, float], uncertainty: float
) -> dict[str, Floats]:
    """Compute events and significances behind the cuts of a score, (num_points,) each.

    The significance says by how many standard deviations the expected signal exceeds a background
    fluctuation. It is NaN where no background is left.

    Args:
        score: The score and its cuts.
        expected: Number of events of each class, by label, before the cut.
        uncertainty: Relative uncertainty of the background.

    Returns:
        `threshold`; expected `signal` and `background`; the `effective` number of test events of
        the background; `simple`, S / sqrt(B); `asimov`, and `low` and `high`, the ends of its
        one-sigma interval at this threshold from the statistics of the test events. The higher end
        is infinite where too many replicas have no background.
    """
    # Column 0 holds the measured cuts; the other columns are those of the replicas.
    cuts = score.cuts[:, 0]
    signal, background = _expected_behind(score, cuts, expected)
    with np.errstate(divide="ignore", invalid="ignore"):
        simple = signal.value / np.sqrt(background.value)
    has_background = background.value > 0
    # Little signal over much background gives the lower end, and the reverse the upper end.
    low_replicas = _significance_in_replicas(signal.low, background.high, uncertainty)
    high_replicas = _significance_in_replicas(signal.high, background.low, uncertainty)
    effective_background = _effective_background(score, cuts, expected)
    asimov = asimov_significance(signal.value, background.value, uncertainty)
    return {
        "threshold": score.thresholds[cuts],
        "signal": signal.value,
        "background": background.value,
        "effective": effective_background,
        "simple": np.where(has_background, simple, np.nan),
        "asimov": asimov,
        "low": lower_end(low_replicas),
        "high": upper_end(high_replicas),
    }


def _expected_behind(
    score: ReplicatedScore, cuts: NDArray[np.int64], expected: Mapping[int, float]
) -> tuple[ReplicatedInterval, ReplicatedInterval]:
    """Compute the expected events of signal and of background behind some cuts.

    `cuts` are indices of thresholds, (num_points,), the same in all replicas, which are copies of
    the events with random weights. A stratum holds the events of one class in one sample: its
    efficiency times its expected number of events is summed over signal and over background.
    """
    # A fixed cut gives the signal behind it an error too.
    num_columns = score.cuts.shape[1]
    same_cuts = np.repeat(cuts[:, None], num_columns, axis=1)
    shares = score.sample_shares_at(same_cuts)
    signal, background = [], []
    for stratum in score.replicas.strata:
        num_expected = stratum.fraction * expected[stratum.label]
        share = shares[stratum.label, stratum.sample]
        behind = share.scaled(num_expected)
        if stratum.label in score.signal:
            signal.append(behind)
        else:
            background.append(behind)
    return sum_intervals(signal), sum_intervals(background)


def _significance_in_replicas(signal: Floats, background: Floats, uncertainty: float) -> Floats:
    """Compute significances in replicas, which may have no background.

    A signal without background is infinitely significant, since no background bounds it; without
    signal it is 0.
    """
    without_background = np.where(signal > 0, np.inf, 0.0)
    with_background = asimov_significance(signal, background, uncertainty)
    return np.where(background > 0, with_background, without_background)


def _effective_background(
    score: ReplicatedScore, cuts: NDArray[np.int64], expected: Mapping[int, float]
) -> Floats:
    """Compute the effective number of background events behind cuts: sum^2 / sum of squares.

    It tells how well the simulation measures the background. It is 0 where the weights add up to 0
    or less. If no event of a sample passes, one typical event of it counts in the sum of squares.
    """
    num_thresholds = len(score.thresholds)
    sums, squares = np.zeros((2, len(cuts)))
    # A stratum holds the events of one class in one sample.
    for stratum in score.replicas.strata:
        if stratum.label in score.signal:
            continue
        weights = score.replicas.weights[stratum.rows] * expected[stratum.label]
        # Now the weights add up to the expected number of events of this sample.
        weights = weights * stratum.fraction / stratum.totals[0]
        bins = score.bins[stratum.rows]
        # Bin 0 is that of the highest threshold: running sums hold all events above each one.
        sums_in_bins = np.bincount(bins, weights, num_thresholds)
        squares_in_bins = np.bincount(bins, np.square(weights), num_thresholds)
        sums_above = np.cumsum(sums_in_bins)
        squares_above = np.cumsum(squares_in_bins)
        sums += sums_above[cuts]
        # Where no event passes, the typical weight of one event stands for the unknown error.
        squares_behind = squares_above[cuts]
        unseen_square = typical_weight(weights) ** 2
        squares += np.where(squares_behind > 0, squares_behind, unseen_square)
    return effective_numbers(sums, squares)


def asimov_significance(signal: Floats, background: Floats, uncertainty: float) -> Floats:
    """Compute the median significance Z of a discovery by counting, with an uncertain background.

    For s expected signal and b expected background events, and the variance v = (uncertainty x b)^2
    of the background,

        Z^2 = 2 (first - second)
        first = (s + b) ln((s + b)(b + v) / (b^2 + (s + b) v))
        second = b^2 / v ln(1 + v s / (b (b + v))), which tends to s without an uncertainty.

    Z is NaN without background. Source: Cowan, Cranmer, Gross, Vitells (2011); with an uncertainty
    Cowan (2012), as ATL-PHYS-PUB-2020-025 recommends.

    Args:
        signal: Expected numbers of signal events; those below 0 count as 0.
        background: Expected numbers of background events, of the same shape.
        uncertainty: Relative uncertainty of the background.
    """
    s = np.maximum(signal, 0.0)
    # NaN in place of a missing background makes Z NaN there, without a division by 0.
    b = np.where(background > 0, background, np.nan)
    v = np.square(uncertainty * b)

    # The fraction in the first logarithm is 1 + s b / (b^2 + (s + b) v). For a small signal it is
    # nearly 1, and only `log1p` keeps its digits.
    first_excess = s * b / (np.square(b) + (s + b) * v)
    first = (s + b) * np.log1p(first_excess)
    second = s
    if uncertainty:
        second_excess = v * s / (b * (b + v))
        second = np.square(b) / v * np.log1p(second_excess)

    # Rounding may push a difference of 0 slightly below 0.
    z_squared = np.maximum(2 * (first - second), 0.0)
    return np.asarray(np.sqrt(z_squared))
