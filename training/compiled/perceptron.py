"""Perceptrons with ReLU: scaling, dense layers and weighted cross-entropy, forward and backward.

All values of a layer are (width, num_events), so that loops over events are vectors, and biases are
scalars. The values of all layers are one vector, one layer after the other. So are the parameters:
weights (out, in) and biases (out,) of each layer, as torch orders them.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from training.compiled.kernel import Array, ColumnScaling, Integers, kernel, scale
from training.compiled.muon import update_with_matrices
from training.compiled.optimizer import Constants, is_finite

#: Number of weights of a layer above which BLAS computes their gradient faster than our loops.
_MOST_WEIGHTS_WITHOUT_BLAS: Final = 16_384


@kernel
def dense_forward(parameters: Array, widths: Integers, values: Array, num_rows: int) -> Array:
    """Compute the values of all layers from the inputs, which are already in `values`.

    Each layer multiplies its inputs by the weights and adds the biases. All layers but the last
    apply ReLU.

    Args:
        parameters: The parameters of all layers.
        widths: Widths of the inputs and of all layers.
        values: (sum of `widths` times num_rows,) with the inputs first; the rest is overwritten.
        num_rows: Number of events.

    Returns:
        The logits, (num_classes, num_rows), a view of `values`.
    """
    # These are the positions of the layer in `parameters` and of its inputs in `values`.
    position = input_position = 0
    for layer in range(len(widths) - 1):
        num_in, num_out = widths[layer], widths[layer + 1]
        weights = _as_matrix(parameters, position, num_out, num_in)
        position += num_in * num_out
        inputs = _as_matrix(values, input_position, num_in, num_rows)
        input_position += num_in * num_rows
        outputs = _as_matrix(values, input_position, num_out, num_rows)
        np.dot(weights, inputs, outputs)
        is_last = layer == len(widths) - 2
        for i in range(num_out):
            bias, output = parameters[position + i], outputs[i]
            for j in range(num_rows):
                value = output[j] + bias
                # A comparison with NaN is false, so NaN stays NaN.
                output[j] = value if is_last or not value <= 0 else 0
        position += num_out
    return _as_matrix(values, input_position, widths[-1], num_rows)


@kernel
def _as_matrix(vector: Array, start: int, num_rows: int, num_columns: int) -> Array:
    """Return the part of a vector from `start` on as a matrix, without a copy."""
    return vector[start : start + num_rows * num_columns].reshape(num_rows, num_columns)


@kernel
def add_losses(logits: Array, labels: Integers, weights: Array, sums: Array) -> None:
    """Add a batch to `sums`, and replace the logits by the derivatives of the mean weighted loss.

    The loss of an event is its weight times the cross-entropy of the softmax of its logits. The
    mean divides by the number of events, not by the sum of their weights.

    Args:
        logits: (num_classes, num_rows).
        labels: (num_rows,) classes.
        weights: (num_rows,) weights of the events.
        sums: (4,) weighted loss, weight, weight of correctly classified events, number of events.

    Raises:
        IndexError: There is no such class.
    """
    num_classes, num_rows = logits.shape
    real = logits.dtype.type
    scale = real(1) / real(num_rows)
    for i in range(num_rows):
        label, weight = labels[i], weights[i]
        if not 0 <= label < num_classes:
            raise IndexError("a label is not the number of a class")
        predicted, highest = 0, logits[0, i]
        for k in range(1, num_classes):
            predicted = k if logits[k, i] > highest else predicted
            highest = max(highest, logits[k, i])
        label_logit = logits[label, i]
        # The highest logit is subtracted, so that no exponential overflows.
        total = real(0)
        for k in range(num_classes):
            logits[k, i] = math.exp(logits[k, i] - highest)
            total += logits[k, i]
        sums[0] += weight * (math.log(total) + highest - label_logit)
        sums[1] += weight
        sums[2] += weight if predicted == label else 0
        # The derivative is weight / num_rows times (probability - 1 for the true class, else - 0).
        weight *= scale
        for k in range(num_classes):
            logits[k, i] *= weight / total
        logits[label, i] -= weight
    sums[3] += num_rows


@kernel
def dense_backward(
    parameters: Array,
    gradient: Array,
    widths: Integers,
    values: Array,
    num_rows: int,
    to_inputs: bool,
) -> None:
    """Overwrite `gradient` by the gradient of all layers, from the last layer to the first.

    At the begin, the end of `values` holds the derivatives of the loss by the logits, from
    `add_losses`. For each layer, the gradient of the biases is the sum of the derivatives over
    events, and that of the weights their product with the layer's inputs.

    Args:
        parameters: The parameters of all layers.
        gradient: The gradient of all layers.
        widths: Widths of the inputs and of all layers.
        values: From `dense_forward`; the derivatives by each layer's values replace these values.
        num_rows: Number of events.
        to_inputs: Whether to compute the derivatives by the inputs too.
    """
    # These are the end of the layer in `parameters` and the position of its outputs in `values`.
    position, value_position = len(parameters), len(values) - widths[-1] * num_rows
    for layer in range(len(widths) - 2, -1, -1):
        num_in, num_out = widths[layer], widths[layer + 1]
        output_derivatives = _as_matrix(values, value_position, num_out, num_rows)
        sum_over_events(output_derivatives, gradient[position - num_out : position])
        position -= (num_in + 1) * num_out
        value_position -= num_in * num_rows
        inputs = _as_matrix(values, value_position, num_in, num_rows)
        weight_gradient = _as_matrix(gradient, position, num_out, num_in)
        _sum_products(output_derivatives, inputs, weight_gradient)
        if layer or to_inputs:
            weights = _as_matrix(parameters, position, num_out, num_in)
            input_derivatives = np.dot(weights.T, output_derivatives)
            for i in range(num_in):
                derivative, row = input_derivatives[i], inputs[i]
                for j in range(num_rows):
                    # Where ReLU gave 0, its derivative is 0. The inputs of layer 0 had no ReLU.
                    row[j] = 0 if layer and row[j] <= 0 else derivative[j]


@kernel
def sum_over_events(derivatives: Array, out: Array) -> None:
    """Write the sum of each row of `derivatives`, (num_out, num_events), into `out`, (num_out,)."""
    for i in range(len(out)):
        total, row = out.dtype.type(0), derivatives[i]
        for j in range(derivatives.shape[1]):
            total += row[j]
        out[i] = total


@kernel
def _sum_products(derivatives: Array, values: Array, out: Array) -> None:
    """Write the matrix product of derivatives and transposed values into `out`.

    An element is a sum over events: out[i, k] is the sum of derivatives[i, j] * values[k, j].
    One loop over events computes a block of 2 x 4 elements in registers. For small matrices this
    takes half the time of BLAS.

    Args:
        derivatives: (num_out, num_events).
        values: (num_in, num_events).
        out: (num_out, num_in).
    """
    num_out, num_in = out.shape
    if num_out * num_in > _MOST_WEIGHTS_WITHOUT_BLAS:
        np.dot(derivatives, values.T, out)
        return
    zero = out.dtype.type(0)
    for i in range(0, num_out, 2):
        # If the number of rows is odd, the last row is computed twice.
        next_i = min(i + 1, num_out - 1)
        d0, d1 = derivatives[i], derivatives[next_i]
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
            out[next_i, k], out[next_i, k + 1] = t0, t1
            out[next_i, k + 2], out[next_i, k + 3] = t2, t3
        # The last one to three columns fill no block of four.
        for k in range(num_in // 4 * 4, num_in):
            v0 = values[k]
            s0 = t0 = zero
            for j in range(values.shape[1]):
                s0 += d0[j] * v0[j]
                t0 += d1[j] * v0[j]
            out[i, k], out[next_i, k] = s0, t0


class Perceptron(NamedTuple):
    """Shape and scaling of perceptrons."""

    widths: Integers
    """Widths of all layers: inputs, hidden layers, classes."""
    scaling: ColumnScaling
    """Scaling of the inputs."""


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
    """Write the gradients of the mean weighted loss of some networks, each on its own batch.

    Args:
        parameters: (num_networks, num_parameters).
        gradients: (num_networks, num_parameters); the rows of `members` are overwritten.
        members: (k,) numbers of the networks to compute.
        network: Shape and scaling of all networks.
        events: The rows to pick from.
        order: Numbers of the rows of all batches.
        bounds: (k + 1,) positions in `order` at which the batches begin and end.
        sums: (num_networks, 4) as in `add_losses`; those of the batches are added.
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
    matrices: Integers,
    network: Perceptron,
    events: RowArrays,
    order: Integers,
    bounds: Integers,
    sums: Array,
) -> None:
    """Train one network on consecutive batches, with one step of the optimiser for each.

    A step whose gradient is not finite leaves the parameters unchanged. The arguments are those of
    `perceptron_gradients` and of `update_with_matrices`. `rates`: (k,) learning rate of each step.
    """
    for k in range(len(bounds) - 1):
        rows = order[bounds[k] : bounds[k + 1]]
        _gradient(parameters, gradient, network, events, rows, sums)
        if is_finite(gradient):
            update_with_matrices(
                parameters, gradient, first, second, step, rates[k], constants, matrices
            )


