"""Compares the losses of two models on the same events."""

from __future__ import annotations

from typing import Final

import numpy as np

from models.evaluation.bootstrap import Estimate, Replicas, estimate
from models.evaluation.scored_events import ScoredEvents

#: Lower limit of probabilities in the loss, so that one event cannot dominate it.
_LOWEST: Final = 1e-6


def improvement(before: ScoredEvents, after: ScoredEvents) -> Estimate:
    """Decrease of the mean cross-entropy with a new model, and its standard error.

    Both models see the same events. So the error is that of the mean difference per event, which is much smaller than
    the errors of the two means. All classes have the same total weight, as in the training loss; the error follows
    from the spread within each class.
    """
    rows = np.arange(len(after.labels))
    old, new = (
        np.log(np.maximum(each.probabilities[rows, after.labels], _LOWEST))
        for each in (before, after)
    )
    replicas = Replicas(after.labels, after.samples, after.weights, seed=0)
    present = np.unique(after.labels).tolist()
    return estimate(np.mean([replicas.means(label, new - old) for label in present], axis=0))
