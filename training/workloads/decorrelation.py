"""The term of the loss that makes the signal's score independent of some columns (DisCo).

Kasieczka, Shih, "Robust jet classifiers through distance correlation", Phys. Rev. Lett. 125 (2020)
122001: loss = cross-entropy + strength x dCorr²(score, column), within the events of a background.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

import torch
from torch import Tensor

from hep_core.unknown_names import there_is_no
from training.decorrelate_settings import DecorrelateSettings
from training.errors import ColumnError
from training.readers.batch import Batch
from training.workloads.distance_correlation import distance_correlation

#: Highest number of events of a class in a batch that count: the first ones, in random order. Each
#: pair of them needs about 100 bytes in a step.
MOST_EVENTS: Final = 1024
#: Lowest number of events with a weight whose correlation a step can change: dCorr² of two is 1.
FEWEST_EVENTS: Final = 3


class Decorrelation(NamedTuple):
    """The term of the loss, with classes as numbers."""

    labels: tuple[int, ...]
    """The classes within which the score shall be independent of the columns."""
    signals: tuple[int, ...]
    """The classes of the signal."""
    strength: float
    """Factor of the squared distance correlations."""

    @classmethod
    def from_settings(cls, settings: DecorrelateSettings, classes: Sequence[str]) -> Self:
        """Find the classes of some settings among the names of all classes, in their order.

        Raises:
            ColumnError: A name is no class, no signal is named, or all classes are the signal.
        """
        for name in [*settings.classes, *settings.signals]:
            if name not in classes:
                raise ColumnError(f"train.decorrelate: {there_is_no('class', name, classes)}")
        if not 0 < len(settings.signals) < len(classes):
            raise ColumnError(
                f"train.decorrelate.signal: name some of the classes {', '.join(classes)}, but not "
                f"all."
            )
        labels = tuple(classes.index(name) for name in settings.classes)
        signals = tuple(classes.index(name) for name in settings.signals)
        return cls(labels, signals, settings.strength)

    def term(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the term of a batch: strength times the sum of dCorr² over classes and columns.

        It is a float64 scalar, 0 where no dCorr² is defined. Events count by the size of their
        weight: with weights of both signs dCorr² has no bounds.

        Args:
            logits: (num_events, num_classes) of the batch.
            batch: The events, with the columns as `spectators`.
        """
        if batch.spectators is None:
            raise AssertionError("the batch was read without the columns to decorrelate from")
        scores = signal_scores(logits, self.signals)
        total = scores.new_zeros(())
        for label in self.labels:
            rows = _rows_of_class(batch, label)
            weights = batch.weights[rows].abs()
            for column in batch.spectators[rows].unbind(dim=1):
                total = total + distance_correlation(scores[rows], column, weights)
        return self.strength * total

    def moves(self, batch: Batch) -> bool:
        """Return whether a class has enough events in a batch for the term to have a gradient."""
        for label in self.labels:
            weights = batch.weights[_rows_of_class(batch, label)]
            if int(torch.count_nonzero(weights)) >= FEWEST_EVENTS:
                return True
        return False


def _rows_of_class(batch: Batch, label: int) -> Tensor:
    """Return the rows of a class in a batch that count, at most `MOST_EVENTS`."""
    return torch.nonzero(batch.labels == label)[:MOST_EVENTS, 0]


def signal_scores(logits: Tensor, signals: Sequence[int]) -> Tensor:
    """Return the score s / (s + b) of events, (num_events,) float64.

    s and b are the mean probabilities of the signal and of the background classes. This is
    `models.evaluation.discriminant` with classes in equal parts.

    Args:
        logits: (num_events, num_classes).
        signals: Labels of the signal classes; at least one class is none of them.
    """
    backgrounds = [label for label in range(logits.shape[1]) if label not in signals]
    logits = logits.double()
    # The logarithms of s and b have a common term, which their difference lacks.
    log_signal = logits[:, list(signals)].logsumexp(dim=1) - math.log(len(signals))
    log_background = logits[:, backgrounds].logsumexp(dim=1) - math.log(len(backgrounds))
    return torch.sigmoid(log_signal - log_background)
