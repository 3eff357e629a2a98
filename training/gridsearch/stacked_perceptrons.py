"""Trains many perceptrons of the same shape as one: stacked weights, batched matrix products, one optimiser.

The perceptrons of a trigger are so small that overhead dominates a step: ten together take twice the time of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from models.networks.hlf import HlfClassifier


class StackedPerceptrons:
    """K independent networks.

    All parameters lie in one vector. One call of an elementwise optimiser of torch gives the same numbers as one call
    per network.

    Args:
        networks: Networks of the same shape and scaling; the stack starts with copies of their parameters.

    Raises:
        ValueError: The networks differ in shape.

    Examples:
        >>> from models.networks.scaling_layer import Scaler
        >>> from features.columns import NUM_HLF
        >>> scalers = {"hlf": Scaler([0.0] * NUM_HLF, [1.0] * NUM_HLF)}
        >>> networks = [HlfClassifier([5], scalers, num_classes=3) for _ in range(2)]
        >>> StackedPerceptrons(networks).logits(torch.ones(2, 7, NUM_HLF)).shape
        torch.Size([2, 7, 3])
    """

    def __init__(self, networks: Sequence[HlfClassifier]) -> None:
        shapes = {tuple(tuple(value.shape) for value in network.parameters()) for network in networks}
        if len(shapes) != 1:
            raise ValueError(f"only networks of one shape can be stacked, not {sorted(shapes)}")
        self._scaling = networks[0].scaling
        # Weights are stacked as (in, out), so that a batched product needs no transposition.
        self._set(
            [
                torch.stack([tensor.detach().T if tensor.dim() == 2 else tensor.detach()[None] for tensor in tensors])
                for tensors in zip(*(network.layers.parameters() for network in networks), strict=True)
            ]
        )

    def _set(self, tensors: Sequence[Tensor]) -> None:
        self.flat = nn.Parameter(torch.cat([tensor.reshape(-1) for tensor in tensors]), requires_grad=False)
        """All parameters of all networks, for the optimiser; backpropagation fills the gradient."""
        gradient = torch.zeros_like(self.flat)
        self.flat.grad = gradient
        self._tensors: list[nn.Parameter] = []
        start = 0
        for tensor in tensors:
            block = slice(start, start + tensor.numel())
            view = nn.Parameter(self.flat.data[block].view(tensor.shape))
            view.grad = gradient[block].view(tensor.shape)
            self._tensors.append(view)
            start += tensor.numel()

    @property
    def num_networks(self) -> int:
        """Number K of networks."""
        return len(self._tensors[0])

    def logits(self, inputs: Tensor) -> Tensor:
        """Logits (K, B, num_classes) of raw features (K, B, NUM_HLF)."""
        values: Tensor = self._scaling(inputs)
        layers = list(zip(self._tensors[::2], self._tensors[1::2], strict=True))
        for (weights, biases), _ in pairwise(layers):
            values = torch.relu(torch.baddbmm(biases, values, weights))
        weights, biases = layers[-1]
        return torch.baddbmm(biases, values, weights)

    def keep(self, places: Sequence[int], optimizer: Optimizer) -> None:
        """Keep some of the networks, and their moments in the optimiser; remove the others.

        Args:
            places: Positions of the networks to keep, in ascending order.
            optimizer: The optimiser over `flat`.
        """
        old, index = self.flat, torch.tensor(places)
        sizes = [tensor.numel() for tensor in self._tensors]
        shapes = [tensor.shape for tensor in self._tensors]

        def pick(vector: Tensor) -> list[Tensor]:
            blocks = vector.detach().split_with_sizes(sizes)
            return [block.view(shape)[index] for block, shape in zip(blocks, shapes, strict=True)]

        self._set(pick(old))
        state = optimizer.state.pop(old, {})
        optimizer.state[self.flat] = {
            name: torch.cat([part.reshape(-1) for part in pick(value)]) if value.shape == old.shape else value
            for name, value in state.items()
        }
        optimizer.param_groups[0]["params"] = [self.flat]

    def unstacked(self, place: int, network: HlfClassifier) -> None:
        """Copy the parameters of one network of the stack into a network of the same shape."""
        with torch.no_grad():
            for parameter, stacked in zip(network.layers.parameters(), self._tensors, strict=True):
                parameter.copy_(stacked[place].T if parameter.dim() == 2 else stacked[place, 0])