@kernel
def perceptron_sums(
    parameters: Array,
    network: Perceptron,
    events: RowArrays,
    order: Integers,
    sums: Array,
) -> None:
    """Add the losses of some rows under one network to `sums`, without a gradient.

    The arguments are those of `perceptron_gradients`. `sums`: (4,) as in `add_losses`.
    """
    # Blocks of rows bound the memory for the values of all layers.
    rows_at_once = 512
    for start in range(0, len(order), rows_at_once):
        rows = order[start : start + rows_at_once]
        values = _scale_inputs(network, events.inputs, rows)
        logits = dense_forward(parameters, network.widths, values, len(rows))
        add_losses(logits, events.labels[rows], events.weights[rows], sums)


@kernel
def _gradient(
    parameters: Array,
    gradient: Array,
    network: Perceptron,
    events: RowArrays,
    rows: Integers,
    sums: Array,
) -> None:
    """Overwrite `gradient` by the gradient of one network on one batch; add the batch to `sums`."""
    # Labels are read before the scaling, so that all rows come from memory at the same time.
    labels, weights = events.labels[rows], events.weights[rows]
    values = _scale_inputs(network, events.inputs, rows)
    logits = dense_forward(parameters, network.widths, values, len(rows))
    add_losses(logits, labels, weights, sums)
    dense_backward(parameters, gradient, network.widths, values, len(rows), False)


@kernel
def _scale_inputs(network: Perceptron, inputs: Array, rows: Integers) -> Array:
    """New memory for the values of all layers, which begins with the scaled inputs of some rows.

    Returns:
        (sum of the widths times the number of rows,); the values of one input are consecutive.
    """
    num_rows, num_inputs = len(rows), network.widths[0]
    values = np.empty(network.widths.sum() * num_rows, inputs.dtype)
    for i in range(num_rows):
        for j in range(num_inputs):
            values[j * num_rows + i] = inputs[rows[i], j]
    for j in range(num_inputs):
        scale(values[j * num_rows : (j + 1) * num_rows], network.scaling, j)
    return values
