"""Loss and gradient of a GRU over particles, with dense layers on its last state and on further features.

A row beyond an event's particles is not computed: at each step only the events run that still have particles, and these
are the first ones, since the events are ordered by length. Values are (unit, event), as in `dense`. The gates of a step
are reset, update, new, as torch orders them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from training.compiled.dense import add_losses, dense_backward, dense_forward, sum_over_events
from training.compiled.kernel import Array, Integers, exponential, kernel
from training.compiled.perceptron import Perceptron

#: Number of particles, over steps and events, in one product of matrices; they fit into the cache.
_AT_ONCE: Final = 1024


class Recurrent(NamedTuple):
    """Shape and scaling of a network."""

    width: int
    """Width of the GRU."""
    mean: Array
    """(num_features,) of the scaling of particles."""
    inverse_std: Array
    """(num_features,) of the scaling of particles."""
    head: Perceptron
    """The dense layers over the GRU's state and the further features; its scaling is that of the latter."""


class ParticleEvents(NamedTuple):
    """Rows to pick batches from."""

    further: Array
    """(num_rows, num_further) raw features beside the particles; perhaps none."""
    particles: Array
    """(num_rows, longest, num_features) raw particles."""
    numbers: Integers
    """(num_rows,) number of particles."""
    labels: Integers
    """(num_rows,) classes."""
    weights: Array
    """(num_rows,) weights of the events."""


class _Steps(NamedTuple):
    """The steps of a batch, and what its forward pass leaves for the backward pass."""

    rows: Integers
    """Numbers of the events' rows, the longest event first."""
    counts: Integers
    """(num_steps + 1,) number of events that have a particle at each step; 0 at the end."""
    starts: Integers
    """(num_steps + 1,) number of particles before each step."""
    blocks: Integers
    """First step of each block, and the number of steps: a block has about `_AT_ONCE` particles."""
    kept: Array
    """For each step (5 width, count): reset, update, the state's part of new, new, and the state before the step."""
    scaled: Array
    """For each block of steps the scaled particles (num_features, particles of the block)."""


@kernel
def recurrent_gradient(
    parameters: Array,
    gradient: Array,
    network: Recurrent,
    events: ParticleEvents,
    rows: Integers,
    work: Array,
    sums: Array,
) -> None:
    """Overwrite `gradient` by the gradient of the mean weighted loss of a batch.

    Args:
        parameters: (num_parameters,) the GRU's, then those of the dense layers, as torch orders them.
        gradient: (num_parameters,).
        network: Shape and scaling.
        events: The rows to pick from.
        rows: Numbers of the rows of the batch.
        work: Room for (5 width + num_features) numbers for each particle, of at least one particle for each event.
        sums: (4,) loss, weight, correct, samples; those of the batch are added.
    """
    width, head, num_rows = network.width, network.head, len(rows)
    size = 3 * width * (len(network.mean) + width + 2)
    steps = _steps(network, events, rows, work)
    values = np.empty(head.widths.sum() * num_rows, parameters.dtype)
    states = values[: width * num_rows].reshape(width, num_rows)
    _forward(parameters, network, events, steps, states)
    for i in range(num_rows):
        for j in range(len(head.mean)):
            scaled = (events.further[steps.rows[i], j] - head.mean[j]) * head.inverse_std[j]
            values[(width + j) * num_rows + i] = scaled
    logits = dense_forward(parameters[size:], head.widths, values, num_rows)
    add_losses(logits, events.labels[steps.rows], events.weights[steps.rows], sums)
    dense_backward(parameters[size:], gradient[size:], head.widths, values, num_rows, True)
    _backward(parameters, gradient[:size], network, steps, states)


@kernel
def _steps(network: Recurrent, events: ParticleEvents, rows: Integers, work: Array) -> _Steps:
    """Order a batch by length. An event without particles counts as one particle, whose features are all 0."""
    lengths = np.maximum(events.numbers[rows], 1)
    order = np.argsort(-lengths, kind="mergesort")
    counts = np.zeros(lengths.max() + 1, np.int64)
    for length in lengths:
        counts[:length] += 1
    starts = np.zeros(len(counts), np.int64)
    starts[1:] = np.cumsum(counts[:-1])
    split, stop = 5 * network.width * starts[-1], (5 * network.width + len(network.mean)) * starts[-1]
    return _Steps(rows[order], counts, starts, _blocks(starts), work[:split], work[split:stop])


