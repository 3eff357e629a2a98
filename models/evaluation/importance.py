"""Importance of a part of the inputs: the area under the ROC curve that is lost when events exchange it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.evaluation.bootstrap import Estimate, Replicas
from models.evaluation.discriminant import Scored
from models.evaluation.efficiencies import Floats
from models.evaluation.permutations import Columns, Permutation, permutations_of
from models.evaluation.scored_events import ScoredEvents
from models.prediction import Predictor

#: Shuffles of each part.
REPEATS: Final = 5
#: Highest number of events of each class; particle lists take a thousand times as long to predict.
_MOST_EVENTS: Final = 7000
_MOST_WITH_PARTICLES: Final = 500
#: They only give the errors, so that fewer do than for intervals.
_NUM_REPLICAS: Final = 200
_AT_ONCE: Final = 256


def chosen_events(inputs: Sequence[str], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers of the events on which the importance is measured: the first of each class, a random sample.

    Args:
        inputs: Columns that the model takes; none are chosen if nothing of them can be exchanged.
        labels: (num_events,) true classes.
    """
    if not permutations_of(inputs):
        return np.array([], dtype=np.int64)
    most = _MOST_WITH_PARTICLES if "particles" in inputs else _MOST_EVENTS
    of_classes = [np.flatnonzero(labels == label)[:most] for label in np.unique(labels)]
    return np.sort(np.concatenate(of_classes))


def num_predicted(inputs: Sequence[str], labels: NDArray[np.int64]) -> int:
    """Number of events that `importance` predicts, each shuffle anew."""
    return (1 + REPEATS * len(permutations_of(inputs))) * len(chosen_events(inputs, labels))


def importance(
    model: Predictor,
    columns: Columns,
    events: ScoredEvents,
    *,
    signal: int,
    seed: int,
    on_events: Callable[[int], None] | None = None,
) -> dict[str, Estimate]:
    """Loss of area under the signal's ROC curve, against the other classes in equal parts, of each part of the inputs.

    Args:
        model: The model.
        columns: Its inputs of some events.
        events: The same events.
        signal: The signal class.
        seed: Seed of the shuffles and of the replicas.
        on_events: Called with the number of events of each prediction.
    """
    replicas = Replicas(events.labels, events.samples, events.weights, seed=seed, num=_NUM_REPLICAS)
    others = [label for label in np.unique(events.labels).tolist() if label != signal]

    def area(probabilities: Floats) -> Floats:
        scored = Scored(replicas, probabilities[:, signal], signal, np.array([]))
        return scored.area(dict.fromkeys(others, 1 / len(others)))

    return permutation_importance(
        model,
        columns,
        area,
        permutations_of(model.inputs),
        generator=np.random.default_rng(seed),
        on_events=on_events,
    )


def permutation_importance(
    model: Predictor,
    columns: Columns,
    score: Callable[[Floats], Floats],
    permutations: Mapping[str, Permutation],
    *,
    repeats: int = REPEATS,
    generator: np.random.Generator,
    on_events: Callable[[int], None] | None = None,
) -> dict[str, Estimate]:
    """Mean drop of a score when the events exchange a part of their inputs at random, for each part.

    Breiman (2001) for forests, Fisher, Rudin and Dominici (2019) for any model. Parts that say the same seem
    unimportant. The error has two parts: that of the events, from the replicas, and that of the mean over the shuffles.

    Own code: scikit-learn's function of this name needs an estimator with a `fit`, and permutes single features only.

    Args:
        model: The model.
        columns: Its inputs, (num_events, ...) each; they stay unchanged.
        score: Function of probabilities (num_events, num_classes); (1 + num_replicas,) values, the measured one first,
            and higher is better.
        permutations: What is exchanged, by name.
        repeats: Shuffles of each part, at least 2.
        generator: Random generator of the shuffles; the same state gives the same numbers.
        on_events: Called with the number of events of each prediction.

    Returns:
        One estimate per part, in the unit of the score.

    Raises:
        ValueError: There are fewer than 2 repeats.
    """
    if repeats < 2:
        raise ValueError(f"a spread needs at least 2 repeats, not {repeats}")
    num_events = len(next(iter(columns.values())))

    def probabilities(exchange: Permutation, others: NDArray[np.int64]) -> Floats:
        found = []
        for first in range(0, num_events, _AT_ONCE):
            rows = np.arange(first, min(first + _AT_ONCE, num_events))
            own, given = ({name: each[chosen] for name, each in columns.items()} for chosen in (rows, others[rows]))
            found.append(model.probabilities(exchange(own, given)).astype(np.float64))
            if on_events:
                on_events(len(rows))
        return np.concatenate(found)

    whole = score(probabilities(lambda own, _: own, np.arange(num_events)))
    importances = {}
    for name, exchange in permutations.items():
        shuffled = [score(probabilities(exchange, generator.permutation(num_events))) for _ in range(repeats)]
        drops = whole - np.array(shuffled)
        mean = drops.mean(axis=0)
        of_events, of_shuffles = mean[1:].std(ddof=1), drops[:, 0].std(ddof=1) / math.sqrt(repeats)
        importances[name] = Estimate(float(mean[0]), float(math.hypot(of_events, of_shuffles)))
    return importances
