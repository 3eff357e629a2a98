"""Loss and gradient of a network with a GRU over particles, and dense layers behind it.

The GRU reads the particles of an event; see `training.compiled.gru`. The dense layers take its last
state and further features of the event. Values are (unit, event), as in `perceptron`.
"""

from __future__ import annotations

import numpy as np

from training.compiled.gru import gru_backward, gru_forward
from training.compiled.kernel import Array, kernel, rotate_columns, scale
from training.compiled.perceptron import add_losses, dense_backward, dense_forward
from training.compiled.recurrent_batch import ParticleEvents, Recurrent, Steps


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

    The forward pass runs the GRU, then the dense layers. The backward pass takes them in the
    opposite order. Each derivative overwrites the value that it belongs to.

    Args:
        parameters: (num_parameters,) of the GRU, then of the dense layers, as torch orders them.
        gradient: (num_parameters,).
        network: Shape and scaling.
        events: The rows to pick from.
        steps: The batch, from `order_by_length`.
        work: Memory for (5 width + num_features) numbers for each particle.
        sums: (4,) as in `perceptron.add_losses`; those of the batch are added.
    """
    width, head, num_rows = network.width, network.head, len(steps.rows)
    # Each unit of the three gates has a weight per feature and per state, and two biases.
    gru_size = 3 * width * (len(network.scaling.mean) + width + 2)
    # The work memory holds the five values per unit and particle, then the scaled features.
    split = 5 * width * steps.starts[-1]
    activations, scaled_particles = work[:split], work[split:]
    # The inputs of the dense layers are the GRU's last states, then the further features.
    values = np.empty(head.widths.sum() * num_rows, parameters.dtype)
    states = values[: width * num_rows].reshape(width, num_rows)
    gru_forward(parameters, network, events, steps, activations, scaled_particles, states)
    num_further = len(head.scaling.mean)
    further = values[width * num_rows : (width + num_further) * num_rows]
    _prepare_further(network, events, steps, further.reshape(num_further, num_rows))
    logits = dense_forward(parameters[gru_size:], head.widths, values, num_rows)
    add_losses(logits, events.labels[steps.rows], events.weights[steps.rows], sums)
    # This replaces `states` by the derivatives of the loss by the states.
    dense_backward(parameters[gru_size:], gradient[gru_size:], head.widths, values, num_rows, True)
    gru_backward(
        parameters, gradient[:gru_size], network, steps, activations, scaled_particles, states
    )


@kernel
def _prepare_further(
    network: Recurrent, events: ParticleEvents, steps: Steps, further: Array
) -> None:
    """Write the further features of a batch into `further`, rotated and scaled.

    These are the features of an event beside its particles. `further`: (num_further, num_rows).
    """
    num_further, num_rows = further.shape
    for j in range(num_further):
        for i in range(num_rows):
            further[j, i] = events.further[steps.rows[i], j]
    if num_further:
        # The lepton's direction is copied, since its columns are rotated too.
        rotated = network.rotated_further
        azimuths, etas = further[rotated.azimuth].copy(), further[rotated.eta].copy()
        rotate_columns(further, rotated, azimuths, etas)
    for j in range(num_further):
        scale(further[j], network.head.scaling, j)
