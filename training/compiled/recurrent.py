"""Loss and gradient of a GRU over particles, with dense layers on its last state and on further features.

A row beyond an event's particles is not computed: at each step only the events run that still have particles, and these
are the first ones, since the events are ordered by length. Values are (unit, event), as in `dense`. The gates of a step
are reset, update, new, as torch orders them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from models.networks.lepton_frame import RotatedColumns
from training.compiled.kernel import (
    Array,
    ColumnScaling,
    Integers,
    exponential,
    kernel,
    scale,
    turn,
)
from training.compiled.perceptron import (
    Perceptron,
    add_losses,
    dense_backward,
    dense_forward,
    sum_over_events,
)

#: Number of particles, over steps and events, in one product of matrices; they fit into the cache.
_AT_ONCE: Final = 1024


class Recurrent(NamedTuple):
    """Shape and scaling of a network."""

    width: int
    """Width of the GRU."""
    scaling: ColumnScaling
    """Of the particles."""
    from_end: bool
    """Whether the last valid particle of an event is read first."""
    head: Perceptron
    """The dense layers over the GRU's state and the further features; its scaling is that of the latter."""
    turned: RotatedColumns
    """Of the particles."""
    turned_further: RotatedColumns
    """Of the further features."""


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


class Steps(NamedTuple):
    """The steps of a batch."""

    rows: Integers
    """Numbers of the events' rows, the longest event first."""
    counts: Integers
    """(num_steps + 1,) number of events that have a particle at each step; 0 at the end."""
    starts: Integers
    """(num_steps + 1,) number of particles before each step."""
    blocks: Integers
    """First step of each block of steps, and the number of steps. A block's particles fit into the cache."""

    @property
    def num_particles(self) -> int:
        """Number of particles of all events, at least one for each."""
        return int(self.starts[-1])


def steps_of(rows: Integers, numbers: Integers) -> Steps:
    """Order a batch by length. An event without particles counts as one particle, whose features are all 0.

    Args:
        rows: Numbers of the rows of the batch.
        numbers: (num_rows,) number of particles of each event.

    Examples:
        >>> steps = steps_of(np.array([7, 8, 9]), np.array([0, 3, 2]))
        >>> [values.tolist() for values in steps]
        [[8, 9, 7], [3, 2, 1, 0], [0, 3, 5, 6], [0, 3]]
    """
    lengths = np.maximum(numbers, 1)
    order = np.argsort(-lengths, kind="stable")
    counts = len(rows) - np.searchsorted(
        lengths[order[::-1]], np.arange(lengths.max() + 1), side="right"
    )
    starts = np.concatenate([[0], np.cumsum(counts[:-1])])
    cuts = np.searchsorted(starts, np.arange(0, starts[-1], _AT_ONCE))
    return Steps(rows[order], counts, starts, np.unique([*cuts, len(counts) - 1]))


@kernel
def recurrent_gradient(
    parameters: Array,
    gradient: Array,
    network: Recurrent,
    events: ParticleEvents,
    steps: Steps,
    work: Array,
    sums: Array,
) -> None:
    """Overwrite `gradient` by the gradient of the mean weighted loss of a batch.

    Args:
        parameters: (num_parameters,) the GRU's, then those of the dense layers, as torch orders them.
        gradient: (num_parameters,).
        network: Shape and scaling.
        events: The rows to pick from.
        steps: The batch, from `steps_of`.
        work: Room for (5 width + num_features) numbers for each particle.
        sums: (4,) loss, weight, correct, samples; those of the batch are added.
    """
    width, head, num_rows = network.width, network.head, len(steps.rows)
    size = 3 * width * (len(network.scaling.mean) + width + 2)
    split = 5 * width * steps.starts[-1]
    kept, scaled_particles = work[:split], work[split:]
    values = np.empty(head.widths.sum() * num_rows, parameters.dtype)
    states = values[: width * num_rows].reshape(width, num_rows)
    _forward(parameters, network, events, steps, kept, scaled_particles, states)
    num_further = len(head.scaling.mean)
    further = values[width * num_rows : (width + num_further) * num_rows].reshape(
        num_further, num_rows
    )
    for j in range(num_further):
        for i in range(num_rows):
            further[j, i] = events.further[steps.rows[i], j]
    if num_further:
        # Copies, since the columns that say the direction are turned too.
        turned = network.turned_further
        turn(further, turned, further[turned.azimuth].copy(), further[turned.eta].copy())
    for j in range(num_further):
        scale(further[j], head.scaling, j)
    logits = dense_forward(parameters[size:], head.widths, values, num_rows)
    add_losses(logits, events.labels[steps.rows], events.weights[steps.rows], sums)
    dense_backward(parameters[size:], gradient[size:], head.widths, values, num_rows, True)
    _backward(parameters, gradient[:size], network, steps, kept, scaled_particles, states)