@kernel
def _blocks(starts: Integers) -> Integers:
    """Cut the steps, which begin at some `starts`, into blocks."""
    found, num_blocks = np.zeros(len(starts) + 1, np.int64), 0
    for step in range(1, len(starts)):
        if starts[step] - starts[found[num_blocks]] > _AT_ONCE and found[num_blocks] < step - 1:
            num_blocks += 1
            found[num_blocks] = step - 1
    found[num_blocks + 1] = len(starts) - 1
    return found[: num_blocks + 2]


@kernel
def _kept(steps: _Steps, width: int, step: int) -> Array:
    """(5, width, count) of a step."""
    count = steps.counts[step]
    start = 5 * width * steps.starts[step]
    return steps.kept[start : start + 5 * width * count].reshape(5, width, count)


@kernel
def _scaled(network: Recurrent, events: ParticleEvents, steps: _Steps, first: int, last: int) -> Array:
    """Scale the particles of a block of steps, (num_features, particles of the block); padding is 0."""
    num_features, start = len(network.mean), steps.starts[first]
    num_particles = steps.starts[last] - start
    block = steps.scaled[num_features * start : num_features * (start + num_particles)]
    block = block.reshape(num_features, num_particles)
    for step in range(first, last):
        place = steps.starts[step] - start
        for i in range(steps.counts[step]):
            row = steps.rows[i]
            is_valid = step < events.numbers[row]
            for j in range(num_features):
                value = (events.particles[row, step, j] - network.mean[j]) * network.inverse_std[j]
                block[j, place + i] = value if is_valid else 0
    return block


@kernel
def _forward(parameters: Array, network: Recurrent, events: ParticleEvents, steps: _Steps, states: Array) -> None:
    """Run the GRU; `states` (width, num_rows) gets the state of each event after its last particle."""
    width, num_features = network.width, len(network.mean)
    of_inputs = 3 * width * num_features
    of_both = of_inputs + 3 * width * width
    weights_inputs = parameters[:of_inputs].reshape(3 * width, num_features)
    weights_states = parameters[of_inputs:of_both].reshape(3 * width, width)
    biases = parameters[of_both : of_both + 6 * width].reshape(2, 3, width)
    _kept(steps, width, 0)[4] = 0
    for block in range(len(steps.blocks) - 1):
        first, last = steps.blocks[block], steps.blocks[block + 1]
        from_inputs = np.dot(weights_inputs, _scaled(network, events, steps, first, last))
        from_inputs_ = from_inputs.reshape(3, width, from_inputs.shape[1])
        for step in range(first, last):
            kept, count = _kept(steps, width, step), steps.counts[step]
            np.dot(weights_states, kept[4], kept[:3].reshape(3 * width, count))
            place = steps.starts[step] - steps.starts[first]
            staying = steps.counts[step + 1]
            following = _kept(steps, width, step + 1)[4] if staying else kept[4]
            for i in range(width):
                _gates(kept, from_inputs_, biases, i, place, count)
                new, update, before = kept[3, i], kept[1, i], kept[4, i]
                after = following[i]
                for j in range(staying):
                    after[j] = new[j] + update[j] * (before[j] - new[j])
                at_end = states[i]
                for j in range(staying, count):
                    at_end[j] = new[j] + update[j] * (before[j] - new[j])


@kernel
def _gates(kept: Array, from_inputs: Array, biases: Array, i: int, place: int, count: int) -> None:
    """Gates of one unit at one step, in short loops, which compile to vector instructions."""
    one, two = kept.dtype.type(1), kept.dtype.type(2)
    for gate in range(2):
        row, inputs = kept[gate, i], from_inputs[gate, i, place : place + count]
        bias = biases[0, gate, i] + biases[1, gate, i]
        for j in range(count):
            row[j] = one / (one + exponential(-(row[j] + inputs[j] + bias)))
    reset, from_states, new = kept[0, i], kept[2, i], kept[3, i]
    inputs, bias, bias_states = from_inputs[2, i, place : place + count], biases[0, 2, i], biases[1, 2, i]
    for j in range(count):
        from_states[j] += bias_states
    for j in range(count):
        # tanh by the logistic function.
        new[j] = two / (one + exponential(-two * (inputs[j] + bias + reset[j] * from_states[j]))) - one


