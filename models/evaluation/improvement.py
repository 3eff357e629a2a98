"""Compares the losses of two models on the same events."""

from __future__ import annotations

from typing import Final

import numpy as np

from models.evaluation.bootstrap import Estimate, Replicas, estimate
from models.evaluation.intervals import Floats
from models.evaluation.scored_events import ScoredEvents

#: Lower limit of probabilities in the loss, so that one event cannot dominate it.
_LOWEST_PROBABILITY: Final = 1e-6


def improvement(before: ScoredEvents, after: ScoredEvents) -> Estimate:
    """Measure how much a new model decreases the mean cross-entropy, with the standard error.

    Both arguments hold the same events in the same order, with the probabilities of the old and of
    the new model. So the error is that of the mean difference per event, which is much smaller than
    the errors of the two means. All classes have the same total weight, as in the training loss.
    """
    gain = _log_likelihood(after) - _log_likelihood(before)
    # Replicas are copies of the events with random weights; their spread is the error.
    replicas = Replicas(after.labels, after.samples, after.weights, seed=0)
    labels = np.unique(after.labels).tolist()
    gain_by_class = [replicas.means(label, gain) for label in labels]
    mean_gain = np.mean(gain_by_class, axis=0)
    return estimate(mean_gain)


def _log_likelihood(events: ScoredEvents) -> Floats:
    """Compute the logarithm of the probability of the true class of each event.

    Probabilities below 1e-6 count as 1e-6.
    """
    rows = np.arange(len(events.labels))
    probabilities = events.probabilities[rows, events.labels]
    return np.log(np.maximum(probabilities, _LOWEST_PROBABILITY))
