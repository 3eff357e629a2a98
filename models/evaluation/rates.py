"""Trigger rates, or expected events, and purity behind a working point, from each sample's own efficiency."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from models.evaluation.bootstrap import Ends, Estimate, added
from models.evaluation.discriminant import Scored
from models.evaluation.intervals import Floats


class Rates(NamedTuple):
    """Rates before the classifier [1/s], or events of an integrated luminosity; with their errors.

    The errors are those of selection and cross-section.
    """

    of_samples: Mapping[str, Estimate]
    labels: Mapping[str, int]
    """Class of each sample."""
    are_events: bool = False
    """Whether they are numbers of events, as an offline analysis counts them."""

    @property
    def values(self) -> dict[str, float]:
        """Rates by sample, without their errors."""
        return {name: rate.value for name, rate in self.of_samples.items()}

    def of_class(self, label: int) -> float:
        """Rate of a class: the sum over its samples."""
        return sum(
            rate.value for name, rate in self.of_samples.items() if self.labels[name] == label
        )

    def of_classes(self, classes: Sequence[str]) -> dict[str, float]:
        """Rates by name of the class, of those that have samples."""
        known = {self.labels[name] for name in self.of_samples}
        return {name: self.of_class(label) for label, name in enumerate(classes) if label in known}


def rates_behind(
    scored: Scored, rates: Rates, classes: Sequence[str], *, seed: int
) -> list[dict[str, Any]]:
    """Rates or events of each class and of all together, and the purity, behind each point, with intervals.

    That of a class is the sum over its samples of rate before the classifier x efficiency of the sample. The purity
    is None if the total is 0 or less.
    """
    of_class = _behind_by_class(scored, rates, seed=seed)
    total = added(of_class.values())
    signal = added(of_class[label] for label in scored.signal)
    background = added(behind for label, behind in of_class.items() if label not in scored.signal)
    purity = Ends(
        _purity(signal.value, background.value),
        _purity(signal.low, background.high),
        _purity(signal.high, background.low),
    )
    points = []
    for point in range(len(scored.wanted)):
        # Of a class that cannot be measured there is none.
        by_class: dict[str, Any] = dict.fromkeys(classes)
        for label, behind in of_class.items():
            by_class[classes[label]] = _rate_as_json(behind, point)
        if rates.are_events:
            numbers: dict[str, Any] = {
                "events": by_class,
                "signal_events": _rate_as_json(signal, point),
                "background_events": _rate_as_json(background, point),
            }
        else:
            numbers = {"rates": by_class, "total_rate": _rate_as_json(total, point)}
        # Negative weights may make the total 0 or less.
        is_defined = total.value[point] > 0
        numbers["purity"] = purity.interval(point).as_json() if is_defined else None
        points.append(numbers)
    return points


def _behind_by_class(scored: Scored, rates: Rates, *, seed: int) -> dict[int, Ends]:
    """Rate of each class behind the points, in all replicas."""
    rng = np.random.default_rng([seed, 1])
    samples_of_class: dict[int, list[Ends]] = {}
    for sample, before in rates.of_samples.items():
        label = rates.labels[sample]
        # A sample without test events passes with the efficiency of its class.
        passing = scored.passing.get((label, sample)) or scored.of_class(label)
        factors = before.value * np.concatenate(
            [[1.0], _factors(before, passing.low.shape[1], rng)]
        )
        samples_of_class.setdefault(label, []).append(passing.times(factors))
    return {label: added(samples) for label, samples in sorted(samples_of_class.items())}


def _rate_as_json(rate: Ends, point: int) -> dict[str, Any]:
    return rate.interval(point).as_json(most=math.inf)


def _purity(ours: Floats, background: Floats) -> Floats:
    """Share of the signal; 0 where the total is 0 or less."""
    total = ours + background
    return np.divide(ours, total, out=np.zeros_like(total), where=total > 0)


def _factors(before: Estimate, num: int, rng: np.random.Generator) -> Floats:
    """Positive random factors with the relative error of a rate."""
    if before.error <= 0 or before.value <= 0:
        return np.ones(num)
    size = (before.value / before.error) ** 2
    return np.asarray(rng.standard_gamma(size, num) / size)
