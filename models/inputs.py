"""Checks the inputs of `features.matrices`, and cuts them as networks take them. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.columns import INPUT_COLUMNS
from models.errors import MissingPluginError, ModelInputError


def inputs_json(inputs: Sequence[str]) -> dict[str, Any]:
    """Shapes, names and units of a network's inputs, in the order of its `forward`."""
    return {name: INPUT_COLUMNS[name].to_json() for name in inputs}


def check_inputs_match(inputs: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse a model whose inputs, from `inputs_json` at its training, are others than this process computes.

    The `ModelInputError` names the features.
    """
    now = inputs_json(names)
    if inputs == now:
        return
    theirs, ours = (
        {name for each in found.values() for name in each["names"]} for found in (inputs, now)
    )
    missing, more = ", ".join(sorted(theirs - ours)), ", ".join(sorted(ours - theirs))
    if missing:
        raise MissingPluginError(f"it takes other features than this code computes: {missing}")
    raise ModelInputError(
        f"it takes other features than this code computes{f': it lacks {more}' if more else ''}"
    )


def input_arrays(
    columns: Mapping[str, NDArray[Any]], names: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """Arrays for the `forward` of a network, as `features.matrices.model_inputs` makes them.

    Columns of B events are `hlf` (B, NUM_HLF), `particles` (B, rows, 19) and `num_particles` (B,); those that are not
    in `names` are ignored. Particle lists are cut to the longest event, since the time of a recurrent network grows
    with the list. They have at least one row. A column of another shape, or a wrong number of particles, is an
    `ModelInputError`.
    """
    found: dict[str, NDArray[Any]] = {}
    for name in names:
        values, shape = columns[name], INPUT_COLUMNS[name].shape
        # Lists of particles have any number of rows.
        if values.ndim != 1 + len(shape) or values.shape[1:][-1:] != shape[-1:]:
            raise ModelInputError(
                f"column {name} has events of shape {values.shape[1:]}; networks take {shape}. Make the features again."
            )
        if name == "particles":
            values = values[:, : _longest(columns["num_particles"], values.shape[1])]
            values = (
                values
                if values.shape[1]
                else np.zeros((len(values), 1, values.shape[2]), values.dtype)
            )
        # A copy, since arrays from Arrow are read-only, which torch does not support.
        found[name] = np.array(values, np.int64 if name == "num_particles" else np.float32)
    if len({len(values) for values in found.values()}) > 1:
        counts = ", ".join(f"{name} {len(values)}" for name, values in found.items())
        raise ModelInputError(
            f"the columns have different numbers of events: {counts}. Make the features again."
        )
    return found


def _longest(num_particles: NDArray[Any], rows: int) -> int:
    """Number of rows for the longest event, at least 1."""
    fewest, most = num_particles.min(initial=0), int(num_particles.max(initial=1))
    if fewest < 0 or most > max(rows, 1):
        raise ModelInputError(
            f"column num_particles goes from {fewest} to {most}, but a particle list has 0 to {rows} rows. "
            f"Make the features again."
        )
    return most
