"""`python -m training.compiled` compiles the kernels of training before the first run (about 25 s); caches the code.

Only in single precision; double precision is compiled at its first use.
"""

from __future__ import annotations

import numpy as np

from training.compiled.engines import columns_to_turn
from training.compiled.kernel import unscaled
from training.compiled.optimizer import Constants, constants_array, is_finite, update_by_array
from training.compiled.perceptron import (
    Perceptron,
    RowArrays,
    perceptron_epoch,
    perceptron_gradients,
    perceptron_sums,
)
from training.compiled.recurrent import ParticleEvents, Recurrent, recurrent_gradient, steps_of
from training.transports import serving


def compile_all(real: type[np.floating] = np.float32) -> None:
    """Call every kernel once, in a precision."""
    order, bounds, sums = np.arange(2), np.array([0, 2]), np.zeros((1, 4))
    network = Perceptron(np.array([2, 2]), unscaled(2, real))
    events = RowArrays(np.ones((2, 2), real), np.zeros(2, np.int64), np.ones(2, real))
    parameters, gradient, first, second = np.zeros((4, 1, 6), real)
    step, adam = np.zeros(1, np.float32), Constants(True, 0.0)
    perceptron_gradients(
        parameters, gradient, np.zeros(1, np.int64), network, events, order, bounds, sums
    )
    optimizer = (gradient[0], first[0], second[0], step, np.ones(1), adam)
    perceptron_epoch(parameters[0], *optimizer, network, events, order, bounds, sums[0])
    update_by_array(
        parameters[0], gradient[0], first[0], second[0], step, 0.1, constants_array(adam)
    )
    is_finite(gradient[0])
    perceptron_sums(parameters[0], network, events, order, sums[0])
    ones = np.ones(2, np.int64)
    head, still = Perceptron(np.array([1, 2]), unscaled(0, real)), columns_to_turn(None)
    recurrent = Recurrent(1, unscaled(2, real), True, head, still, still)
    lists = ParticleEvents(
        np.empty((2, 0), real), np.ones((2, 1, 2), real), ones, events.labels, events.weights
    )
    parameters, gradient = np.zeros((2, 19), real)
    recurrent_gradient(
        parameters, gradient, recurrent, lists, steps_of(order, ones), np.empty(14, real), sums[0]
    )


if __name__ == "__main__":
    compile_all()
    for dtype in (np.float32, np.int64):
        serving.compile_all(dtype)
