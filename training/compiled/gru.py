"""The kernels of a GRU (gated recurrent unit) over particles: forward and backward pass.

The GRU reads one particle of each event per step. Padding is not computed. A batch is ordered by
length, the longest event first, so the events that still have a particle at a step are the first
ones. Values are (unit, event), as in `perceptron`. The gates of a step are reset, update, new, as
torch orders them:

    reset = logistic(W_r x + U_r h + biases)        update = logistic(W_u x + U_u h + biases)
    new = tanh(W_n x + b + reset * (U_n h + c))     next h = new + update * (h - new)
"""

from __future__ import annotations

import numpy as np

from training.compiled.kernel import Array, exponential, kernel, rotate_columns, scale
from training.compiled.perceptron import sum_over_events
from training.compiled.recurrent_batch import ParticleEvents, Recurrent, Steps


@kernel
def _step_activations(activations: Array, steps: Steps, width: int, step: int) -> Array:
    """Return a view of the values of a step, (5, width, number of events), in `activations`.

    The forward pass writes them, and the backward pass reads them.
    In this order: reset, update, the state's part of new, new, and the state before the step.
    """
    count = steps.counts[step]
    start = 5 * width * steps.starts[step]
    return activations[start : start + 5 * width * count].reshape(5, width, count)


@kernel
def _block_particles(
    scaled: Array, steps: Steps, num_features: int, first: int, last: int
) -> Array:
    """Return a view of the scaled particles of a block, (num_features, particles of the block).

    `first`, `last`: first step of the block, and first step behind it.
    """
    start, stop = steps.starts[first], steps.starts[last]
    return scaled[num_features * start : num_features * stop].reshape(num_features, stop - start)


@kernel
def _prepare_particles(
    network: Recurrent, events: ParticleEvents, steps: Steps, first: int, last: int, block: Array
) -> None:
    """Write the rotated and scaled particles of the steps `first` to `last` into `block`.

    The particles of one step stand together, in the order of the batch. The single particle of an
    event without particles becomes 0. `block`: see `_block_particles`.
    """
    num_features, block_start = len(network.scaling.mean), steps.starts[first]
    # Particle 0 of an event is its lepton, whose direction turns the others.
    azimuths = events.particles[:, 0, network.rotated.azimuth][steps.rows]
    etas = events.particles[:, 0, network.rotated.eta][steps.rows]
    for step in range(first, last):
        start = steps.starts[step] - block_start
        for i in range(steps.counts[step]):
            row = steps.rows[i]
            # The number is -1, the last row of padding, only for an event without particles.
            particle = events.num_particles[row] - 1 - step if network.from_end else step
            for j in range(num_features):
                block[j, start + i] = events.particles[row, particle, j]
        step_particles = block[:, start : start + steps.counts[step]]
        rotate_columns(step_particles, network.rotated, azimuths, etas)
    for j in range(num_features):
        scale(block[j], network.scaling, j)
    # An event without particles takes part in the first step only.
    if first == 0:
        for i in range(steps.counts[0]):
            if events.num_particles[steps.rows[i]] == 0:
                block[:, i] = 0


@kernel
def gru_forward(
    parameters: Array,
    network: Recurrent,
    events: ParticleEvents,
    steps: Steps,
    activations: Array,
    scaled: Array,
    final_states: Array,
) -> None:
    """Run the GRU over all particles of a batch.

    For each block of steps, one product of matrices multiplies all particles by the input weights.
    Then each step multiplies the states by the state weights, computes the gates of each unit, and
    writes the next state.

    Args:
        parameters: Those of the GRU first.
        network: Shape and scaling.
        events: The rows to pick from.
        steps: The batch.
        activations: Gets the values of all steps; see `_step_activations`.
        scaled: Gets the scaled particles of all blocks; see `_block_particles`.
        final_states: (width, num_rows) gets each event's state after its last particle.
    """
    width, num_features = network.width, len(network.scaling.mean)
    input_size = 3 * width * num_features
    matrix_size = input_size + 3 * width * width
    input_weights = parameters[:input_size].reshape(3 * width, num_features)
    state_weights = parameters[input_size:matrix_size].reshape(3 * width, width)
    biases = parameters[matrix_size : matrix_size + 6 * width].reshape(2, 3, width)
    # The states before the first step are 0.
    activations[4 * width * steps.counts[0] : 5 * width * steps.counts[0]] = 0
    for block in range(len(steps.blocks) - 1):
        first, last = steps.blocks[block], steps.blocks[block + 1]
        particles = _block_particles(scaled, steps, num_features, first, last)
        _prepare_particles(network, events, steps, first, last, particles)
        input_products = np.dot(input_weights, particles).reshape(3, width, particles.shape[1])
        for step in range(first, last):
            gates, count = _step_activations(activations, steps, width, step), steps.counts[step]
            states = gates[4]
            # The products go where the gates will be computed in place.
            np.dot(state_weights, states, gates[:3].reshape(3 * width, count))
            # Events with a particle at the next step come first; the others end here.
            num_staying = steps.counts[step + 1]
            next_states = states
            if num_staying:
                next_states = _step_activations(activations, steps, width, step + 1)[4]
            start = steps.starts[step] - steps.starts[first]
            for i in range(width):
                _gates(gates, input_products, biases, i, start, count)
                _next_states(gates, i, num_staying, next_states[i], final_states[i])