@kernel
def _of_step(kept: Array, steps: Steps, width: int, step: int) -> Array:
    """What the forward pass leaves of a step for the backward pass, (5, width, count).

    It is reset, update, the state's part of new, new, and the state before the step.
    """
    count = steps.counts[step]
    start = 5 * width * steps.starts[step]
    return kept[start : start + 5 * width * count].reshape(5, width, count)


@kernel
def _of_block(scaled: Array, steps: Steps, num_features: int, first: int, last: int) -> Array:
    """The scaled particles of a block of steps, (num_features, particles of the block)."""
    start, stop = steps.starts[first], steps.starts[last]
    return scaled[num_features * start : num_features * stop].reshape(num_features, stop - start)


@kernel
def _scale(
    network: Recurrent, events: ParticleEvents, steps: Steps, first: int, last: int, block: Array
) -> None:
    """Bring the particles of a block of steps into the network's frame, and scale them; padding is 0."""
    num_features, start = len(network.scaling.mean), steps.starts[first]
    azimuths = events.particles[:, 0, network.turned.azimuth][steps.rows]
    etas = events.particles[:, 0, network.turned.eta][steps.rows]
    for step in range(first, last):
        place = steps.starts[step] - start
        for i in range(steps.counts[step]):
            row = steps.rows[i]
            # Where this is below 0, it is the padding of an event without particles.
            particle = events.numbers[row] - 1 - step if network.from_end else step
            for j in range(num_features):
                block[j, place + i] = events.particles[row, particle, j]
        turn(block[:, place : place + steps.counts[step]], network.turned, azimuths, etas)
    for j in range(num_features):
        scale(block[j], network.scaling, j)
    if first == 0:
        for i in range(steps.counts[0]):
            if events.numbers[steps.rows[i]] == 0:
                block[:, i] = 0


@kernel
def _forward(
    parameters: Array,
    network: Recurrent,
    events: ParticleEvents,
    steps: Steps,
    kept: Array,
    scaled: Array,
    states: Array,
) -> None:
    """Run the GRU; `states` (width, num_rows) gets the state of each event after its last particle."""
    width, num_features = network.width, len(network.scaling.mean)
    of_inputs = 3 * width * num_features
    of_both = of_inputs + 3 * width * width
    weights_inputs = parameters[:of_inputs].reshape(3 * width, num_features)
    weights_states = parameters[of_inputs:of_both].reshape(3 * width, width)
    biases = parameters[of_both : of_both + 6 * width].reshape(2, 3, width)
    kept[4 * width * steps.counts[0] : 5 * width * steps.counts[0]] = 0
    for block in range(len(steps.blocks) - 1):
        first, last = steps.blocks[block], steps.blocks[block + 1]
        particles = _of_block(scaled, steps, num_features, first, last)
        _scale(network, events, steps, first, last, particles)
        from_inputs = np.dot(weights_inputs, particles).reshape(3, width, particles.shape[1])
        for step in range(first, last):
            gates, count = _of_step(kept, steps, width, step), steps.counts[step]
            np.dot(weights_states, gates[4], gates[:3].reshape(3 * width, count))
            place = steps.starts[step] - steps.starts[first]
            staying = steps.counts[step + 1]
            following = _of_step(kept, steps, width, step + 1)[4] if staying else gates[4]
            for i in range(width):
                _gates(gates, from_inputs, biases, i, place, count)
                new, update, before = gates[3, i], gates[1, i], gates[4, i]
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
    inputs, bias, bias_states = (
        from_inputs[2, i, place : place + count],
        biases[0, 2, i],
        biases[1, 2, i],
    )
    for j in range(count):
        from_states[j] += bias_states
    for j in range(count):
        # tanh by the logistic function.
        new[j] = (
            two / (one + exponential(-two * (inputs[j] + bias + reset[j] * from_states[j]))) - one
        )


