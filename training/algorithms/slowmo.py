"""SlowMo: slow momentum around any other method.

Source: Wang et al. 2019; Migliorini 2020, Algorithm 4 and section 3.2.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from pydantic import Field
from typing_extensions import override

from hep_core.settings_section import SettingsSection
from training.algorithms.base import (
    Algorithm,
    ComputeGradient,
    Counters,
    StatePolicy,
    mean_over_workers,
    reset_optimizer,
)
from training.algorithms.wrapper import Wrapper
from training.transports.basics import is_finite


class SlowMoSettings(SettingsSection):
    """Slow momentum around the algorithm (Algorithm 4 of the thesis)."""

    tau: int = Field(default=12, ge=1)
    """Number of steps of the algorithm between two outer steps of SlowMo, at least 1."""
    alpha: float = Field(default=1.0, gt=0)
    """Slow learning rate of SlowMo, greater than 0."""
    beta: float = Field(default=0.6, ge=0, lt=1)
    """Slow momentum factor of SlowMo, at least 0 and below 1."""
    exact_average: bool | None = None
    """Whether SlowMo averages all workers before an outer step; null: where the algorithm itself
    averages all exactly, such as `ar-sgd` and `local-sgd` (thesis)."""


class SlowMo(Wrapper):
    """Take an outer step with slow momentum after every tau steps of the base method.

    u <- beta u + (x_0 - x_tau) / gamma; x <- x_0 - alpha gamma u.

    The tau steps are a window. u is the slow momentum, alpha the slow learning rate, and beta the
    slow momentum factor. x_0 is the model after the last outer step, x_tau the current model, and
    gamma the learning rate at the start of the window (the first above 0), so that a change of the
    rate does not change u (equations 3.0.1, 3.0.2). With the exact average, x_tau and gamma are the
    means over the workers, and all workers get the same model, but for the steps that they have not
    sent to a server. Without it, everything is per worker (equations 3.2.1, 3.2.2).

    The outer step is applied as a difference, so that concurrent averages are kept. Where the
    server is the model, each of n workers adds 1 / n of it; with elastic averaging each changes its
    own model.

    `base`: the method whose steps are taken. `exact_average`: whether x_tau is the mean over all
    workers. `state_policy`: whether an outer step sets the optimiser's state to 0.
    """

    SCRATCH = ("_current", "_end_of_window")
    """Attributes that checkpoints leave out."""

    def __init__(
        self,
        settings: SlowMoSettings,
        base: Algorithm,
        *,
        exact_average: bool,
        state_policy: StatePolicy,
    ) -> None:
        super().__init__(base)
        self.traits = replace(base.traits, equal_steps=base.traits.equal_steps or exact_average)
        self._tau = settings.tau
        self._alpha = settings.alpha
        self._beta = settings.beta
        self._averages_exactly = exact_average
        self._state_policy = state_policy
        self._steps_in_window = 0
        self._num_outer_steps = 0
        #: gamma; 0 until the window has a step with a learning rate above 0.
        self._gamma = 0.0
        #: u.
        self._slow_momentum = self.model.empty()
        self._slow_momentum.fill(0)
        #: x_0.
        self._start_of_window = self.model.empty()
        #: This worker's model at the end of a window.
        self._current = self.model.empty()
        #: x_tau: this worker's model, or the mean over the workers with the exact average.
        self._end_of_window = self.model.empty()

    @override
    async def start(self) -> None:
        # The model is read before the base method shares it, since partners may average with it at
        # once.
        self.model.read(self._start_of_window)
        await self.base.start()

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Take a step of the base method, and an outer step after every tau of them."""
        # A rate of 0 at the start of a warm-up cannot divide the change of the window.
        if not self._gamma:
            self._gamma = self.learning_rate
        await self.base.step(compute_gradient, num_samples)
        self._steps_in_window += 1
        if self._steps_in_window == self._tau:
            await self._outer_step()
            self._steps_in_window = 0
            self._gamma = 0.0

    @override
    def counters(self) -> Counters:
        """Return the base method's counts, and the number of outer steps."""
        return {**self.base.counters(), "slowmo_steps": self._num_outer_steps}

    async def _outer_step(self) -> None:
        """Update u and x_0, and move this worker's model to the new x_0.

        There is no outer step if x_tau is not finite, or the learning rate was 0 in all of the
        window. x_0 and u then stay as they are.
        """
        # Averages under way would change the model between the read and the outer step.
        if self._averages_exactly:
            await self.base.quiesce()
        await self._read_end_of_window()
        if not (self._gamma and is_finite(self._end_of_window)):
            return

        # u <- beta u + (x_0 - x_tau) / gamma
        self._slow_momentum *= self._beta
        self._slow_momentum += (self._start_of_window - self._end_of_window) / self._gamma
        # x_0 <- x_0 - alpha gamma u
        self._start_of_window -= self._alpha * self._gamma * self._slow_momentum
        self._num_outer_steps += 1

        await self.base.add(self._start_of_window - self._current)
        # With a server, the model is complete when all workers have added their parts.
        if self._averages_exactly:
            await self.base.quiesce()
            await self.base.catch_up()
        if self._state_policy is StatePolicy.RESET:
            reset_optimizer(self.optimizer, momenta=self.momenta)

    async def _read_end_of_window(self) -> None:
        """Read this worker's model into `_current`, and x_tau into `_end_of_window`.

        With the exact average, x_tau and gamma become their means over the workers.
        """
        await self.base.current(self._current)
        self._end_of_window[:] = self._current
        if not self._averages_exactly:
            return
        await mean_over_workers(self._end_of_window, self.transport)
        if not is_finite(self._current):
            # A server gets 1 / n of the outer step from each of n workers. The part of a worker
            # whose model is not finite is that of the mean.
            self._current[:] = self._end_of_window
        if not self.base.traits.synchronous:
            # Workers that do not wait have learning rates of their own, of which some may be 0.
            # All must take the same outer step. NaN leaves a rate of 0 out of the mean; if all are
            # 0, the mean is NaN, and gamma becomes 0.
            gamma = np.array([self._gamma or np.nan])
            await mean_over_workers(gamma, self.transport)
            self._gamma = float(np.nan_to_num(gamma[0]))