@kernel
def _next_states(
    gates: Array, i: int, num_staying: int, next_states: Array, final_states: Array
) -> None:
    """Write the states of unit `i` after a step.

    Args:
        gates: (5, width, count) as in `_step_activations`.
        i: The unit.
        num_staying: Number of events with a particle at the next step; they come first.
        next_states: (at least num_staying,) gets the states of these events.
        final_states: (num_rows,) gets those of the other events of the step.
    """
    update, new, state = gates[1, i], gates[3, i], gates[4, i]
    for j in range(num_staying):
        next_states[j] = new[j] + update[j] * (state[j] - new[j])
    for j in range(num_staying, len(state)):
        final_states[j] = new[j] + update[j] * (state[j] - new[j])


@kernel
def _gates(
    gates: Array, input_products: Array, biases: Array, i: int, start: int, count: int
) -> None:
    """Compute the gates of unit `i` at one step, for all events of the step, in place.

    The loops are short, so that they compile to vector instructions.

    Args:
        gates: (5, width, count) as in `_step_activations`; the first three begin as the products of
            state weights and states.
        input_products: (3, width, particles of the block) products of input weights and particles.
        biases: (2, 3, width) for inputs and states, of the three gates.
        i: The unit.
        start: First particle of the step in its block.
        count: Number of events of the step.
    """
    one, two = gates.dtype.type(1), gates.dtype.type(2)
    # Reset and update are the logistic function of the sum of both products and biases.
    for gate in range(2):
        row, inputs = gates[gate, i], input_products[gate, i, start : start + count]
        bias = biases[0, gate, i] + biases[1, gate, i]
        for j in range(count):
            row[j] = one / (one + exponential(-(row[j] + inputs[j] + bias)))
    reset, state_part, new = gates[0, i], gates[2, i], gates[3, i]
    inputs = input_products[2, i, start : start + count]
    input_bias, state_bias = biases[0, 2, i], biases[1, 2, i]
    for j in range(count):
        state_part[j] += state_bias
    for j in range(count):
        # tanh(x) is 2 / (1 + exp(-2 x)) - 1.
        new[j] = (
            two / (one + exponential(-two * (inputs[j] + input_bias + reset[j] * state_part[j])))
            - one
        )