@kernel
def _backward(parameters: Array, gradient: Array, network: Recurrent, steps: _Steps, from_head: Array) -> None:
    """Overwrite the GRU's gradient, from the derivatives by the last states, (width, num_rows)."""
    width, num_features = network.width, len(network.mean)
    of_inputs = 3 * width * num_features
    of_both = of_inputs + 3 * width * width
    weights_states = parameters[of_inputs:of_both].reshape(3 * width, width)
    gradient[:] = 0
    by_inputs = gradient[:of_inputs].reshape(3, width, num_features)
    by_states = gradient[of_inputs:of_both].reshape(3 * width, width)
    by_biases = gradient[of_both:].reshape(2, 3, width)
    derivatives = np.empty((width, 0), parameters.dtype)
    for number in range(len(steps.blocks) - 2, -1, -1):
        first, last = steps.blocks[number], steps.blocks[number + 1]
        start, num_particles = steps.starts[first], steps.starts[last] - steps.starts[first]
        # Derivatives by new's part from the inputs, reset, update, and new's part from the state.
        block = np.empty((4, width, num_particles), parameters.dtype)
        before = np.empty((width, num_particles), parameters.dtype)
        for step in range(last - 1, first - 1, -1):
            count, place = steps.counts[step], steps.starts[step] - start
            kept = _kept(steps, width, step)
            joined = np.empty((width, count), parameters.dtype)
            joined[:, : derivatives.shape[1]] = derivatives
            joined[:, derivatives.shape[1] :] = from_head[:, derivatives.shape[1] : count]
            of_gates = np.empty((3, width, count), parameters.dtype)
            for i in range(width):
                _gates_backward(kept, joined, of_gates, block, i, place)
                before[i, place : place + count] = kept[4, i]
            derivatives = np.dot(weights_states.T, of_gates.reshape(3 * width, count))
            derivatives += joined
        by_states += np.dot(block[1:].reshape(3 * width, num_particles), before.T)
        scaled = steps.scaled[num_features * start : num_features * (start + num_particles)]
        scaled = scaled.reshape(num_features, num_particles)
        products = np.dot(block[:3].reshape(3 * width, num_particles), scaled.T).reshape(3, width, num_features)
        by_inputs[2] += products[0]
        by_inputs[:2] += products[1:]
        total = np.empty(4 * width, parameters.dtype)
        sum_over_events(block.reshape(4 * width, num_particles), total)
        totals = total.reshape(4, width)
        by_biases[0, 2] += totals[0]
        by_biases[0, :2] += totals[1:3]
        by_biases[1] += totals[1:]


@kernel
def _gates_backward(kept: Array, derivatives: Array, of_gates: Array, block: Array, i: int, place: int) -> None:
    """Derivatives by the gates of one unit at one step; those by its state are multiplied by the update gate."""
    one, count = kept.dtype.type(1), derivatives.shape[1]
    reset, update, from_states, new, before = kept[0, i], kept[1, i], kept[2, i], kept[3, i], kept[4, i]
    state, of_reset, of_update, of_new = derivatives[i], of_gates[0, i], of_gates[1, i], of_gates[2, i]
    of_inputs = block[0, i, place : place + count]
    for j in range(count):
        of_update[j] = state[j] * (before[j] - new[j]) * update[j] * (one - update[j])
    for j in range(count):
        of_inputs[j] = state[j] * (one - update[j]) * (one - new[j] * new[j])
    for j in range(count):
        of_reset[j] = of_inputs[j] * from_states[j] * reset[j] * (one - reset[j])
    for j in range(count):
        of_new[j] = of_inputs[j] * reset[j]
    for j in range(count):
        state[j] *= update[j]
    for gate in range(3):
        block[1 + gate, i, place : place + count] = of_gates[gate, i]
