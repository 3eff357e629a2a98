"""Importance of a part of the inputs: the area under the ROC curve that a permutation loses.

A permutation gives each event this part of the inputs of another random event, its donor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from features.columns import PARTICLE_FEATURE_NAMES, hlf_names
from models.evaluation.bootstrap import Estimate, Replicas
from models.evaluation.discriminant import ReplicatedScore
from models.evaluation.intervals import Floats, Labels
from models.evaluation.scored_events import ScoredEvents
from models.prediction import Predictor, prediction_batch

#: Inputs of some events by name, as a model takes them (`features.matrices.model_inputs`).
Columns = Mapping[str, NDArray[Any]]
#: Makes the inputs of some events (first) with a part of the inputs of as many donors (second).
Permutation = Callable[[Columns, Columns], Columns]

#: Types of particles, with the features of which one is 1 for this type.
_PARTICLE_TYPES: Final = {
    "lepton": ("is_electron", "is_muon"),
    "tracks": ("is_charged_hadron",),
    "photons": ("is_photon",),
    "neutral hadrons": ("is_neutral_hadron",),
}
#: Number of shuffles of each part of the inputs; the importance is their mean.
REPEATS: Final = 5
#: Highest number of events of each class, without and with particle lists. Those take a thousand
#: times as long to predict.
_MOST_EVENTS: Final = 7000
_MOST_WITH_PARTICLES: Final = 500
#: Replicas only give the errors here, so fewer are enough than for intervals.
_NUM_REPLICAS: Final = 200


def sampled_events(inputs: Sequence[str], labels: Labels) -> NDArray[np.int64]:
    """Return the rows of the events on which the importance is measured, rising.

    They are the first of each class, which is a random sample, since rows are in random order.
    There are none if nothing of the inputs can be permuted.
    """
    if not permutations_of(inputs):
        return np.array([], dtype=np.int64)
    most = _MOST_WITH_PARTICLES if "particles" in inputs else _MOST_EVENTS
    rows_by_class = []
    for label in np.unique(labels):
        rows_of_class = np.flatnonzero(labels == label)
        rows_by_class.append(rows_of_class[:most])
    return np.sort(np.concatenate(rows_by_class))


def num_predicted(inputs: Sequence[str], labels: Labels) -> int:
    """Count the events that `importance` predicts.

    The sampled events are predicted once unchanged, and once for each shuffle of each part.
    """
    num_predictions = 1 + REPEATS * len(permutations_of(inputs))
    return num_predictions * len(sampled_events(inputs, labels))


def importance(
    model: Predictor,
    columns: Columns,
    events: ScoredEvents,
    *,
    signal: Sequence[int],
    seed: int,
    classes: Sequence[str] = (),
    on_events: Callable[[int], None] | None = None,
) -> dict[str, Estimate]:
    """Measure how much area under the ROC curve is lost if a part of the inputs is permuted.

    A permutation gives each event this part of the inputs of another random event. The background
    are the other classes in equal parts. The loss is the mean over some shuffles: Breiman (2001)
    for forests, Fisher, Rudin and Dominici (2019) for any model. Parts with the same information
    seem unimportant. The error combines that of the events, from the replicas, and that of the mean
    over the shuffles.

    This is our own code, since scikit-learn's function of this name needs an estimator with a
    `fit`, and permutes single features only.

    Args:
        model: The model.
        columns: The inputs of the `events`, (num_events, ...) each; they stay unchanged.
        events: The events.
        signal: The classes of the signal, which count in equal parts.
        seed: Seed of shuffles and replicas.
        classes: Names of the classes, by label, for errors.
        on_events: Called with the number of events of each prediction.

    Returns:
        The loss with its error, by name of the permuted part.
    """
    # Replicas are copies of the events with random weights. All areas share them, so the errors of
    # their differences are paired.
    replicas = Replicas(
        events.labels,
        events.samples,
        events.weights,
        seed=seed,
        num=_NUM_REPLICAS,
        classes=classes,
    )
    signal_fractions = dict.fromkeys(signal, 1 / len(signal))
    backgrounds = [label for label in np.unique(events.labels).tolist() if label not in signal]
    background_fractions = dict.fromkeys(backgrounds, 1 / len(backgrounds))
    num_events = len(events.labels)
    batch_size = prediction_batch(model.inputs)
    rng = np.random.default_rng(seed)

    def area(permutation: Permutation, donors: NDArray[np.int64]) -> Floats:
        """Compute the area in each replica, with the permuted part taken from donors.

        `donors` are rows of events, (num_events,): one donor for each event.
        """
        scores = []
        for first in range(0, num_events, batch_size):
            end = min(first + batch_size, num_events)
            rows = np.arange(first, end)
            batch = _select(columns, rows)
            batch_donors = _select(columns, donors[rows])
            permuted = permutation(batch, batch_donors)
            # The score is the probability of the signal, summed over its classes.
            probabilities = model.probabilities(permuted)[:, list(signal)]
            batch_scores = probabilities.astype(np.float64).sum(axis=1)
            scores.append(batch_scores)
            if on_events:
                on_events(len(rows))
        no_efficiencies = np.array([])
        score = ReplicatedScore(replicas, np.concatenate(scores), signal_fractions, no_efficiencies)
        return score.area(background_fractions)

    # Each event is its own donor, and nothing is permuted.
    unshuffled_area = area(_unchanged, np.arange(num_events))
    importances = {}
    for name, permutation in permutations_of(model.inputs).items():
        areas = [area(permutation, rng.permutation(num_events)) for _ in range(REPEATS)]
        # (REPEATS, 1 + num_replicas) losses; the first column is measured.
        losses = unshuffled_area - np.array(areas)
        mean_loss = losses.mean(axis=0)
        # The standard deviation over the replicas, and that of the mean over the shuffles.
        event_error = mean_loss[1:].std(ddof=1)
        shuffle_error = losses[:, 0].std(ddof=1) / math.sqrt(REPEATS)
        error = float(math.hypot(event_error, shuffle_error))
        importances[name] = Estimate(float(mean_loss[0]), error)
    return importances


def permutations_of(inputs: Sequence[str]) -> dict[str, Permutation]:
    """Return the permutations of the inputs of a model, by the name of the permuted part.

    A model on high-level features alone has one for each feature. A model on particles has one for
    each type of particle, and one for all high-level features together if it takes these too. Other
    models have none.
    """
    permutations: dict[str, Permutation] = {}
    if tuple(inputs) == ("hlf",):
        for index, name in enumerate(hlf_names()):
            permutations[name] = partial(_permute_features, features=[index])
        return permutations
    if "particles" not in inputs:
        return permutations
    for name, flags in _PARTICLE_TYPES.items():
        # A particle is of the type if one of these features is 1.
        flag_columns = [PARTICLE_FEATURE_NAMES.index(flag) for flag in flags]
        permutations[name] = partial(_permute_particles, flag_columns=flag_columns)
    if "hlf" in inputs:
        all_features = list(range(len(hlf_names())))
        permutations["high-level features"] = partial(_permute_features, features=all_features)
    return permutations


def _select(columns: Columns, rows: NDArray[np.int64]) -> Columns:
    """Return the inputs of the events in some rows."""
    return {name: values[rows] for name, values in columns.items()}


def _unchanged(events: Columns, _: Columns) -> Columns:
    """Return the events as they are: the permutation that permutes nothing."""
    return events


def _permute_features(events: Columns, donors: Columns, *, features: Sequence[int]) -> Columns:
    """Replace some high-level features of the events, by index, by those of the donors."""
    hlf = events["hlf"].copy()
    hlf[:, features] = donors["hlf"][:, features]
    return {**events, "hlf": hlf}


def _permute_particles(events: Columns, donors: Columns, *, flag_columns: Sequence[int]) -> Columns:
    """Replace the particles of one type by those of the donors, one donor for each event.

    Each particle has a relative position, from 0 at the beginning of its list to 1. Particles of
    the type leave the list of the event, and those of the donor enter it at their own positions. So
    the order of a list keeps its meaning, and the lepton stays first. Particles that are not kept,
    and padding, get the position infinity, which sorts them behind all others.
    """
    event_positions = _relative_positions(events)
    # The event keeps all but its particles of the type, the donor gives only those.
    event_positions[_has_flag(events, flag_columns)] = np.inf
    donor_positions = _relative_positions(donors)
    donor_positions[~_has_flag(donors, flag_columns)] = np.inf

    positions = np.concatenate([event_positions, donor_positions], axis=1)
    particles = np.concatenate([events["particles"], donors["particles"]], axis=1)
    # Number of particles that each new list keeps.
    counts = np.isfinite(positions).sum(axis=1)
    longest = counts.max(initial=0)
    # A stable order keeps the event's particle first if positions are equal.
    order = np.argsort(positions, axis=1, kind="stable")[:, :longest]
    particles = np.take_along_axis(particles, order[..., None], axis=1)
    # Rows behind the last particle still hold particles that are not kept.
    is_padding = np.arange(particles.shape[1]) >= counts[:, None]
    particles[is_padding] = 0.0
    num_particles = counts.astype(events["num_particles"].dtype)
    return {**events, "particles": particles, "num_particles": num_particles}


def _has_flag(columns: Columns, flag_columns: Sequence[int]) -> NDArray[np.bool_]:
    """Whether a particle has one of some type flags, (num_events, num_rows)."""
    flags = columns["particles"][..., flag_columns]
    return np.asarray(flags.any(axis=2))


def _relative_positions(columns: Columns) -> Floats:
    """Return the position of each particle in its list, from 0 to 1, (num_events, num_rows).

    It is infinite for padding.
    """
    rows = np.arange(columns["particles"].shape[1])
    lengths = columns["num_particles"][:, None]
    is_valid = rows < lengths
    positions = rows / np.maximum(lengths, 1)
    return np.where(is_valid, positions, np.inf)
