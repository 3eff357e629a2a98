"""Adam and SGD on one row of parameters: the numbers of torch.optim without its overhead per step.

torch.optim takes 20 to 40 microseconds per step for any size of the vector, which is more than the gradient of a
virtual worker. NumPy's passes over a row outside the cache take 15, one compiled pass takes 3. Real runs use
torch.optim.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from features.compiling import compiled
from training.settings import OptimizerName, TrainSettings
from training.transports.transport import Vector


class RowOptimizer:
    """The part of `torch.optim.Optimizer` that the algorithms use, for one vector.

    Args:
        flat: (num_parameters,) parameters with their gradient.
        settings: Names the optimiser and its constants.
    """

    def __init__(self, flat: nn.Parameter, settings: TrainSettings) -> None:
        gradient = flat.grad
        if gradient is None:
            raise AssertionError("the row has no gradient")
        self._parameters: Vector = flat.detach().numpy()
        self._gradient: Vector = gradient.numpy()
        self._settings = settings
        self._work = np.empty_like(self._parameters)
        self.param_groups: list[dict[str, Any]] = [{"lr": settings.effective_learning_rate}]
        names = ("exp_avg", "exp_avg_sq") if settings.optimizer is OptimizerName.ADAM else ("momentum_buffer",)
        state: dict[str, Tensor] = {name: torch.zeros_like(flat.detach()) for name in names}
        state["step"] = torch.zeros(())
        self.state: dict[int, dict[str, Tensor]] = {0: state}
        self._vectors = [state[name].numpy() for name in names]
        self._step = state["step"].numpy()

    def step(self) -> None:
        """Update the parameters."""
        gradient = self._gradient
        if self._settings.weight_decay:
            gradient = gradient + self._settings.weight_decay * self._parameters
        self._step += 1
        if self._settings.optimizer is OptimizerName.ADAM:
            self._adam(gradient)
        else:
            self._sgd(gradient)

    def _adam(self, gradient: Vector, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> None:
        """Kingma and Ba 2014, Algorithm 1."""
        step = float(self._step)
        # The rate and epsilon contain the bias correction of the second moment, which saves a division per element.
        correction = math.sqrt(1 - beta2**step)
        rate = self.param_groups[0]["lr"] * correction / (1 - beta1**step)
        first, second = self._vectors
        _adam_update(self._parameters, gradient, first, second, beta1, beta2, rate, epsilon * correction)

    def _sgd(self, gradient: Vector) -> None:
        """As torch.optim.SGD: v <- momentum v + g; x <- x - lr v, or x - lr (g + momentum v) with Nesterov."""
        momentum = self._settings.momentum
        if momentum:
            (velocity,) = self._vectors
            velocity *= momentum
            velocity += gradient
            gradient = gradient + momentum * velocity if self._settings.nesterov else velocity
        np.multiply(gradient, self.param_groups[0]["lr"], out=self._work)
        self._parameters -= self._work

    def state_dict(self) -> dict[str, Any]:
        """Copies of everything that the next step depends on."""
        state = {name: value.clone() for name, value in self.state[0].items()}
        return {"state": state, "lr": self.param_groups[0]["lr"]}

    def load_state_dict(self, content: dict[str, Any]) -> None:
        """Restore the content of `state_dict`."""
        for name, value in content["state"].items():
            self.state[0][name].copy_(value)
        self.param_groups[0]["lr"] = content["lr"]


@partial(compiled, error_model="numpy")
def _adam_update(
    parameters: Vector,
    gradient: Vector,
    first: Vector,
    second: Vector,
    beta1: float,
    beta2: float,
    rate: float,
    epsilon: float,
) -> None:
    """One pass over a row, in its own precision."""
    real = parameters.dtype.type
    new_first, old_second, new_second = real(1 - beta1), real(beta2), real(1 - beta2)
    rate, epsilon = real(rate), real(epsilon)
    for i in range(parameters.size):
        first[i] += new_first * (gradient[i] - first[i])
        second[i] = old_second * second[i] + new_second * gradient[i] * gradient[i]
        parameters[i] -= rate * first[i] / (np.sqrt(second[i]) + epsilon)


def make_row_optimizer(flat: nn.Parameter, settings: TrainSettings) -> Optimizer:
    """The optimiser of one virtual worker, typed as an optimiser of torch for the algorithms."""
    optimizer: Any = RowOptimizer(flat, settings)
    return optimizer  # type: ignore[no-any-return]