@kernel
def _backward(
    parameters: Array,
    gradient: Array,
    network: Recurrent,
    steps: Steps,
    kept: Array,
    scaled: Array,
    from_head: Array,
) -> None:
    """Overwrite the GRU's gradient, from the derivatives by the last states, (width, num_rows)."""
    width, num_features = network.width, len(network.scaling.mean)
    of_inputs = 3 * width * num_features
    of_both = of_inputs + 3 * width * width
    weights_states = parameters[of_inputs:of_both].reshape(3 * width, width)
    gradient[:] = 0
    derivatives = np.empty((width, 0), parameters.dtype)
    for number in range(len(steps.blocks) - 2, -1, -1):
        first, last = steps.blocks[number], steps.blocks[number + 1]
        start, num_particles = steps.starts[first], steps.starts[last] - steps.starts[first]
        # Derivatives by new's part from the inputs, reset, update, and new's part from the state.
        block = np.empty((4 * width, num_particles), parameters.dtype)
        before = np.empty((width, num_particles), parameters.dtype)
        for step in range(last - 1, first - 1, -1):
            count, place = steps.counts[step], steps.starts[step] - start
            gates, joined = (
                _of_step(kept, steps, width, step),
                np.empty((width, count), parameters.dtype),
            )
            of_gates = np.empty((3 * width, count), parameters.dtype)
            for i in range(width):
                for j in range(count):
                    joined[i, j] = (
                        derivatives[i, j] if j < derivatives.shape[1] else from_head[i, j]
                    )
                    before[i, place + j] = gates[4, i, j]
                _gates_backward(gates, joined, of_gates, block, i, place)
            derivatives = np.dot(weights_states.T, of_gates)
            for i in range(width):
                for j in range(count):
                    derivatives[i, j] += joined[i, j]
        by_states = np.dot(block[width:], before.T)
        by_inputs = np.dot(
            block[: 3 * width], _of_block(scaled, steps, num_features, first, last).T
        )
        totals = np.empty(4 * width, parameters.dtype)
        sum_over_events(block, totals)
        for i in range(3 * width):
            # The block begins with new, torch with reset and update.
            own = i + width if i < 2 * width else i - 2 * width
            for j in range(num_features):
                gradient[i * num_features + j] += by_inputs[own, j]
            for j in range(width):
                gradient[of_inputs + i * width + j] += by_states[i, j]
            gradient[of_both + i] += totals[own]
            gradient[of_both + 3 * width + i] += totals[width + i]


@kernel
def _gates_backward(
    kept: Array, derivatives: Array, of_gates: Array, block: Array, i: int, place: int
) -> None:
    """Derivatives by the gates of one unit at one step; those by its state are multiplied by the update gate."""
    one, width, count = kept.dtype.type(1), len(derivatives), derivatives.shape[1]
    reset, update, from_states, new, before = (
        kept[0, i],
        kept[1, i],
        kept[2, i],
        kept[3, i],
        kept[4, i],
    )
    state, of_reset, of_update, of_new = (
        derivatives[i],
        of_gates[i],
        of_gates[width + i],
        of_gates[2 * width + i],
    )
    of_inputs = block[i, place : place + count]
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
        source, target = of_gates[gate * width + i], block[(1 + gate) * width + i]
        for j in range(count):
            target[place + j] = source[j]
