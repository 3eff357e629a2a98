"""`python -m training.compiled` compiles the kernels before the first run (about half a minute) and caches the code."""

from __future__ import annotations

import numpy as np

from training.compiled.optimizer import Constants, update
from training.compiled.perceptron import Events, Perceptron, perceptron_epoch, perceptron_gradients, perceptron_sums


def compile_all() -> None:
    """Call every kernel once, in both precisions."""
    for real in (np.float32, np.float64):
        order, bounds, sums = np.arange(2), np.array([0, 2]), np.zeros((1, 4))
        network = Perceptron(np.array([2, 2]), np.zeros(2, real), np.ones(2, real))
        events = Events(np.ones((2, 2), real), np.zeros(2, np.int64), np.ones(2, real))
        parameters, gradient, first, second = np.zeros((4, 1, 6), real)
        step, adam = np.zeros(1, np.float32), Constants(True, 0.0)
        perceptron_gradients(parameters, gradient, np.zeros(1, np.int64), network, events, order, bounds, sums)
        perceptron_epoch(
            parameters[0], gradient[0], first[0], second[0], step, 0.1, adam, network, events, order, bounds, sums[0]
        )
        update(parameters[0], gradient[0], first[0], second[0], step, 0.1, adam)
        perceptron_sums(parameters[0], network, events, order, sums[0])


if __name__ == "__main__":
    compile_all()
