"""Sequential training on one worker: mini-batch SGD (Migliorini 2020, equation 2.0.1)."""

from __future__ import annotations

from collections.abc import Callable

from training.algorithms.base import Algorithm


class Sgd(Algorithm):
    """x <- x - gamma * gradient, or whatever else the base optimiser makes of the gradient."""

    def step(self, compute_gradient: Callable[[], None], num_samples: int) -> None:
        """Take one step; see `Algorithm.step`."""
        if num_samples:
            compute_gradient()
            self.optimizer.step()
