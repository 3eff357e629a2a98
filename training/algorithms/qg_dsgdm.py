"""QG-DSGDm: momentum of the averaged models instead of the own gradients.

Source: Lin et al. 2021, Algorithm 1.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from typing_extensions import override

from training.algorithms.base import ComputeGradient, Worker
from training.algorithms.d_psgd import NeighbourAlgorithm, NeighbourSettings, mix
from training.algorithms.method import Traits, algorithm
from training.transports.basics import is_finite


class QgDsgdmSettings(NeighbourSettings):
    """Average parameters with all neighbours at every step, with the momentum of these averages."""

    name: Literal["qg-dsgdm"]
    beta: float = Field(default=0.9, ge=0, lt=1)
    """Momentum factor, at least 0 and below 1; the optimizer is `sgd` without momentum of its
    own."""


@algorithm("qg-dsgdm", QgDsgdmSettings, Traits(title="QG-DSGDm", own_momentum=True, plain_sgd=True))
class QgDsgdm(NeighbourAlgorithm):
    """Step with quasi-global momentum, then mix the models of neighbours.

    y_i = x_i - eta (g_i + beta m_i); x_i+ = sum_j w_ij y_j;
    m_i <- beta m_i + (1 - beta) (x_i - x_i+) / eta.

    x_i is the model of worker i before the step and x_i+ after it, g_i its gradient, eta the
    learning rate, and w_ij a weight of the graph. The momentum m follows the change of the averaged
    model, so that it points in the direction of all workers where their data differ. The models
    travel after the gradient. With beta 0 the method is D-PSGD in this order of the steps (adapt,
    then combine), and on the complete graph it is AR-SGD with plain SGD.
    """

    SCRATCH = ("_x", "_y", "_mixed")
    """Attributes that checkpoints leave out."""

    def __init__(self, settings: QgDsgdmSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self._beta = settings.beta
        #: x_i, the model before a step.
        self._x = self.model.empty()
        #: y_i, the model after the local step.
        self._y = self.model.empty()
        #: x_i+, the mean over this worker and its neighbours.
        self._mixed = self.model.empty()
        #: m_i.
        self._momentum = self.model.empty()
        self._momentum.fill(0)
        self.momenta = (self._momentum,)

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Step with the momentum, mix with the neighbours, and update the momentum."""
        eta = self.learning_rate
        self.model.read(self._x)
        if await self.has_gradient(compute_gradient, num_samples):
            self.optimizer.step()
        # The optimiser has subtracted eta g_i; the momentum's part follows here.
        self.model.read(self._y)
        self._y -= eta * self._beta * self._momentum
        neighbour_models = await self.begin_exchange(self._y)
        if not mix(self.weights, [self._y, *neighbour_models], out=self._mixed):
            return
        self.model.write(self._mixed)
        if is_finite(self._x):
            self._momentum *= self._beta
            self._momentum += (1 - self._beta) / eta * (self._x - self._mixed)
