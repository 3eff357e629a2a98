"""How significant the signal behind each cut is, for expected numbers of events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from models.evaluation.bootstrap import Ends, added
from models.evaluation.discriminant import Scored
from models.evaluation.intervals import ONE_SIGMA, Floats


class Significance(NamedTuple):
    """Expected events and significances behind the points of a score, (num_points,) each; NaN without background."""

    threshold: Floats
    signal: Floats
    background: Floats
    simple: Floats
    """S / sqrt(B)."""
    asimov: Floats
    low: Floats
    """Lower end of the one-sigma interval of `asimov` from the statistics of the test events."""
    high: Floats


def significance(scored: Scored, expected: Mapping[int, float], uncertainty: float) -> Significance:
    """Significances behind the points of a score.

    Args:
        scored: A score of the test events.
        expected: Expected number of events of each class before the cut.
        uncertainty: Relative uncertainty of the background.
    """
    ours, others = (
        added(
            scored.of_class(label).times(size) for label, size in expected.items() if (label in scored.signal) is each
        )
        for each in (True, False)
    )

    def replicas(each: Ends) -> Floats:
        return (each.low + each.high) / 2

    of_replicas = asimov_significance(replicas(ours), replicas(others), uncertainty)
    low, high = np.quantile(of_replicas, [ONE_SIGMA / 2, 1 - ONE_SIGMA / 2], axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        simple = np.where(others.value > 0, ours.value / np.sqrt(others.value), np.nan)
    return Significance(
        scored.thresholds[scored.points[:, 0]],
        *(ours.value, others.value, simple),
        *(asimov_significance(ours.value, others.value, uncertainty), low, high),
    )


def asimov_significance(signal: Floats, background: Floats, uncertainty: float) -> Floats:
    """Median significance of a discovery by counting, with an uncertain background; NaN where there is none.

    Cowan, Cranmer, Gross, Vitells (2011); with an uncertainty Cowan (2012), as ATL-PHYS-PUB-2020-025 recommends.

    Args:
        signal: Expected events of the signal.
        background: Expected events of the background.
        uncertainty: Relative uncertainty of the background, at least 0.

    Examples:
        >>> [round(float(asimov_significance(np.array(10.0), np.array(100.0), each)), 3) for each in (0.0, 0.1)]
        [0.984, 0.69]
    """
    s, b = np.maximum(signal, 0.0), np.where(background > 0, background, np.nan)
    if uncertainty == 0:
        return np.asarray(np.sqrt(np.maximum(2 * ((s + b) * np.log1p(s / b) - s), 0.0)))
    variance = np.square(uncertainty * b)
    both = (s + b) * np.log((s + b) * (b + variance) / (np.square(b) + (s + b) * variance))
    alone = np.square(b) / variance * np.log1p(variance * s / (b * (b + variance)))
    return np.asarray(np.sqrt(np.maximum(2 * (both - alone), 0.0)))
