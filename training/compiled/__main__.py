"""`python -m training.compiled` compiles the kernels of training before the first run.

It takes about 25 s, and caches the code. It compiles single precision only; double precision is
compiled at its first use.
"""

from __future__ import annotations

import numpy as np

from training.compiled.engines import rotated_columns
from training.compiled.kernel import unscaled
from training.compiled.muon import update_matrices_by_array
from training.compiled.optimizer import Constants, constants_array, is_finite, update_by_array
from training.compiled.perceptron import (
    Perceptron,
    RowArrays,
    perceptron_epoch,
    perceptron_gradients,
    perceptron_sums,
)
from training.compiled.recurrent import recurrent_gradient
from training.compiled.recurrent_batch import ParticleEvents, Recurrent, order_by_length
from training.transports import serving


def compile_all(real: type[np.floating] = np.float32) -> None:
    """Call every kernel once, in a precision, so that Numba compiles and caches it."""
    _compile_perceptron(real)
    _compile_recurrent(real)


def _compile_perceptron(real: type[np.floating]) -> None:
    """Call the kernels of perceptrons and optimisers.

    One network of two features and two classes, so of six parameters, trains on two events.
    """
    network = Perceptron(widths=np.array([2, 2]), scaling=unscaled(2, real))
    events = RowArrays(
        inputs=np.ones((2, 2), real), labels=np.zeros(2, np.int64), weights=np.ones(2, real)
    )
    networks = np.zeros(1, np.int64)
    batch_rows, batch_bounds = np.arange(2), np.array([0, 2])
    parameters, gradients = np.zeros((1, 6), real), np.zeros((1, 6), real)
    sums = np.zeros((1, 4))
    perceptron_gradients(
        parameters, gradients, networks, network, events, batch_rows, batch_bounds, sums
    )
    perceptron_sums(parameters[0], network, events, batch_rows, sums[0])

    first_moments, second_moments = np.zeros(6, real), np.zeros(6, real)
    step = np.zeros(1, np.float32)
    adam = Constants(True, 0.0)
    no_matrices = np.empty((0, 3), np.int64)
    is_finite(gradients[0])
    update_by_array(
        parameters[0],
        gradients[0],
        first_moments,
        second_moments,
        step,
        0.1,
        constants_array(adam),
    )
    update_matrices_by_array(
        parameters[0],
        gradients[0],
        first_moments,
        second_moments,
        step,
        0.1,
        constants_array(adam),
        no_matrices,
    )
    perceptron_epoch(
        parameters[0],
        gradients[0],
        first_moments,
        second_moments,
        step,
        np.ones(1),
        adam,
        no_matrices,
        network,
        events,
        batch_rows,
        batch_bounds,
        sums[0],
    )


def _compile_recurrent(real: type[np.floating]) -> None:
    """Call the kernel of recurrent networks.

    A GRU of width 1 over two features (15 parameters), and a dense layer to two classes (4
    parameters) train on two events with one particle each.
    """
    no_columns = rotated_columns(None)
    network = Recurrent(
        width=1,
        scaling=unscaled(2, real),
        from_end=True,
        head=Perceptron(widths=np.array([1, 2]), scaling=unscaled(0, real)),
        rotated=no_columns,
        rotated_further=no_columns,
    )
    events = ParticleEvents(
        further=np.empty((2, 0), real),
        particles=np.ones((2, 1, 2), real),
        num_particles=np.ones(2, np.int64),
        labels=np.zeros(2, np.int64),
        weights=np.ones(2, real),
    )
    steps = order_by_length(np.arange(2), events.num_particles)
    parameters, gradient = np.zeros(19, real), np.zeros(19, real)
    # Two particles, with five values of the GRU and two features each.
    work, sums = np.empty(14, real), np.zeros(4)
    recurrent_gradient(parameters, gradient, network, events, steps, work, sums)


if __name__ == "__main__":
    compile_all()
    for dtype in (np.float32, np.int64):
        serving.compile_all(dtype)
