"""SlowMo: slow momentum around any other method (Wang et al. 2019; Migliorini 2020, Algorithm 4 and section 3.2)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from pydantic import Field

from hep_core.settings_section import SettingsSection
from training.algorithms.base import (
    Algorithm,
    ComputeGradient,
    Counters,
    StatePolicy,
    Wrapper,
    mean_over_workers,
    reset_optimizer,
)
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
    """Whether SlowMo averages all workers before an outer step; null: where the algorithm itself averages all exactly,
    such as `ar-sgd` and `local-sgd` (thesis)."""


class SlowMo(Wrapper):
    """After every tau steps of the base method: u <- beta u + (x_0 - x_tau) / gamma; x <- x_0 - alpha gamma u.

    x_0 is the model after the last outer step, x_tau the current model, and gamma the learning rate at the start of the
    window (the first above 0), so that a change of the rate does not change u (equations 3.0.1, 3.0.2). With the exact
    average, x_tau and gamma are the means over the workers, and all workers get the same model, but for the steps that
    they have not sent to a server. Without it, everything is per worker (equations 3.2.1, 3.2.2). The outer step is
    applied as a difference, so that concurrent averages are kept. Where the server is the model, each of n workers adds
    1 / n of it; with elastic averaging each changes its own model.

    `settings`: tau, alpha (the slow learning rate) and beta (the slow momentum factor).
    """

    SCRATCH = ("_present", "_target")

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
        self._tau, self._alpha, self._beta = settings.tau, settings.alpha, settings.beta
        self._exact = exact_average
        self._policy = state_policy
        self._done = self._made = 0
        self._rate = 0.0
        self._momentum, self._origin = base.model.empty(), base.model.empty()
        self._momentum.fill(0)
        self._present, self._target = base.model.empty(), base.model.empty()

    async def start(self) -> None:
        """See `Algorithm`."""
        # Read the model before the base method shares it, since partners may average with it at once.
        self.model.read(self._origin)
        await self.base.start()

    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Take a step of the base method, and perhaps an outer step."""
        if not self._rate:
            self._rate = self.optimizer.param_groups[0]["lr"]
        await self.base.step(compute_gradient, num_samples)
        self._done += 1
        if self._done == self._tau:
            await self._outer_step()
            self._done, self._rate = 0, 0.0

    def counters(self) -> Counters:
        """Those of the base method, and the number of outer steps."""
        return {**self.base.counters(), "slowmo_steps": self._made}

    async def _outer_step(self) -> None:
        if self._exact:
            await self.base.quiesce()
        await self.base.current(self._present)
        self._target[:] = self._present
        if self._exact:
            await mean_over_workers(self._target, self.transport)
            if not is_finite(self._present):
                # A server gets 1 / n of the outer step from each of n workers: this one's part is that of the mean.
                self._present[:] = self._target
            if not self.base.traits.synchronous:
                # Workers that do not wait have rates of their own, of which some may be 0; all must take the same step.
                rate = np.array([self._rate or np.nan])
                await mean_over_workers(rate, self.transport)
                self._rate = float(np.nan_to_num(rate[0]))
        if not (self._rate and is_finite(self._target)):
            return
        # u <- beta u + (x_0 - x_tau) / gamma
        self._momentum *= self._beta
        self._momentum += (self._origin - self._target) / self._rate
        # x_0 <- x_0 - alpha gamma u
        self._origin -= self._alpha * self._rate * self._momentum
        self._made += 1
        await self.base.add(self._origin - self._present)
        if self._exact:
            await self.base.quiesce()
            await self.base.catch_up()
        if self._policy is StatePolicy.RESET:
            reset_optimizer(self.optimizer, momenta=self.momenta)
