"""Chooses the compiled computation of a network; other networks, and a GPU, take torch's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from torch import nn
from typing_extensions import override

from models.networks.classifier import Classifier, StandardForm
from models.networks.lepton_frame import LeptonFrame, RotatedColumns
from models.networks.scaling_layer import Standardize
from training.compiled.kernel import Array, ColumnScaling, Integers, unscaled
from training.compiled.perceptron import Perceptron, RowArrays, perceptron_gradients
from training.compiled.recurrent import (
    ParticleEvents,
    Recurrent,
    order_by_length,
    recurrent_gradient,
)
from training.readers.batch import Batch, Rows

if TYPE_CHECKING:
    from models.networks.particle_encoder import ParticleEncoder


class Batches(NamedTuple):
    """A batch for each of some networks."""

    members: Integers
    """(k,) the networks to compute."""
    order: Integers
    """Numbers of the rows of all batches."""
    bounds: Integers
    """(k + 1,) positions in `order` at which the batches begin and end; no batch is empty."""


class Engine(Protocol):
    """Computes gradients of networks of one shape."""

    def gradients(
        self, parameters: Array, gradients: Array, rows: Rows | Batch, batches: Batches, sums: Array
    ) -> None:
        """Gradients of the mean weighted cross-entropy of some networks, each on its own batch.

        Args:
            parameters: (num_networks, num_parameters).
            gradients: (num_networks, num_parameters); those of the networks with a batch are overwritten.
            rows: The rows to pick from.
            batches: Their batches.
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
        scaling = unscaled(widths[0], real)
        if isinstance(layers[0], Standardize):
            scaling = column_scaling(layers[0])
        self.network = Perceptron(widths, scaling)

    @override
    def gradients(
        self, parameters: Array, gradients: Array, rows: Rows | Batch, batches: Batches, sums: Array
    ) -> None:
        events = row_arrays(rows)
        if events.inputs.shape[1] != self.network.widths[0]:
            raise ValueError(
                f"the network takes {self.network.widths[0]} features, not {events.inputs.shape[1]}"
            )
        members, order, bounds = batches
        perceptron_gradients(
            parameters, gradients, members, self.network, events, order, bounds, sums
        )


class RecurrentEngine(Engine):
    """Networks with a GRU over particles.

    Args:
        encoder: Frame, scaling and GRU.
        form: The network; its further features join the GRU's last state.
    """

    def __init__(self, encoder: ParticleEncoder, form: StandardForm) -> None:
        head = PerceptronEngine(form.layers).network
        scaling = column_scaling(encoder.scaling)
        real = scaling.mean.dtype
        further_scaling = unscaled(0, real)
        if form.scaling is not None:
            further_scaling = column_scaling(form.scaling)
        self._network = Recurrent(
            encoder.gru.hidden_size,
            scaling,
            encoder.reads_from_end,
            Perceptron(head.widths, further_scaling),
            rotated_columns(encoder.frame),
            rotated_columns(form.frame),
        )
        self._work = np.empty(0, real)

    @override
    def gradients(
        self, parameters: Array, gradients: Array, rows: Rows | Batch, batches: Batches, sums: Array
    ) -> None:
        *further_inputs, particles, num_particles = [column.numpy() for column in rows.inputs]
        further = np.empty((len(num_particles), 0), particles.dtype)
        if further_inputs:
            (further,) = further_inputs
        labels, weights = rows.labels.numpy(), rows.weights.numpy()
        events = ParticleEvents(further, particles, num_particles, labels, weights)
        numbers_per_particle = 5 * self._network.width + len(self._network.scaling.mean)
        for index, member in enumerate(batches.members):
            batch = batches.order[batches.bounds[index] : batches.bounds[index + 1]]
            longest = num_particles[batch].max()
            if longest > particles.shape[1]:
                raise IndexError(
                    f"an event has {longest} particles in an array for {particles.shape[1]}"
                )
            steps = order_by_length(batch, num_particles[batch])
            work = self._reserve_memory(steps.num_particles * numbers_per_particle)
            recurrent_gradient(
                parameters[member],
                gradients[member],
                self._network,
                events,
                steps,
                work,
                sums[member],
            )

    def _reserve_memory(self, size: int) -> Array:
        """Memory for `size` numbers, from the step before if it is large enough.

        The system takes a tenth of a step to give new memory.
        """
        if len(self._work) < size:
            self._work = np.empty(size, self._work.dtype)
        return self._work


def column_scaling(scaling: Standardize) -> ColumnScaling:
    """The constants of a layer for kernels."""
    mean: Array = scaling.mean.numpy()
    log_above = np.zeros_like(mean)
    if len(scaling.unit):
        np.copyto(log_above, scaling.unit.numpy(), where=scaling.is_logarithmic.numpy())
    limit = math.inf if scaling.limit is None else scaling.limit
    return ColumnScaling(mean, scaling.inverse_std.numpy(), log_above, limit)


def rotated_columns(frame: nn.Module | None) -> RotatedColumns:
    """The columns that a frame layer rotates; none for other layers."""
    if isinstance(frame, LeptonFrame):
        return frame.columns
    no_columns = np.empty(0, np.int64)
    return RotatedColumns(no_columns, no_columns, no_columns, no_columns, azimuth=0, eta=0)


def row_arrays(rows: Rows | Batch) -> RowArrays:
    """The arrays of some events with one input column."""
    return RowArrays(rows.inputs[0].numpy(), rows.labels.numpy(), rows.weights.numpy())


def compiled_engine(module: nn.Module) -> Engine | None:
    """The compiled computation of a network on the CPU, or None if it is of another kind.

    The kernels compute the gradients of all parameters, so a network with frozen ones is of another kind.

    Examples:
        >>> compiled_engine(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))) is not None
        True
        >>> compiled_engine(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))) is None
        True
    """
    for parameter in module.parameters():
        if parameter.device.type != "cpu" or not parameter.requires_grad:
            return None
    if type(module) is nn.Sequential and _is_perceptron(list(module)):
        return PerceptronEngine(list(module))
    return _classifier_engine(module) if isinstance(module, Classifier) else None


def _classifier_engine(module: Classifier) -> Engine | None:
    # A subclass with a `forward` of its own may compute something else than the standard form.
    if _defining_class(module, "standard_form") is not _defining_class(module, "forward"):
        return None
    form = module.standard_form()
    if form is None:
        return None
    if form.encoder is not None:
        return RecurrentEngine(form.encoder, form)
    # The kernels of perceptrons rotate no features.
    if isinstance(form.frame, LeptonFrame):
        return None
    layers = list(form.layers)
    if form.scaling is not None:
        layers.insert(0, form.scaling)
    return PerceptronEngine(layers)


def _defining_class(module: nn.Module, method: str) -> type:
    """The class of a module that defines a method."""
    return next(base for base in type(module).__mro__ if method in vars(base))


def _is_perceptron(layers: Sequence[nn.Module]) -> bool:
    """Whether linear layers with biases and ReLU alternate, with scaling before them or without."""
    if layers and isinstance(layers[0], Standardize):
        layers = layers[1:]
    if len(layers) % 2 == 0:
        return False
    for index, layer in enumerate(layers):
        expected_type = nn.Linear if index % 2 == 0 else nn.ReLU
        if type(layer) is not expected_type:
            return False
    return all(layer.bias is not None for layer in layers[::2])
