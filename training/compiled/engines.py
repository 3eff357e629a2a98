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
from training.compiled.recurrent import ParticleEvents, Recurrent, recurrent_gradient, steps_of
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
        scaling = layers[0] if isinstance(layers[0], Standardize) else None
        self.network = Perceptron(
            widths, column_scaling(scaling) if scaling else unscaled(widths[0], real)
        )

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
        joined = unscaled(0, real) if form.scaling is None else column_scaling(form.scaling)
        self._network = Recurrent(
            encoder.gru.hidden_size,
            scaling,
            encoder.reads_from_end,
            Perceptron(head.widths, joined),
            columns_to_turn(encoder.frame),
            columns_to_turn(form.frame),
        )
        self._work = np.empty(0, real)

    @override
    def gradients(
        self, parameters: Array, gradients: Array, rows: Rows | Batch, batches: Batches, sums: Array
    ) -> None:
        particles, numbers = (column.numpy() for column in rows.inputs[-2:])
        further = (
            rows.inputs[0].numpy()
            if len(rows.inputs) > 2
            else np.empty((len(numbers), 0), particles.dtype)
        )
        events = ParticleEvents(
            further, particles, numbers, rows.labels.numpy(), rows.weights.numpy()
        )
        for place, member in enumerate(batches.members):
            batch = batches.order[batches.bounds[place] : batches.bounds[place + 1]]
            longest = numbers[batch].max()
            if longest > particles.shape[1]:
                raise IndexError(
                    f"an event has {longest} particles in an array for {particles.shape[1]}"
                )
            steps = steps_of(batch, numbers[batch])
            work = self._room(
                steps.num_particles * (5 * self._network.width + len(self._network.scaling.mean))
            )
            recurrent_gradient(
                parameters[member],
                gradients[member],
                self._network,
                events,
                steps,
                work,
                sums[member],
            )

    def _room(self, size: int) -> Array:
        """Memory that is kept from step to step: new memory takes the system a tenth of a step to give."""
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


def columns_to_turn(frame: nn.Module | None) -> RotatedColumns:
    """The columns that a frame layer turns; none for other layers."""
    none = np.empty(0, np.int64)
    return (
        frame.columns
        if isinstance(frame, LeptonFrame)
        else RotatedColumns(none, none, none, none, 0, 0)
    )


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
    if isinstance(module, Classifier) and _owner(module, "standard_form") is _owner(
        module, "forward"
    ):
        form = module.standard_form()
        if form is not None and form.encoder is not None:
            return RecurrentEngine(form.encoder, form)
        # The kernels of perceptrons turn no features.
        if form is not None and not isinstance(form.frame, LeptonFrame):
            return PerceptronEngine([*([form.scaling] if form.scaling else []), *form.layers])
    if type(module) is nn.Sequential and _is_perceptron(list(module)):
        return PerceptronEngine(list(module))
    return None


def _owner(module: nn.Module, method: str) -> type:
    return next(kind for kind in type(module).__mro__ if method in vars(kind))


def _is_perceptron(layers: Sequence[nn.Module]) -> bool:
    """Whether linear layers with biases and ReLU alternate, after scaling or without."""
    dense = layers[1:] if layers and isinstance(layers[0], Standardize) else layers
    alternate = all(
        type(layer) is (nn.ReLU if place % 2 else nn.Linear) for place, layer in enumerate(dense)
    )
    return len(dense) % 2 == 1 and alternate and all(layer.bias is not None for layer in dense[::2])
