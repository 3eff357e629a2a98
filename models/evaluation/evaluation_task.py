"""The definition of an evaluation: the classes, the signal and its backgrounds, working points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from models.evaluation.curves import KINEMATIC_EDGES
from models.evaluation.discriminant import Mixture, discriminant
from models.evaluation.intervals import Floats
from models.evaluation.rates import Rates
from models.evaluation.scored_events import ScoredEvents
from models.evaluation.style import PlotLabels, luminosity_text

#: Name of the mixture of all backgrounds, beside the names of the single ones.
ALL_BACKGROUNDS: Final = "all backgrounds"


class EvaluationTask(NamedTuple):
    """Defines an evaluation: classes, signal, mixing of samples, working points and blinding.

    Classes are numbered by their labels, 0, 1, ..., in the order of `classes`.
    """

    classes: Sequence[str]
    """Names of the classes, by label."""
    signals: Sequence[int]
    """The classes that working points shall keep; numbers count only `signal_labels`."""
    working_points: Sequence[float]
    """Signal efficiencies; the first one is that of the efficiencies against kinematics."""
    rates: Rates | None
    """Rates before the classifier; None if cross-sections are unknown."""
    labels: PlotLabels
    """Labels of the plots, not of the classes."""
    seed: int
    """Seed of all random numbers of the evaluation."""
    by_rate: bool = True
    """Whether backgrounds count in the fractions of their rates, where these are known; else in
    equal parts."""
    edges: Mapping[str, Sequence[float]] = KINEMATIC_EDGES
    """Bins of the kinematic variables."""
    background_points: Sequence[float] = ()
    """Efficiencies of all backgrounds at which the signal is reported."""
    expected: Mapping[int, float] | None = None
    """Expected number of events of each class; None for the numbers of the test split."""
    luminosity: float | None = None
    """Integrated luminosity of the expected events [1/pb]; None if it is unknown."""
    uncertainty: float = 0.0
    """Relative uncertainty of the expected background."""
    blind_above: float | None = None
    """Score above which no data are shown; None to show all."""
    unmeasured: frozenset[int] = frozenset()
    """Classes whose test events measure nothing; no number counts them."""
    independent_of: Sequence[str] = ()
    """Columns of which the score shall be independent; see `models.evaluation.independence`."""
    independent_within: Sequence[int] = ()
    """Classes within which it shall be independent of them, by label."""
    reasons_without_rates: Sequence[str] = ()
    """A sentence for each reason why `rates` are unknown, where cross-sections are stated."""

    @property
    def measured_labels(self) -> list[int]:
        """The labels of the classes that numbers count."""
        return [label for label in range(len(self.classes)) if label not in self.unmeasured]

    @property
    def signal_labels(self) -> list[int]:
        """The labels of the signal classes that numbers count."""
        return [label for label in self.signals if label in self.measured_labels]

    @property
    def signal(self) -> Mixture:
        """The signal as one mixture of its classes, in fractions of their rates or equal parts."""
        mixture = mixture_of(self.classes, self.signal_labels, self._mixing_rates)
        names = [self.classes[label] for label in self.signal_labels]
        return mixture._replace(description=" + ".join(names))

    @property
    def mixture(self) -> Mixture:
        """The backgrounds as one mixture; working points reject it."""
        backgrounds = [label for label in self.measured_labels if label not in self.signals]
        return mixture_of(self.classes, backgrounds, self._mixing_rates)

    @property
    def _mixing_rates(self) -> Rates | None:
        return self.rates if self.by_rate else None

    @property
    def backgrounds(self) -> dict[str, Mapping[int, float]]:
        """Fractions by label of the mixture of all backgrounds, then of each background alone.

        The keys are names. With a single background there is no mixture besides.
        """
        fractions = self.mixture.fractions
        backgrounds: dict[str, Mapping[int, float]] = {}
        if len(fractions) > 1:
            backgrounds[ALL_BACKGROUNDS] = fractions
        for label in fractions:
            backgrounds[self.classes[label]] = {label: 1.0}
        return backgrounds

    @property
    def outputs(self) -> list[int]:
        """The classes whose outputs are measured.

        Of a model of two classes it is only the signal, since the other output is 1 minus it. With
        more classes no output follows from another one, also if only two can be measured.
        """
        return self.measured_labels if len(self.classes) > 2 else self.signal_labels

    @property
    def rates_of_measured(self) -> Rates | None:
        """The rates of the samples of the classes that numbers count."""
        if self.rates is None:
            return None
        of_samples = {}
        for name, rate in self.rates.of_samples.items():
            label = self.rates.labels[name]
            if label not in self.unmeasured:
                of_samples[name] = rate
        return self.rates._replace(of_samples=of_samples)

    @property
    def sample_rates(self) -> dict[str, float] | None:
        """Rates by sample, without their errors; None if they are unknown."""
        return None if self.rates is None else self.rates.values

    @property
    def labels_of_expected(self) -> PlotLabels:
        """The labels of plots of expected events, with their luminosity."""
        if self.expected is None or self.luminosity is None:
            return self.labels
        return self.labels._replace(luminosity=luminosity_text(self.luminosity))

    def scored(self, predictions: pa.Table) -> ScoredEvents:
        """Turn a table from `models.prediction.predict` into events with scores and weights.

        The samples of a class are mixed in the proportions of their rates.
        """
        return ScoredEvents.from_predictions(predictions, self.sample_rates)

    def score(self, probabilities: Floats) -> Floats:
        """Compute the (num_events,) score of the signal against the mixture."""
        return discriminant(
            probabilities, signal=self.signal.fractions, fractions=self.mixture.fractions
        )

    def expected_events(self, events: ScoredEvents) -> Mapping[int, float]:
        """Return the expected number of events of each class, by label.

        Without expected numbers it is the sum of the weights in the test split.
        """
        if self.expected is not None:
            return self.expected
        num_events = np.bincount(events.labels, events.weights, len(self.classes))
        return dict(enumerate(num_events.tolist()))


def mixture_of(classes: Sequence[str], labels: Sequence[int], rates: Rates | None) -> Mixture:
    """Mix classes in the fractions of their rates, or in equal parts if these are unknown or 0.

    The description says how; a single class is described by its name.
    """
    if len(labels) == 1:
        return Mixture({labels[0]: 1.0}, classes[labels[0]])
    class_rates = np.zeros(len(labels))
    if rates is not None:
        class_rates = np.array([rates.of_class(label) for label in labels])
    total_rate = class_rates.sum()
    if total_rate <= 0:
        names = " and ".join(classes[label] for label in labels)
        equal_fractions = dict.fromkeys(labels, 1 / len(labels))
        return Mixture(equal_fractions, f"{names} in equal parts")
    class_fractions = (class_rates / total_rate).tolist()
    percentages = []
    for label, fraction in zip(labels, class_fractions, strict=True):
        percentages.append(f"{100 * fraction:.3g} % {classes[label]}")
    fractions = dict(zip(labels, class_fractions, strict=True))
    return Mixture(fractions, f"{', '.join(percentages)}, by rate")
