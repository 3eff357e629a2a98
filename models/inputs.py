"""Checks the inputs of networks, and cuts particle lists to the longest event. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.columns import INPUT_COLUMNS
from models.errors import MissingPluginError, ModelInputError


def inputs_json(inputs: Sequence[str]) -> dict[str, Any]:
    """Return shapes, names and units of a network's inputs, in the order of its `forward`."""
    return {name: INPUT_COLUMNS[name].to_json() for name in inputs}


def check_inputs_match(saved_inputs: Mapping[str, Any], names: Sequence[str]) -> None:
    """Check that a model takes the features that this process computes.

    `saved_inputs` come from `inputs_json` at its training, `names` are its inputs. If names, units
    or shapes differ, it is a `ModelInputError` that names the features. It is a
    `MissingPluginError` if features are missing here, as those of a plugin are.
    """
    current_inputs = inputs_json(names)
    if saved_inputs == current_inputs:
        return
    saved_features = _feature_names(saved_inputs)
    current_features = _feature_names(current_inputs)
    # A feature that this code lacks may be one of a plugin that is not loaded.
    if missing := saved_features - current_features:
        raise MissingPluginError(
            f"it takes other features than this code computes: {', '.join(sorted(missing))}"
        )
    # Else this code has more features, or other shapes or units.
    lacking = ", ".join(sorted(current_features - saved_features))
    detail = f": it lacks {lacking}" if lacking else ""
    raise ModelInputError(f"it takes other features than this code computes{detail}")


def _feature_names(inputs: Mapping[str, Any]) -> set[str]:
    """Collect the names of all features of some inputs."""
    names: set[str] = set()
    for description in inputs.values():
        names.update(description["names"])
    return names


def input_arrays(
    columns: Mapping[str, NDArray[Any]], names: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """Make the arrays that the `forward` of a network takes.

    `columns` have B events each: `hlf` (B, NUM_HLF), `particles` (B, rows, 19) and `num_particles`
    (B,), as `features.matrices.model_inputs` makes them. Only those in `names` are used. Particle
    lists are cut to the longest event, since the time of a recurrent network grows with the list.
    They have at least one row. A column of another shape, or a wrong number of particles, is a
    `ModelInputError`.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for name in names:
        values = columns[name]
        _check_shape(name, values)
        if name == "particles":
            values = _cut_particles(values, columns["num_particles"])
        dtype = np.int64 if name == "num_particles" else np.float32
        # A copy, since arrays from Arrow are read-only, which torch does not support.
        arrays[name] = np.array(values, dtype)
    num_events = {name: len(values) for name, values in arrays.items()}
    if len(set(num_events.values())) > 1:
        counts = ", ".join(f"{name} {count}" for name, count in num_events.items())
        raise ModelInputError(
            f"the columns have different numbers of events: {counts}. Make the features again."
        )
    return arrays


def _check_shape(name: str, values: NDArray[Any]) -> None:
    """Check the shape of an event in a column; a list of particles may have any number of rows."""
    shape = INPUT_COLUMNS[name].shape
    event_shape = values.shape[1:]
    # Number of axes and length of the last axis must fit.
    if len(event_shape) != len(shape) or event_shape[-1:] != shape[-1:]:
        raise ModelInputError(
            f"column {name} has events of shape {event_shape}; networks take {shape}. "
            "Make the features again."
        )


def _cut_particles(particles: NDArray[Any], num_particles: NDArray[Any]) -> NDArray[Any]:
    """Cut particle lists (B, rows, 19) to the rows of the longest event, at least 1."""
    num_events, num_rows, num_features = particles.shape
    fewest, most = num_particles.min(initial=0), int(num_particles.max(initial=1))
    if fewest < 0 or most > max(num_rows, 1):
        raise ModelInputError(
            f"column num_particles goes from {fewest} to {most}, "
            f"but a particle list has 0 to {num_rows} rows. Make the features again."
        )
    # Lists without any row get one row of zeros.
    if num_rows == 0:
        return np.zeros((num_events, 1, num_features), particles.dtype)
    return particles[:, :most]
