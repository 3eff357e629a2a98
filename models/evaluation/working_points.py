"""Working points: thresholds at shares of signal or background, and what passes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from models.evaluation.discriminant import Mixture, ReplicatedScore
from models.evaluation.intervals import efficiency
from models.evaluation.rates import Rates, rates_behind

#: Least effective number of events that fail a cut on signal, or that pass a cut on background.
#: With fewer, a threshold is mostly chance.
FEWEST_EVENTS: Final = 10.0
#: Relative tolerance of comparisons, so that rounding does not decide.
_ROUNDING: Final = 1e-9


def working_points(
    score: ReplicatedScore,
    classes: Sequence[str],
    mixture: Mixture,
    rates: Rates | None,
    *,
    seed: int,
) -> list[dict[str, Any]]:
    """Return the numbers at each cut of a score, ready for JSON.

    A working point is a threshold: events at or above it are kept. Its cuts are set by shares of
    the signal, or of a background (see `ReplicatedScore`). A point is measurable if enough events
    decide about its threshold: signal events that fail it, or, for a share of a background,
    background events that pass it. Events on its other side do not count, whatever their weights.

    Args:
        score: The score and its cuts, one for each point.
        classes: Names of the classes, by label.
        mixture: The backgrounds, with their fractions.
        rates: Rates before the classifier; None leaves out rates and purity.
        seed: Seed of the random rates in the replicas.
    """
    if score.background is None:
        count_name = "num_failing"
        counts = score.effective_failing(score.signal)
    else:
        count_name = "num_passing"
        counts = score.effective_passing(score.background)
    share_of_class = {classes[label]: score.class_share(label) for label in mixture.fractions}
    share_of_mixture = score.mixture_share(mixture.fractions)
    # Without rates no point has further numbers.
    rates_at_points: list[dict[str, Any]] = [{}] * len(score.shares)
    if rates:
        rates_at_points = rates_behind(score, rates, classes, seed=seed)
    points = []
    for point, share in enumerate(score.shares.tolist()):
        # Column 0 holds the measured cuts, as indices of thresholds.
        cut = score.cuts[point, 0]
        has_events = counts[cut] >= FEWEST_EVENTS * (1 - _ROUNDING)
        # Even the highest threshold may let more background pass than the share.
        is_too_high = share_of_mixture.value[point] > share * (1 + _ROUNDING)
        is_reached = score.background is None or not is_too_high
        backgrounds = {}
        for name, class_share in share_of_class.items():
            backgrounds[name] = class_share.interval(point).as_json()
        numbers = {
            "wanted": share,
            "threshold": float(score.thresholds[cut]),
            "measurable": bool(is_reached and has_events),
            count_name: float(counts[cut]),
            "signal": _signal_share(score, point),
            "backgrounds": backgrounds,
            "all_backgrounds": share_of_mixture.interval(point).as_json(),
        }
        points.append(numbers | rates_at_points[point])
    return points


def highest_measurable_efficiency(score: ReplicatedScore) -> float:
    """Find the highest signal efficiency at which enough signal events fail; 0 if there is none.

    Enough are effectively 10 events. With negative weights a share may lie outside 0 to 1; it is
    clipped.
    """
    num_failing = score.effective_failing(score.signal)
    is_measurable = num_failing >= FEWEST_EVENTS * (1 - _ROUNDING)
    efficiencies = score.measured_share(score.signal)[is_measurable]
    highest = efficiencies.max(initial=0.0)
    return float(np.clip(highest, 0.0, 1.0))


def _signal_share(score: ReplicatedScore, point: int) -> dict[str, Any]:
    """Compute the share of the signal that passes the cut of a point, with its interval, for JSON.

    If the cuts are set by a background, the interval is that of the replicas. Else the replicas
    have the same share by construction, so the interval is that of a weighted count of events.
    """
    if score.background is not None:
        return score.mixture_share(score.signal).interval(point).as_json()
    # Replicas have the same share of the signal by construction; its interval is that of a count.
    weights = score.mixture_weights(score.signal)
    is_signal = weights != 0
    # Bins count from the highest threshold down, so a lower bin has a higher score.
    passes = score.bins <= score.cuts[point, 0]
    return efficiency(passes[is_signal], weights[is_signal]).as_json()
