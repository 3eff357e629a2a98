"""All parameters of a network as views of one contiguous vector, all gradients of another: one message per exchange."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FlatModel:
    """A network whose parameters live in one vector.

    The optimiser gets `flat` as its only parameter; all base optimisers act on each element alone, so that this gives
    the same numbers as one tensor per layer, in one call.

    Args:
        module: The network; its parameters become views from now on.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        parameters = list(module.parameters())
        vector = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        self.flat = nn.Parameter(vector)
        """(num_parameters,) all parameters."""
        self.flat.grad = torch.zeros_like(vector)
        start = 0
        for parameter in parameters:
            stop = start + parameter.numel()
            parameter.data = self.flat.data[start:stop].view_as(parameter)
            parameter.grad = self.flat.grad[start:stop].view_as(parameter)
            start = stop

    @property
    def gradient(self) -> Tensor:
        """(num_parameters,) all gradients."""
        if self.flat.grad is None:
            raise AssertionError("the flat gradient was set to None; clear it with zero_gradient()")
        return self.flat.grad

    def zero_gradient(self) -> None:
        """Set all gradients to 0, in place: setting them to None would cut them off the vector."""
        self.gradient.zero_()
