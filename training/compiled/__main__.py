"""`python -m training.compiled` compiles the kernels of training before the first run.

It takes about 25 s, and caches the code. It compiles single precision only; double precision is
compiled at its first use.
"""

from __future__ import annotations

import numpy as np

from training.compiled.engines import rotated_columns
from training.compiled.kernel import unscaled
from training.compiled.optimizer import Constants, constants_array, is_finite, update_by_array
from training.compiled.perceptron import (
    Perceptron,
    RowArrays,
    perceptron_epoch,
    perceptron_gradients,
    perceptron_sums,
)
from training.compiled.recurrent import (
    ParticleEvents,
    Recurrent,
    order_by_length,
    recurrent_gradient,
)
from training.transports import serving


def compile_all(real: type[np.floating] = np.float32) -> None:
    """Call every kernel once, in a precision, so that Numba compiles and caches it."""
    _compile_perceptron(real)
    _compile_recurrent(real)


def _compile_perceptron(real: type[np.floating]) -> None:
    """Call the kernels of perceptrons and optimisers on two events, with two features each."""
    network = Perceptron(np.array([2, 2]), unscaled(2, real))
    events = RowArrays(np.ones((2, 2), real), np.zeros(2, np.int64), np.ones(2, real))
    order, bounds, sums = np.arange(2), np.array([0, 2]), np.zeros((1, 4))
    parameters, gradient, first, second = np.zeros((4, 1, 6), real)
    step, adam = np.zeros(1, np.float32), Constants(True, 0.0)
    members = np.zeros(1, np.int64)
    perceptron_gradients(parameters, gradient, members, network, events, order, bounds, sums)
    optimizer = (gradient[0], first[0], second[0], step, np.ones(1), adam)
    perceptron_epoch(parameters[0], *optimizer, network, events, order, bounds, sums[0])
    constants = constants_array(adam)
    update_by_array(parameters[0], gradient[0], first[0], second[0], step, 0.1, constants)
    is_finite(gradient[0])
    perceptron_sums(parameters[0], network, events, order, sums[0])


def _compile_recurrent(real: type[np.floating]) -> None:
    """Call the kernel of recurrent networks on two events with one particle each."""
    # The GRU of width 1 has 15 parameters, and the dense layer to two classes has 4.
    head = Perceptron(np.array([1, 2]), unscaled(0, real))
    no_columns = rotated_columns(None)
    network = Recurrent(1, unscaled(2, real), True, head, no_columns, no_columns)
    num_particles = np.ones(2, np.int64)
    events = ParticleEvents(
        np.empty((2, 0), real),
        np.ones((2, 1, 2), real),
        num_particles,
        np.zeros(2, np.int64),
        np.ones(2, real),
    )
    steps = order_by_length(np.arange(2), num_particles)
    parameters, gradient = np.zeros((2, 19), real)
    work, sums = np.empty(14, real), np.zeros(4)
    recurrent_gradient(parameters, gradient, network, events, steps, work, sums)


if __name__ == "__main__":
    compile_all()
    for dtype in (np.float32, np.int64):
        serving.compile_all(dtype)
