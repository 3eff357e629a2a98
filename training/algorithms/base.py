"""What all algorithms share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch.optim import Optimizer

from training.flat_model import FlatModel
from training.transport import Transport


class Algorithm(ABC):
    """Turns local gradients into updates of the local model, talking to other workers through a transport.

    Args:
        model: The local model.
        optimizer: The base optimiser over `model.flat`.
        transport: The other workers.
    """

    def __init__(self, model: FlatModel, optimizer: Optimizer, transport: Transport) -> None:
        self.model = model
        self.optimizer = optimizer
        self.transport = transport

    @abstractmethod
    def step(self, compute_gradient: Callable[[], None], num_samples: int) -> None:
        """Take one step.

        Args:
            compute_gradient: Fills `model.gradient` with the gradient of the mean loss over the local batch.
            num_samples: Size of the local batch; 0 where a worker has run out of data, its gradient then is 0.
        """
