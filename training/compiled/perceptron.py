"""Loss and gradient of perceptrons with ReLU: scaling, dense layers, weighted cross-entropy.

All values of a layer are (width, num_events), so that loops over events are vectors, and biases are scalars. The
parameters of a network are one vector: weights (out, in) and biases (out,) of each layer, as torch orders them.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from training.compiled.kernel import Array, Integers, kernel
from training.compiled.optimizer import Constants, update

#: Number of weights of a layer above which BLAS computes their gradient.
_MOST_WEIGHTS_WITHOUT_BLAS: Final = 16_384


class Perceptron(NamedTuple):
    """Shape and scaling of perceptrons."""

    widths: Integers
    """Widths of all layers: inputs, hidden layers, classes."""
    mean: Array
    """(num_inputs,) of the scaling."""
    inverse_std: Array
    """(num_inputs,) of the scaling."""


class Events(NamedTuple):
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
    events: Events,
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
    rate: float,
    constants: Constants,
    network: Perceptron,
    events: Events,
    order: Integers,
    bounds: Integers,
    sums: Array,
) -> None:
    """Train one network on consecutive batches; arguments as for `perceptron_gradients` and `update`."""
    for k in range(len(bounds) - 1):
        rows = order[bounds[k] : bounds[k + 1]]
        _gradient(parameters, gradient, network, events, rows, sums)
        update(parameters, gradient, first, second, step, rate, constants)


@kernel
def perceptron_sums(
    parameters: Array,
    network: Perceptron,
    events: Events,
    order: Integers,
    sums: Array,
) -> None:
    """Add loss, weight, correct and samples of some rows under one network; arguments as for `perceptron_gradients`."""
    at_once = 512
    for start in range(0, len(order), at_once):
        rows = order[start : start + at_once]
        values = _forward(parameters, network, events.inputs, rows)
        _losses(_last(values, network.widths, len(rows)), events, rows, sums)


@kernel
def _forward(parameters: Array, network: Perceptron, inputs: Array, rows: Integers) -> Array:
    """Values of all layers, one after the other, each (width, num_events); the last ones are the logits."""
    widths, mean, inverse_std = network.widths, network.mean, network.inverse_std
    num_rows, num_inputs = len(rows), widths[0]
    values = np.empty(widths.sum() * num_rows, parameters.dtype)
    for i in range(num_rows):
        for j in range(num_inputs):
            values[j * num_rows + i] = (inputs[rows[i], j] - mean[j]) * inverse_std[j]
    start = place = 0
    for layer in range(len(widths) - 1):
        num_in, num_out = widths[layer], widths[layer + 1]
        matrix = parameters[start : start + num_in * num_out].reshape(num_out, num_in)
        start += num_in * num_out
        below = values[place : place + num_in * num_rows].reshape(num_in, num_rows)
        place += num_in * num_rows
        above = values[place : place + num_out * num_rows].reshape(num_out, num_rows)
        np.dot(matrix, below, above)
        is_last = layer == len(widths) - 2
        for i in range(num_out):
            bias, row = parameters[start + i], above[i]
            for j in range(num_rows):
                value = row[j] + bias
                # NaN stays NaN.
                row[j] = value if is_last or not value <= 0 else 0
        start += num_out
    return values


@kernel
def _last(values: Array, widths: Integers, num_rows: int) -> Array:
    """The logits (num_classes, num_events) of the values of all layers."""
    return values[len(values) - widths[-1] * num_rows :].reshape(widths[-1], num_rows)


@kernel
def _losses(logits: Array, events: Events, rows: Integers, sums: Array) -> None:
    """Add the sums of a batch, and replace the logits by the derivatives of the mean weighted loss."""
    num_classes, num_rows = logits.shape
    real = logits.dtype.type
    scale = real(1) / real(num_rows)
    # Together, since rows of different places in memory are waited for together.
    labels, weights = events.labels[rows], events.weights[rows]
    for i in range(num_rows):
        label, weight = labels[i], weights[i]
        best, highest = 0, logits[0, i]
        for k in range(1, num_classes):
            best = k if logits[k, i] > highest else best
            highest = max(highest, logits[k, i])
        at_label = logits[label, i]
        total = real(0)
        for k in range(num_classes):
            logits[k, i] = math.exp(logits[k, i] - highest)
            total += logits[k, i]
        sums[0] += weight * (math.log(total) + highest - at_label)
        sums[1] += weight
        sums[2] += weight if best == label else 0
        weight *= scale
        for k in range(num_classes):
            logits[k, i] *= weight / total
        logits[label, i] -= weight
    sums[3] += num_rows


@kernel
def _gradient(
    parameters: Array,
    gradient: Array,
    network: Perceptron,
    events: Events,
    rows: Integers,
    sums: Array,
) -> None:
    """Overwrite `gradient` by the gradient of one network on one batch."""
    num_rows, widths = len(rows), network.widths
    values = _forward(parameters, network, events.inputs, rows)
    above = _last(values, widths, num_rows)
    _losses(above, events, rows, sums)
    start, place = len(parameters), len(values) - above.size
    for layer in range(len(widths) - 2, -1, -1):
        num_in, num_out = widths[layer], widths[layer + 1]
        for i in range(num_out):
            total, row = above[i, 0], above[i]
            for j in range(1, num_rows):
                total += row[j]
            gradient[start - num_out + i] = total
        start -= (num_in + 1) * num_out
        place -= num_in * num_rows
        below = values[place : place + num_in * num_rows].reshape(num_in, num_rows)
        _sum_of_products(above, below, gradient[start : start + num_in * num_out].reshape(num_out, num_in))
        if layer:
            matrix = parameters[start : start + num_in * num_out].reshape(num_out, num_in)
            passed = np.dot(matrix.T, above)
            for i in range(num_in):
                derivative, row = passed[i], below[i]
                for j in range(num_rows):
                    # The derivative replaces the value, which is needed no more.
                    row[j] = 0 if row[j] <= 0 else derivative[j]
            above = below


@kernel
def _sum_of_products(derivatives: Array, values: Array, out: Array) -> None:
    """Sums over events: derivatives (num_out, num_events) times values (num_in, num_events), (num_out, num_in).

    Blocks of 2 x 4 in registers take half the time of BLAS, whose strength is large matrices.
    """
    num_out, num_in = out.shape
    if num_out * num_in > _MOST_WEIGHTS_WITHOUT_BLAS:
        np.dot(derivatives, values.T, out)
        return
    zero = out.dtype.type(0)
    for i in range(0, num_out, 2):
        # With an odd number, the last row is computed twice.
        other = min(i + 1, num_out - 1)
        d0, d1 = derivatives[i], derivatives[other]
        for k in range(0, num_in - 3, 4):
            v0, v1, v2, v3 = values[k], values[k + 1], values[k + 2], values[k + 3]
            s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = zero
            for j in range(values.shape[1]):
                s0 += d0[j] * v0[j]
                s1 += d0[j] * v1[j]
                s2 += d0[j] * v2[j]
                s3 += d0[j] * v3[j]
                t0 += d1[j] * v0[j]
                t1 += d1[j] * v1[j]
                t2 += d1[j] * v2[j]
                t3 += d1[j] * v3[j]
            out[i, k], out[i, k + 1], out[i, k + 2], out[i, k + 3] = s0, s1, s2, s3
            out[other, k], out[other, k + 1], out[other, k + 2], out[other, k + 3] = t0, t1, t2, t3
        for k in range(num_in // 4 * 4, num_in):
            v0 = values[k]
            s0 = t0 = zero
            for j in range(values.shape[1]):
                s0 += d0[j] * v0[j]
                t0 += d1[j] * v0[j]
            out[i, k], out[other, k] = s0, t0
