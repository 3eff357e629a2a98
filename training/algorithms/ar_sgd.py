"""AR-SGD: gradients averaged over all workers by an all-reduce at every step (Migliorini 2020, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch.optim import Optimizer

from training.algorithms.base import Algorithm
from training.flat_model import FlatModel
from training.transport import Transport


class ArSgd(Algorithm):
    """x <- x - gamma * sum_i n_i g_i / sum_i n_i, where worker i has the gradient g_i over n_i samples.

    Weighting by samples makes uneven batches right: the average is the gradient of one batch that holds them all.
    """

    def __init__(self, model: FlatModel, optimizer: Optimizer, transport: Transport) -> None:
        super().__init__(model, optimizer, transport)
        # One message per step: the gradient and, behind it, the number of samples.
        self._message = np.empty(model.gradient.numel() + 1, dtype=model.gradient.numpy().dtype)

    def step(self, compute_gradient: Callable[[], None], num_samples: int) -> None:
        """Take one step; see `Algorithm.step`."""
        compute_gradient()
        gradient = self.model.gradient.numpy()
        np.multiply(gradient, num_samples, out=self._message[:-1])
        self._message[-1] = num_samples
        self.transport.all_reduce_sum(self._message)
        np.divide(self._message[:-1], self._message[-1], out=gradient)
        self.optimizer.step()
