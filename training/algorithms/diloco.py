"""DiLoCo: many local steps of AdamW, then an outer step of Nesterov's momentum.

Source: Douillard et al. 2023, Algorithm 1.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from typing_extensions import override

from hep_core.settings_section import SettingsSection
from training.algorithms.base import Worker
from training.algorithms.local_sgd import LocalSgd, LocalStepsSettings
from training.algorithms.method import Traits, algorithm
from training.transports.basics import Vector, is_finite


class OuterStepConstants(SettingsSection):
    """The constants of an outer step of Nesterov's momentum, with the values of the paper."""

    outer_rate: float = Field(default=0.7, gt=0)
    """Learning rate of the outer step, greater than 0."""
    outer_momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum factor of the outer step, at least 0 and below 1."""


class OuterStepSettings(OuterStepConstants, LocalStepsSettings):
    """Settings of a method with outer steps between exact averages."""

    local_steps: int = Field(default=50, ge=1)
    """Number H of local steps between two averages, at least 1. The optimizer of the paper is
    `adamw`."""


class DiLoCoSettings(OuterStepSettings):
    """Average parameters over all workers after many local steps, and move on with momentum."""

    name: Literal["diloco"]


@algorithm(
    "diloco", DiLoCoSettings, Traits(title="DiLoCo", exact_average=True, averages_models=True)
)
class DiLoCo(LocalSgd):
    """Take H local steps, average, and take an outer step with Nesterov's momentum.

    d = x_0 - sum_j x_j / m; u <- mu u + d; x_0 <- x_0 - alpha (d + mu u); x_j <- x_0.

    x_0 is the model after the last outer step, and x_j that of worker j of m after its H steps, so
    that -d is their mean change. u is the outer momentum, alpha the outer rate, and mu the momentum
    factor. The inner optimiser keeps its moments. With alpha 1 and mu 0 the method is LocalSGD.
    """

    def __init__(self, settings: OuterStepSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self._alpha = settings.outer_rate
        self._mu = settings.outer_momentum
        #: x_0.
        self._outer_model = self.model.empty()
        #: u.
        self._outer_momentum = self.model.empty()
        self._outer_momentum.fill(0)

    @override
    async def start(self) -> None:
        self.model.read(self._outer_model)

    @override
    def next_model(self, mean: Vector) -> Vector:
        """Return x_0 after the outer step; it stays as it was if no worker's model is finite."""
        if is_finite(mean):
            self.take_outer_step(slice(None), self._outer_model - mean)
        return self._outer_model

    def take_outer_step(self, elements: slice, difference: Vector) -> None:
        """Change u and x_0 by an outer step, for some elements of the model.

        `difference`: (n,) d of these elements.
        """
        # Views, so that the vectors themselves change.
        model, momentum = self._outer_model[elements], self._outer_momentum[elements]
        momentum *= self._mu
        momentum += difference
        model -= self._alpha * (difference + self._mu * momentum)