@kernel
def gru_backward(
    parameters: Array,
    gradient: Array,
    network: Recurrent,
    steps: Steps,
    activations: Array,
    scaled: Array,
    final_derivatives: Array,
) -> None:
    """Overwrite the GRU's gradient, from the derivatives of the loss by the final states.

    The steps are taken from the last to the first. Each step turns the derivatives by the states
    behind it into those by its gates, and these into derivatives by the states before it. At the
    end of a block, products of matrices sum its gradient over all particles.

    Args:
        parameters: Those of the GRU first.
        gradient: The gradient of the GRU.
        network: Shape and scaling.
        steps: The batch.
        activations: From `gru_forward`.
        scaled: From `gru_forward`.
        final_derivatives: (width, num_rows).
    """
    width, num_features = network.width, len(network.scaling.mean)
    input_size = 3 * width * num_features
    matrix_size = input_size + 3 * width * width
    state_weights = parameters[input_size:matrix_size].reshape(3 * width, width)
    gradient[:] = 0
    # Derivatives by the states behind the current step, of the events that have a later particle.
    derivatives = np.empty((width, 0), parameters.dtype)
    for block in range(len(steps.blocks) - 2, -1, -1):
        first, last = steps.blocks[block], steps.blocks[block + 1]
        block_start = steps.starts[first]
        num_particles = steps.starts[last] - block_start
        # The rows are derivatives by new's part from the inputs, reset, update, and new's part
        # from the state. So the first three share the inputs, and the last three the states.
        gate_derivatives = np.empty((4 * width, num_particles), parameters.dtype)
        states = np.empty((width, num_particles), parameters.dtype)
        for step in range(last - 1, first - 1, -1):
            count, start = steps.counts[step], steps.starts[step] - block_start
            gates = _step_activations(activations, steps, width, step)
            state_derivatives = np.empty((width, count), parameters.dtype)
            product_derivatives = np.empty((3 * width, count), parameters.dtype)
            num_staying = derivatives.shape[1]
            for i in range(width):
                # An event without a later particle takes the derivative by its final state.
                for j in range(count):
                    state_derivatives[i, j] = (
                        derivatives[i, j] if j < num_staying else final_derivatives[i, j]
                    )
                    states[i, start + j] = gates[4, i, j]
                _gates_backward(
                    gates, state_derivatives, product_derivatives, gate_derivatives, i, start
                )
            derivatives = np.dot(state_weights.T, product_derivatives)
            # A state also enters the next one directly, multiplied by the update gate.
            for i in range(width):
                for j in range(count):
                    derivatives[i, j] += state_derivatives[i, j]
        particles = _block_particles(scaled, steps, num_features, first, last)
        state_products = np.dot(gate_derivatives[width:], states.T)
        input_products = np.dot(gate_derivatives[: 3 * width], particles.T)
        totals = np.empty(4 * width, parameters.dtype)
        sum_over_events(gate_derivatives, totals)
        for i in range(3 * width):
            # The input part of new comes first in the block, but last in torch's order.
            block_row = i + width if i < 2 * width else i - 2 * width
            for j in range(num_features):
                gradient[i * num_features + j] += input_products[block_row, j]
            for j in range(width):
                gradient[input_size + i * width + j] += state_products[i, j]
            # The input biases of all gates precede the state biases.
            gradient[matrix_size + i] += totals[block_row]
            gradient[matrix_size + 3 * width + i] += totals[width + i]


@kernel
def _gates_backward(
    gates: Array,
    state_derivatives: Array,
    product_derivatives: Array,
    gate_derivatives: Array,
    i: int,
    start: int,
) -> None:
    """Compute the derivatives of the loss by the gates of unit `i` at one step, by the chain rule.

    Args:
        gates: (5, width, count) as in `_step_activations`.
        state_derivatives: (width, count) derivatives by the states behind the step. Those of the
            unit are multiplied by its update gate, as the path to the state before needs it.
        product_derivatives: (3 width, count) gets derivatives by the products of state weights and
            states: of reset, update, new.
        gate_derivatives: (4 width, particles of the block) gets new's part from the inputs, then
            the three of `product_derivatives`.
        i: The unit.
        start: First particle of the step in its block.
    """
    width, count = state_derivatives.shape
    one = gates.dtype.type(1)
    reset, update, state_part = gates[0, i], gates[1, i], gates[2, i]
    new, previous_state = gates[3, i], gates[4, i]
    by_state = state_derivatives[i]
    by_reset, by_update = product_derivatives[i], product_derivatives[width + i]
    by_new = product_derivatives[2 * width + i]
    by_inputs = gate_derivatives[i, start : start + count]
    # The derivative of the logistic function f is f (1 - f), that of tanh is 1 - tanh^2.
    for j in range(count):
        by_update[j] = by_state[j] * (previous_state[j] - new[j]) * update[j] * (one - update[j])
    for j in range(count):
        by_inputs[j] = by_state[j] * (one - update[j]) * (one - new[j] * new[j])
    for j in range(count):
        by_reset[j] = by_inputs[j] * state_part[j] * reset[j] * (one - reset[j])
    for j in range(count):
        by_new[j] = by_inputs[j] * reset[j]
    for j in range(count):
        by_state[j] *= update[j]
    for gate in range(3):
        source = product_derivatives[gate * width + i]
        target = gate_derivatives[(1 + gate) * width + i]
        for j in range(count):
            target[start + j] = source[j]
