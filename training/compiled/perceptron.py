"""Loss and gradient of perceptrons with ReLU: scaling, dense layers, weighted cross-entropy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from training.compiled.dense import add_losses, dense_backward, dense_forward
from training.compiled.kernel import Array, ColumnScaling, Integers, kernel, scale
from training.compiled.optimizer import Constants, is_finite, update


class Perceptron(NamedTuple):
    """Shape and scaling of perceptrons."""

    widths: Integers
    """Widths of all layers: inputs, hidden layers, classes."""
    scaling: ColumnScaling
    """Of the inputs."""


class RowArrays(NamedTuple):
    """Rows to pick batches from."""

    inputs: Array
    """(num_rows, num_inputs) raw features."""
    labels: Integers
    """(num_rows,) classes."""
    weights: Array
    """(num_rows,) weights of the events."""


@kernel
def perceptron_gradients(
    parameters: Array,
    gradients: Array,
    members: Integers,
    network: Perceptron,
    events: RowArrays,
    order: Integers,
    bounds: Integers,
    sums: Array,
) -> None:
    """Gradients of the mean weighted loss of some networks, each on its own batch.

    Args:
        parameters: (num_networks, num_parameters).
        gradients: (num_networks, num_parameters); the rows of `members` are overwritten.
        members: (k,) the networks to compute.
        network: Shape and scaling of all networks.
        events: The rows to pick from.
        order: Numbers of the rows of all batches.
        bounds: (k + 1,) positions in `order` at which the batches begin and end.
        sums: (num_networks, 4) loss, weight, correct, samples; those of the batches are added.
    """
    for k in range(len(members)):
        rows = order[bounds[k] : bounds[k + 1]]
        member = members[k]
        _gradient(parameters[member], gradients[member], network, events, rows, sums[member])


@kernel
def perceptron_epoch(
    parameters: Array,
    gradient: Array,
    first: Array,
    second: Array,
    step: Array,
    rates: Array,
    constants: Constants,
    network: Perceptron,
    events: RowArrays,
    order: Integers,
    bounds: Integers,
    sums: Array,
) -> None:
    """Train one network on consecutive batches; a step whose gradient is not finite has no update.

    Arguments as for `perceptron_gradients` and `update`, and the learning rate of each step, (k,).
    """
    for k in range(len(bounds) - 1):
        rows = order[bounds[k] : bounds[k + 1]]
        _gradient(parameters, gradient, network, events, rows, sums)
        if is_finite(gradient):
            update(parameters, gradient, first, second, step, rates[k], constants)


@kernel
def perceptron_sums(
    parameters: Array,
    network: Perceptron,
    events: RowArrays,
    order: Integers,
    sums: Array,
) -> None:
    """Add loss, weight, correct and samples of some rows under one network; arguments as for `perceptron_gradients`."""
    at_once = 512
    for start in range(0, len(order), at_once):
        rows = order[start : start + at_once]
        logits = dense_forward(parameters, network.widths, _scaled(network, events.inputs, rows), len(rows))
        add_losses(logits, events.labels[rows], events.weights[rows], sums)


@kernel
def _gradient(
    parameters: Array, gradient: Array, network: Perceptron, events: RowArrays, rows: Integers, sums: Array
) -> None:
    """Overwrite `gradient` by the gradient of one network on one batch."""
    # Together, since rows of different places in memory are waited for together.
    labels, weights = events.labels[rows], events.weights[rows]
    values = _scaled(network, events.inputs, rows)
    logits = dense_forward(parameters, network.widths, values, len(rows))
    add_losses(logits, labels, weights, sums)
    dense_backward(parameters, gradient, network.widths, values, len(rows), False)


@kernel
def _scaled(network: Perceptron, inputs: Array, rows: Integers) -> Array:
    """Room for the values of all layers, with those of the inputs."""
    num_rows, num_inputs = len(rows), network.widths[0]
    values = np.empty(network.widths.sum() * num_rows, inputs.dtype)
    for i in range(num_rows):
        for j in range(num_inputs):
            values[j * num_rows + i] = inputs[rows[i], j]
    for j in range(num_inputs):
        scale(values[j * num_rows : (j + 1) * num_rows], network.scaling, j)
    return values
