"""Trains a perceptron on rows in memory, an epoch at a time."""

from __future__ import annotations

import numpy as np
from torch.nn.utils import parameters_to_vector

from models.networks.hlf import HlfClassifier
from training.compiled.engines import PerceptronEngine, events_of
from training.compiled.kernel import Integers
from training.compiled.optimizer import Constants
from training.compiled.perceptron import perceptron_epoch, perceptron_sums
from training.readers.batch import Rows
from training.workloads.sums import Sums


class PerceptronTraining:
    """The parameters of a perceptron, and its optimiser.

    Args:
        network: Gives the initial weights.
        constants: The optimiser.
        learning_rate: Its rate.
    """

    def __init__(self, network: HlfClassifier, constants: Constants, learning_rate: float) -> None:
        self._network = PerceptronEngine([network.scaling, *network.layers]).network
        self._constants = constants
        self._rate = learning_rate
        self._parameters = parameters_to_vector(network.parameters()).detach().numpy()
        self._gradient = np.empty_like(self._parameters)
        self._first, self._second = np.zeros_like(self._parameters), np.zeros_like(self._parameters)
        self._step = np.zeros(1, np.float32)

    def epoch(self, rows: Rows, order: Integers, bounds: Integers) -> Sums:
        """Take a step for each batch of `order` between two `bounds`; returns the sums before the updates."""
        sums = np.zeros(4)
        perceptron_epoch(
            self._parameters,
            self._gradient,
            self._first,
            self._second,
            self._step,
            self._rate,
            self._constants,
            self._network,
            events_of(rows),
            order,
            bounds,
            sums,
        )
        return Sums.of(sums)

    def evaluate(self, rows: Rows, order: Integers) -> Sums:
        """Sums over the rows with these numbers."""
        sums = np.zeros(4)
        perceptron_sums(self._parameters, self._network, events_of(rows), order, sums)
        return Sums.of(sums)
