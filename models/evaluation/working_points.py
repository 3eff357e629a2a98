"""Working points: thresholds at wanted shares of the signal or of all backgrounds, and what passes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from models.evaluation.discriminant import Mixture, Scored
from models.evaluation.intervals import efficiency
from models.evaluation.rates import Rates, rates_behind

#: Least effective number of events that fail, or that pass; with fewer, the place of a threshold is mostly chance.
FEWEST_EVENTS: Final = 10.0
_ROUNDING: Final = 1e-9


def working_points(
    scored: Scored, classes: Sequence[str], mixture: Mixture, rates: Rates | None, *, seed: int
) -> list[dict[str, Any]]:
    """Each wanted point of a score, for JSON.

    A point is measurable if enough events decide about its threshold: those of the signal that fail it, or, for a
    wanted share of a background, those of the background that pass it. Events on its other side do not count,
    whatever their weights.
    """
    if scored.background is None:
        counted, numbers = "num_failing", scored.effective_failing(scored.signal)
    else:
        counted, numbers = "num_passing", scored.effective_passing(scored.background)
    thresholds = scored.points[:, 0]
    share_of_class = {classes[label]: scored.of_class(label) for label in mixture.fractions}
    share_of_mixture = scored.of_mixture(mixture.fractions)
    behind = rates_behind(scored, rates, classes, seed=seed) if rates else [{}] * len(thresholds)
    points = []
    for point, (wanted, threshold) in enumerate(
        zip(scored.wanted.tolist(), thresholds.tolist(), strict=True)
    ):
        number = float(numbers[threshold])
        is_reached = scored.background is None or share_of_mixture.value[point] <= wanted * (
            1 + _ROUNDING
        )
        shares = {name: share.interval(point).as_json() for name, share in share_of_class.items()}
        points.append(
            {
                "wanted": wanted,
                "threshold": float(scored.thresholds[threshold]),
                "measurable": bool(is_reached and number >= FEWEST_EVENTS * (1 - _ROUNDING)),
                counted: number,
                "signal": _share_of_signal(scored, point),
                "backgrounds": shares,
                "all_backgrounds": share_of_mixture.interval(point).as_json(),
                **behind[point],
            }
        )
    return points


def measurable_to(scored: Scored) -> float:
    """Highest signal efficiency at which enough events of the signal fail; 0 if there is none."""
    fails_enough = scored.effective_failing(scored.signal) >= FEWEST_EVENTS * (1 - _ROUNDING)
    kept = scored.share_passing(scored.signal)[fails_enough]
    return float(np.clip(kept.max(initial=0.0), 0.0, 1.0))


def _share_of_signal(scored: Scored, point: int) -> dict[str, Any]:
    if scored.background is not None:
        return scored.of_mixture(scored.signal).interval(point).as_json()
    # Replicas keep the same share of the signal; how far it may be another is the interval of a count.
    weights = scored.mixed(scored.signal)
    is_signal = weights != 0
    passes = scored.place <= scored.points[point, 0]
    return efficiency(passes[is_signal], weights[is_signal]).as_json()
