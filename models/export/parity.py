"""Checks that an exported network gives the same probabilities as the network itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from features.columns import MAX_PARTICLES, NUM_PARTICLE_FEATURES
from models.networks.classifier import Classifier
from models.prediction import Predictor

#: Largest difference of a probability that rounding in single precision explains.
PARITY_TOLERANCE: Final = 1e-5

Columns = Mapping[str, NDArray[Any]]


def largest_difference(
    model: Classifier,
    exported: Predictor,
    columns: Columns,
    *,
    batch_sizes: Sequence[int] = (1, 2, 7, 64, 512),
    particle_counts: Sequence[int] = (0, 1, 2, 50, MAX_PARTICLES),
) -> float:
    """Largest absolute difference of a probability, over all batch sizes and numbers of particles.

    Events are repeated to fill a batch. To reach a number of particles, an event's list is cut or repeated. Networks
    without particle lists are compared once per batch size. No events are compared too, and the events with a number
    each that is not finite, with NaN for padding as well: where the network gives NaN, the file must.

    Returns:
        The difference; NaN if only one of two probabilities is NaN. Differences up to `PARITY_TOLERANCE` are rounding.
    """
    needed = np.arange(min(len(columns[model.inputs[0]]), max(batch_sizes)))
    chosen = {name: columns[name][needed] for name in model.inputs}
    with_lists = "particles" in model.inputs
    variants = (
        [_with_particles(chosen, count) for count in particle_counts] if with_lists else [chosen]
    )
    found = [
        _difference(model, exported, events, size) for events in variants for size in batch_sizes
    ]
    spoiled = [_spoiled(chosen, name) for name in ("hlf", "particles") if name in model.inputs]
    found += [_difference(model, exported, events, len(needed)) for events in spoiled]
    # numpy's maximum is NaN if one of the values is; Python's may not be.
    return float(np.max([*found, _difference(model, exported, chosen, 0)]))


def _difference(model: Classifier, exported: Predictor, columns: Columns, batch_size: int) -> float:
    """The largest difference of a probability in one batch; two NaN are equal."""
    order = np.arange(batch_size) % len(columns[model.inputs[0]])
    batch = {name: values[order] for name, values in columns.items()}
    expected, found = model.probabilities(batch), exported.probabilities(batch)
    return float(np.abs(expected - found)[~(np.isnan(expected) & np.isnan(found))].max(initial=0.0))


def _spoiled(columns: Columns, name: str) -> dict[str, NDArray[Any]]:
    """The events, each with one number of an input that is not finite, in turn of all features and many particles."""
    events = np.arange(len(columns[name]))
    values = np.array(columns[name], dtype=np.float32)
    given = np.array([np.nan, np.inf, -np.inf])[events % 3]
    if name == "hlf":
        values[events, events % values.shape[1]] = given
        return {**columns, name: values}
    counts = columns["num_particles"]
    values[events, events * 7 % np.maximum(counts, 1), events % NUM_PARTICLE_FEATURES] = given
    values[np.arange(values.shape[1]) >= counts[:, None]] = np.nan
    return {**columns, name: values}


def _with_particles(columns: Columns, count: int) -> dict[str, NDArray[Any]]:
    """The events with `count` particles each, cut or repeated from their own; events without any get zeros."""
    particles, available = columns["particles"], np.maximum(columns["num_particles"], 1)
    rows = np.arange(count) % available[:, None]
    padded = np.zeros(
        (len(particles), max(count, particles.shape[1]), NUM_PARTICLE_FEATURES), particles.dtype
    )
    padded[:, :count] = np.take_along_axis(particles, rows[..., None], axis=1)
    return {**columns, "particles": padded, "num_particles": np.full(len(particles), count)}
