"""Turns the inputs of `features.matrices` into the tensors that networks take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from features.columns import INPUT_COLUMNS
from models.errors import InputError


def input_tensors(columns: Mapping[str, NDArray[Any]], names: Sequence[str], *, dtype: torch.dtype) -> list[Tensor]:
    """Input tensors for the `forward` of a network, as `features.matrices.model_inputs` makes them.

    Particle lists are cut to the longest event, since the time of a recurrent network grows with the list. They have
    at least one row.

    Args:
        columns: Columns of B events: `hlf` (B, NUM_HLF), `particles` (B, rows, 19), `num_particles` (B,); others are
            ignored.
        names: The network's `inputs`.
        dtype: Floating point type of the network.

    Raises:
        InputError: A column has another shape or number of events, or a number of particles is negative or above the
            number of rows.

    Examples:
        >>> columns = {"particles": np.zeros((2, 801, 19), np.float32), "num_particles": np.array([5, 3], np.int32)}
        >>> [tuple(tensor.shape) for tensor in input_tensors(columns, list(columns), dtype=torch.float32)]
        [(2, 5, 19), (2,)]
    """
    tensors = []
    for name in names:
        values = _shaped(name, columns[name])
        if name == "num_particles":
            tensors.append(torch.from_numpy(values.astype(np.int64)))
            continue
        if name == "particles":
            values = values[:, : _longest(columns["num_particles"], values.shape[1])]
            values = values if values.shape[1] else np.zeros((len(values), 1, values.shape[2]), values.dtype)
        # A copy, since arrays from Arrow are read-only, which torch does not support.
        tensors.append(torch.from_numpy(np.array(values)).to(dtype))
    if len({len(tensor) for tensor in tensors}) > 1:
        counts = ", ".join(f"{name} {len(tensor)}" for name, tensor in zip(names, tensors, strict=True))
        raise InputError(f"the columns have different numbers of events: {counts}. Make the features again.")
    return tensors


def _shaped(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """The rows of a column, each with the shape of an event."""
    shape = INPUT_COLUMNS[name].shape
    given = values.shape[1:]
    if name == "particles":
        # Any number of rows, which may follow one another in one axis.
        shape = (math.prod(given) // shape[1], shape[1])
    if math.prod(given) != math.prod(shape) or (len(given) > 1 and given != shape):
        raise InputError(
            f"column {name} has events of shape {given}; networks take {INPUT_COLUMNS[name].shape}. "
            f"Make the features again."
        )
    return values.reshape(len(values), *shape)


def _longest(num_particles: NDArray[Any], rows: int) -> int:
    """Number of rows for the longest event, at least 1."""
    fewest, most = num_particles.min(initial=0), int(num_particles.max(initial=1))
    if fewest < 0 or most > max(rows, 1):
        raise InputError(
            f"column num_particles goes from {fewest} to {most}, but a particle list has 0 to {rows} rows. "
            f"Make the features again."
        )
    return most
