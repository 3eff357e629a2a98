"""How significant the signal behind each cut is, for expected numbers of events."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from models.evaluation.bootstrap import added, lower_end, upper_end
from models.evaluation.discriminant import Scored
from models.evaluation.intervals import Floats, effective_numbers, typical_weight


def significance(
    scored: Scored, expected: Mapping[int, float], uncertainty: float
) -> dict[str, Floats]:
    """Events and significances behind the points of a score, (num_points,) each; NaN without background.

    `expected` events of each class stand before the cut; the relative `uncertainty` is that of the background.

    Returns:
        `threshold`; expected `signal` and `background`; the `effective` number of test events of the background;
        `simple`, S / sqrt(B); `asimov`, and `low` and `high`, the ends of its one-sigma interval at this threshold from
        the statistics of the test events; the higher one is infinite where too many replicas have no background.
    """
    place = scored.points[:, 0]
    # The cut is the same in all replicas, so that the signal behind it has an error too.
    passing = scored.passing_at(np.repeat(place[:, None], scored.points.shape[1], axis=1))
    ours, others = (
        added(
            passing[each.label, each.sample].times(each.fraction * expected[each.label])
            for each in scored.replicas.strata
            if (each.label in scored.signal) is is_signal
        )
        for is_signal in (True, False)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        simple = np.where(others.value > 0, ours.value / np.sqrt(others.value), np.nan)
    return {
        "threshold": scored.thresholds[place],
        "signal": ours.value,
        "background": others.value,
        "effective": _effective(scored, expected),
        "simple": simple,
        "asimov": asimov_significance(ours.value, others.value, uncertainty),
        "low": lower_end(_in_replicas(ours.low, others.high, uncertainty)),
        "high": upper_end(_in_replicas(ours.high, others.low, uncertainty)),
    }


def _in_replicas(signal: Floats, background: Floats, uncertainty: float) -> Floats:
    """Significances, of which a signal without background has an infinite one: no background bounds it."""
    without_background = np.where(signal > 0, np.inf, 0.0)
    return np.where(
        background > 0, asimov_significance(signal, background, uncertainty), without_background
    )


def _effective(scored: Scored, expected: Mapping[int, float]) -> Floats:
    """Effective number of background events behind the points; 0 where their weights add up to 0 or less.

    Of a sample without any, one of its events counts in the error.
    """
    place, weights = scored.points[:, 0], scored.replicas.weights
    sums, squares = np.zeros((2, len(place)))
    for each in (each for each in scored.replicas.strata if each.label not in scored.signal):
        scaled = weights[each.rows] * expected[each.label] * each.fraction / each.totals[0]
        kept, kept2 = (
            np.cumsum(np.bincount(scored.place[each.rows], of, len(scored.thresholds)))[place]
            for of in (scaled, np.square(scaled))
        )
        sums += kept
        squares += np.where(kept2 > 0, kept2, typical_weight(scaled) ** 2)
    return effective_numbers(sums, squares)


def asimov_significance(signal: Floats, background: Floats, uncertainty: float) -> Floats:
    """Median significance of a discovery by counting, with an uncertain background; NaN where there is none.

    Cowan, Cranmer, Gross, Vitells (2011); with a relative uncertainty Cowan (2012), as ATL-PHYS-PUB-2020-025
    recommends.
    """
    s, b = np.maximum(signal, 0.0), np.where(background > 0, background, np.nan)
    variance = np.square(uncertainty * b)
    # The published form would subtract numbers as large as b.
    both = (s + b) * np.log1p(s * b / (np.square(b) + (s + b) * variance))
    alone = (
        np.square(b) / variance * np.log1p(variance * s / (b * (b + variance)))
        if uncertainty
        else s
    )
    return np.asarray(np.sqrt(np.maximum(2 * (both - alone), 0.0)))
