"""Chooses the compiled computation of a network; other networks, and a GPU, take torch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from torch import Tensor, nn

from models.networks.hlf import HlfClassifier
from models.networks.scaling_layer import Standardize
from training.compiled.kernel import Array, Integers
from training.compiled.perceptron import Events, Perceptron, perceptron_gradients


class Rows(Protocol):
    """Some events in host memory."""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The model's input columns."""

    @property
    def labels(self) -> Tensor:
        """(num_rows,) int64."""

    @property
    def weights(self) -> Tensor:
        """(num_rows,) weights of the events."""


class Engine(Protocol):
    """Computes gradients of networks of one shape."""

    def gradients(
        self,
        parameters: Array,
        gradients: Array,
        members: Integers,
        rows: Rows,
        order: Integers,
        bounds: Integers,
        sums: Array,
    ) -> None:
        """Gradients of the mean weighted cross-entropy of some networks, each on its own batch.

        Args:
            parameters: (num_networks, num_parameters).
            gradients: (num_networks, num_parameters); the rows of `members` are overwritten.
            members: (k,) the networks to compute.
            rows: The rows to pick from.
            order: Numbers of the rows of all batches.
            bounds: (k + 1,) positions in `order` at which the batches begin and end; no batch is empty.
            sums: (num_networks, 4) loss, weight, correct, samples in float64; those of the batches are added.
        """


class PerceptronEngine(Engine):
    """Perceptrons with ReLU.

    Args:
        layers: Scaling if there is one, then linear layers with ReLU between them.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
        widths = np.array([linear[0].in_features, *(layer.out_features for layer in linear)])
        real = linear[0].weight.detach().numpy().dtype
        scaling = layers[0] if isinstance(layers[0], Standardize) else None
        mean: Array = scaling.mean.numpy() if scaling else np.zeros(widths[0], real)
        inverse_std: Array = scaling.inverse_std.numpy() if scaling else np.ones(widths[0], real)
        self.network = Perceptron(widths, mean, inverse_std)

    def gradients(
        self,
        parameters: Array,
        gradients: Array,
        members: Integers,
        rows: Rows,
        order: Integers,
        bounds: Integers,
        sums: Array,
    ) -> None:
        """See `Engine`."""
        perceptron_gradients(parameters, gradients, members, self.network, events_of(rows), order, bounds, sums)


def events_of(rows: Rows) -> Events:
    """The arrays of some events with one input column."""
    return Events(rows.inputs[0].numpy(), rows.labels.numpy(), rows.weights.numpy())


def compiled_engine(module: nn.Module) -> Engine | None:
    """The compiled computation of a network on the CPU, or None if it is of another kind.

    Examples:
        >>> compiled_engine(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))) is not None
        True
        >>> compiled_engine(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))) is None
        True
    """
    if any(tensor.device.type != "cpu" for tensor in module.parameters()):
        return None
    if type(module) is HlfClassifier:
        return PerceptronEngine([module.scaling, *module.layers])
    if type(module) is nn.Sequential and _is_perceptron(list(module)):
        return PerceptronEngine(list(module))
    return None


def _is_perceptron(layers: Sequence[nn.Module]) -> bool:
    """Whether linear layers with biases and ReLU alternate, after scaling or without."""
    dense = layers[1:] if layers and isinstance(layers[0], Standardize) else layers
    alternate = all(type(layer) is (nn.ReLU if place % 2 else nn.Linear) for place, layer in enumerate(dense))
    return len(dense) % 2 == 1 and alternate and all(layer.bias is not None for layer in dense[::2])
