"""Trigger rates and purity behind a working point, from each sample's own efficiency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from models.evaluation.bootstrap import Ends, Estimate, added
from models.evaluation.discriminant import Scored
from models.evaluation.intervals import Floats


class Rates(NamedTuple):
    """Rates before the classifier [1/s], with the errors of selection and cross-section."""

    of_samples: Mapping[str, Estimate]
    labels: Mapping[str, int]
    """Class of each sample."""

    @property
    def values(self) -> dict[str, float]:
        """Rates by sample, without their errors."""
        return {name: each.value for name, each in self.of_samples.items()}

    def of_class(self, label: int) -> float:
        """Rate of a class: the sum over its samples."""
        return sum(each.value for name, each in self.of_samples.items() if self.labels[name] == label)

    def of_classes(self, classes: Sequence[str]) -> dict[str, float]:
        """Rates by name of the class."""
        return {name: self.of_class(label) for label, name in enumerate(classes)}


def rates_behind(scored: Scored, rates: Rates, classes: Sequence[str], *, seed: int) -> list[dict[str, Any]]:
    """Rates of each class, of all together, and the purity behind each point, with intervals.

    The rate of a class is the sum over its samples of rate before the classifier x efficiency of the sample. The
    purity is None if the total rate is 0 or less.
    """
    rng = np.random.default_rng([seed, 1])
    parts: dict[int, list[Ends]] = {}
    for sample, before in rates.of_samples.items():
        label = rates.labels[sample]
        # A sample without test events passes with the efficiency of its class.
        passing = scored.passing.get((label, sample)) or scored.of_class(label)
        factors = before.value * np.concatenate([[1.0], _factors(before, passing.low.shape[1], rng)])
        parts.setdefault(label, []).append(passing.times(factors))
    found = {label: added(each) for label, each in sorted(parts.items())}
    total = added(found.values())
    background = added(each for label, each in found.items() if label not in scored.signal)
    ours = added(found[label] for label in scored.signal)
    purity = Ends(
        _purity(ours.value, background.value), _purity(ours.low, background.high), _purity(ours.high, background.low)
    )
    return [
        {
            "rates": {classes[label]: each.interval(point)._asdict() for label, each in found.items()},
            "total_rate": total.interval(point)._asdict(),
            # Negative weights may make the total rate 0 or less. JSON has no NaN, so write null.
            "purity": purity.interval(point)._asdict() if total.value[point] > 0 else None,
        }
        for point in range(len(scored.wanted))
    ]


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
