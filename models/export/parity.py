"""Checks that an exported network gives the same probabilities as the network itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from features.columns import MAX_PARTICLES
from models.networks.classifier import Classifier
from models.prediction import Predictor

#: Largest difference of a probability that rounding in single precision explains.
PARITY_TOLERANCE: Final = 1e-5
#: Most particles in a batch. A recurrent network takes 1 kB for each, in torch and in onnxruntime.
_MOST_PARTICLES: Final = 64 * MAX_PARTICLES

Columns = Mapping[str, NDArray[Any]]


def counts_to_compare(max_particles: int = MAX_PARTICLES) -> tuple[int, ...]:
    """Numbers of particles at which to compare: some small ones, and the most that there may be.

    Examples:
        >>> counts_to_compare(20)
        (0, 1, 2, 20)
    """
    small_counts = [count for count in (0, 1, 2, 50) if count < max_particles]
    return (*small_counts, max_particles)


def largest_difference(
    model: Classifier,
    exported: Predictor,
    columns: Columns,
    *,
    batch_sizes: Sequence[int] = (1, 2, 7, 64, 512),
    particle_counts: Sequence[int] = counts_to_compare(),
) -> float:
    """Compute the largest absolute difference of a probability between a network and its export.

    All batch sizes and numbers of particles are tried, but no batch with more particles than 64 of
    the longest events. Events are repeated to fill a batch. To reach a number of particles, an
    event's list is cut or repeated. Networks without particle lists are compared once per batch
    size. Also compared are an empty batch, and events with one number each that is not finite, with
    NaN as padding: where the network gives NaN, the file must.

    Returns:
        The difference; NaN if only one of two probabilities is NaN. Differences up to
        `PARITY_TOLERANCE` are rounding.
    """
    num_events = min(len(columns[model.inputs[0]]), max(batch_sizes))
    rows = np.arange(num_events)
    events = {name: columns[name][rows] for name in model.inputs}
    differences = []
    if "particles" in model.inputs:
        for count in particle_counts:
            variant = _with_particles(events, count)
            sizes = [size for size in batch_sizes if size * count <= _MOST_PARTICLES]
            differences += [_difference(model, exported, variant, size) for size in sizes]
    else:
        differences += [_difference(model, exported, events, size) for size in batch_sizes]
    if "hlf" in model.inputs:
        invalid = _invalid_features(events)
        differences.append(_difference(model, exported, invalid, num_events))
    if "particles" in model.inputs:
        invalid = _invalid_particles(events)
        differences.append(_difference(model, exported, invalid, num_events))
    # An empty batch must not fail.
    differences.append(_difference(model, exported, events, 0))
    # numpy's maximum is NaN if one of the values is; Python's may not be.
    return float(np.max(differences))


def _difference(model: Classifier, exported: Predictor, columns: Columns, batch_size: int) -> float:
    """Compute the largest difference of a probability in one batch; two NaN count as equal."""
    num_events = len(columns[model.inputs[0]])
    # The modulo repeats the events until the batch is full.
    rows = np.arange(batch_size) % num_events
    batch = {name: values[rows] for name, values in columns.items()}
    expected = model.probabilities(batch)
    computed = exported.probabilities(batch)
    both_nan = np.isnan(expected) & np.isnan(computed)
    differences = np.abs(expected - computed)
    return float(differences[~both_nan].max(initial=0.0))


def _invalid_numbers(count: int) -> NDArray[np.float64]:
    """Return `count` numbers that are not finite, of each type in turn."""
    return np.resize([np.nan, np.inf, -np.inf], count)


def _invalid_features(columns: Columns) -> dict[str, NDArray[Any]]:
    """Copy the events, each with one high-level feature that is not finite.

    It is another feature from event to event.
    """
    hlf = np.array(columns["hlf"], dtype=np.float32)
    num_events, num_features = hlf.shape
    events = np.arange(num_events)
    # Event i gets its number in column i modulo the number of features.
    features = events % num_features
    hlf[events, features] = _invalid_numbers(num_events)
    return {**columns, "hlf": hlf}


def _invalid_particles(columns: Columns) -> dict[str, NDArray[Any]]:
    """Copy the events, each with one number of a particle that is not finite, and NaN as padding.

    The numbers are of many particles and all features.
    """
    particles = np.array(columns["particles"], dtype=np.float32)
    counts = columns["num_particles"]
    num_events, num_rows, num_features = particles.shape
    events = np.arange(num_events)
    # Steps of 7 vary the row from event to event; it is always that of a particle.
    rows = events * 7 % np.maximum(counts, 1)
    features = events % num_features
    particles[events, rows, features] = _invalid_numbers(num_events)
    is_padding = np.arange(num_rows) >= counts[:, None]
    particles[is_padding] = np.nan
    return {**columns, "particles": particles}


def _with_particles(columns: Columns, count: int) -> dict[str, NDArray[Any]]:
    """Copy the events with `count` particles each, cut or repeated from their own.

    Events without any get zeros, as their padding is.
    """
    particles = columns["particles"]
    num_events, num_rows, num_features = particles.shape
    lengths = np.maximum(columns["num_particles"], 1)
    # The modulo repeats the particles of an event until there are enough.
    rows = np.arange(count) % lengths[:, None]
    padded_rows = max(count, num_rows)
    padded = np.zeros((num_events, padded_rows, num_features), particles.dtype)
    padded[:, :count] = np.take_along_axis(particles, rows[..., None], axis=1)
    counts = np.full(num_events, count)
    return {**columns, "particles": padded, "num_particles": counts}
