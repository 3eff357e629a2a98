"""Importance of a part of the inputs: the area under the ROC curve that is lost when it is permuted among events."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from features.columns import PARTICLE_FEATURE_NAMES, hlf_names
from models.evaluation.bootstrap import Estimate, Replicas
from models.evaluation.discriminant import Scored
from models.evaluation.intervals import Floats
from models.evaluation.scored_events import ScoredEvents
from models.prediction import Predictor

#: Inputs of some events by name, as a model takes them (`features.matrices.model_inputs`).
Columns = Mapping[str, NDArray[Any]]
#: The columns of some events with a part of those of as many others.
Permutation = Callable[[Columns, Columns], Columns]

#: Kinds of particles, with the flags of which one is 1.
_KINDS: Final = {
    "lepton": ("is_electron", "is_muon"),
    "tracks": ("is_charged_hadron",),
    "photons": ("is_photon",),
    "neutral hadrons": ("is_neutral_hadron",),
}
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

    None are chosen if nothing of the inputs can be permuted.
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
    signal: Sequence[int],
    seed: int,
    on_events: Callable[[int], None] | None = None,
) -> dict[str, Estimate]:
    """Loss of area under the signal's ROC curve, against the other classes in equal parts, of each part of the inputs.

    It is the mean drop when a part of the inputs is permuted among the events: Breiman (2001) for forests, Fisher,
    Rudin and Dominici (2019) for any model. Parts that say the same seem unimportant. The error has two parts: that of
    the events, from the replicas, and that of the mean over the shuffles.

    Own code: scikit-learn's function of this name needs an estimator with a `fit`, and permutes single features only.

    `columns` are the inputs of the `events`, (num_events, ...) each, and stay unchanged. The `signal` classes count in
    equal parts. `on_events` is called with the number of events of each prediction.
    """
    replicas = Replicas(events.labels, events.samples, events.weights, seed=seed, num=_NUM_REPLICAS)
    others = [label for label in np.unique(events.labels).tolist() if label not in signal]
    num_events, generator = len(events.labels), np.random.default_rng(seed)

    def area(permutation: Permutation, order: NDArray[np.int64]) -> Floats:
        found = []
        for first in range(0, num_events, _AT_ONCE):
            rows = np.arange(first, min(first + _AT_ONCE, num_events))
            own, given = (
                {name: each[chosen] for name, each in columns.items()}
                for chosen in (rows, order[rows])
            )
            found.append(
                model.probabilities(permutation(own, given))[:, list(signal)]
                .astype(np.float64)
                .sum(axis=1)
            )
            if on_events:
                on_events(len(rows))
        scored = Scored(
            replicas, np.concatenate(found), dict.fromkeys(signal, 1 / len(signal)), np.array([])
        )
        return scored.area(dict.fromkeys(others, 1 / len(others)))

    whole = area(lambda own, _: own, np.arange(num_events))
    importances = {}
    for name, permutation in permutations_of(model.inputs).items():
        drops = whole - np.array(
            [area(permutation, generator.permutation(num_events)) for _ in range(REPEATS)]
        )
        mean = drops.mean(axis=0)
        of_events, of_shuffles = mean[1:].std(ddof=1), drops[:, 0].std(ddof=1) / math.sqrt(REPEATS)
        importances[name] = Estimate(float(mean[0]), float(math.hypot(of_events, of_shuffles)))
    return importances


def permutations_of(inputs: Sequence[str]) -> dict[str, Permutation]:
    """What can be permuted of a model's inputs, by name.

    Each feature of a model on high-level features alone; each kind of particle of one on particles, and all of its
    high-level features together if it takes these too.
    """
    if tuple(inputs) == ("hlf",):
        return {
            name: partial(_with_features, places=[place]) for place, name in enumerate(hlf_names())
        }
    if "particles" not in inputs:
        return {}
    found: dict[str, Permutation] = {
        kind: partial(_with_kind, flags=[PARTICLE_FEATURE_NAMES.index(flag) for flag in flags])
        for kind, flags in _KINDS.items()
    }
    every = list(range(len(hlf_names())))
    return found | (
        {"high-level features": partial(_with_features, places=every)} if "hlf" in inputs else {}
    )


def _with_features(own: Columns, others: Columns, *, places: Sequence[int]) -> Columns:
    hlf = own["hlf"].copy()
    hlf[:, places] = others["hlf"][:, places]
    return {**own, "hlf": hlf}


def _with_kind(own: Columns, others: Columns, *, flags: Sequence[int]) -> Columns:
    """Events with the particles of one kind of other events.

    A particle keeps its relative place in its list, whatever the list is ordered by; the lepton stays first.
    """
    lists, places = [], []
    for columns, takes_kind in ((own, False), (others, True)):
        particles, lengths = columns["particles"], columns["num_particles"][:, None]
        numbers = np.arange(particles.shape[1])
        is_taken = (numbers < lengths) & (particles[..., flags].any(axis=2) == takes_kind)
        lists.append(particles)
        places.append(np.where(is_taken, numbers / np.maximum(lengths, 1), np.inf))
    place = np.concatenate(places, axis=1)
    counts = np.isfinite(place).sum(axis=1)
    order = np.argsort(place, axis=1, kind="stable")[:, : counts.max(initial=0)]
    particles = np.take_along_axis(np.concatenate(lists, axis=1), order[..., None], axis=1)
    particles[np.arange(particles.shape[1]) >= counts[:, None]] = 0.0
    return {
        **own,
        "particles": particles,
        "num_particles": counts.astype(own["num_particles"].dtype),
    }
