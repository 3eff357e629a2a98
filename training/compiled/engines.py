"""Chooses the compiled computation of a network's gradient: its engine.

Perceptrons and networks with a GRU on the CPU have one. Other networks, and a GPU, take torch's.
"""

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
from training.compiled.recurrent import recurrent_gradient
from training.compiled.recurrent_batch import ParticleEvents, Recurrent, order_by_length
from training.readers.batch import Batch, Rows

if TYPE_CHECKING:
    from models.networks.particle_encoder import ParticleEncoder


class Batches(NamedTuple):
    """One batch of rows for each of k networks."""

    members: Integers
    """(k,) numbers of the networks to compute."""
    order: Integers
    """Numbers of the rows of all batches, one batch after the other."""
    bounds: Integers
    """(k + 1,) positions in `order` at which the batches begin and end; no batch is empty."""


class Engine(Protocol):
    """Computes gradients of networks of one shape."""

    def gradients(
        self, parameters: Array, gradients: Array, rows: Rows | Batch, batches: Batches, sums: Array
    ) -> None:
        """Write the gradients of the mean weighted loss of some networks, each on its own batch.

        The loss is the cross-entropy. The mean divides by the number of events.

        Args:
            parameters: (num_networks, num_parameters).
            gradients: (num_networks, num_parameters); those of the networks with a batch are
                overwritten.
            rows: The rows to pick from.
            batches: Which networks, and the rows of each.
            sums: (num_networks, 4) weighted loss, weight, weight of correctly classified events,
                and number of events, in float64; those of the batches are added.
        """


class PerceptronEngine(Engine):
    """Computes gradients of perceptrons with ReLU.

    Args:
        layers: Scaling if there is one, then linear layers with ReLU between them.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
        # The widths are those of the inputs, the hidden layers and the classes.
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
    """Computes gradients of networks with a GRU (gated recurrent unit) over particles.

    Args:
        encoder: The part before the dense layers: rotation, scaling and GRU.
        form: The whole network. Its dense layers take the GRU's last state, followed by features of
            the event beside the particles, if it has any.
    """

    def __init__(self, encoder: ParticleEncoder, form: StandardForm) -> None:
        # The dense layers are a perceptron, whose own scaling concerns the further features.
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
        # The columns are features of the event if there are any, particles, and their numbers.
        *further_inputs, particles, num_particles = [column.numpy() for column in rows.inputs]
        further = np.empty((len(num_particles), 0), particles.dtype)
        if further_inputs:
            (further,) = further_inputs
        labels, weights = rows.labels.numpy(), rows.weights.numpy()
        events = ParticleEvents(further, particles, num_particles, labels, weights)
        # Each particle needs five values per unit of the GRU, and its scaled features.
        numbers_per_particle = 5 * self._network.width + len(self._network.scaling.mean)
        for index, member in enumerate(batches.members):
            batch = batches.order[batches.bounds[index] : batches.bounds[index + 1]]
            # The kernel does not check indices, so an event must not be longer than the array.
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
        """Return memory for at least `size` numbers: the kept one, or larger one, which is kept.

        New memory at each step would cost a tenth of the step.
        """
        if len(self._work) < size:
            self._work = np.empty(size, self._work.dtype)
        return self._work


def column_scaling(scaling: Standardize) -> ColumnScaling:
    """Return the constants of a scaling layer as arrays for kernels.

    A column with a logarithmic scale gets its unit; 0 marks the others.
    """
    mean: Array = scaling.mean.numpy()
    log_above = np.zeros_like(mean)
    if len(scaling.unit):
        np.copyto(log_above, scaling.unit.numpy(), where=scaling.is_logarithmic.numpy())
    limit = math.inf if scaling.limit is None else scaling.limit
    return ColumnScaling(mean, scaling.inverse_std.numpy(), log_above, limit)


def rotated_columns(frame: nn.Module | None) -> RotatedColumns:
    """Return the columns that a `LeptonFrame` rotates; none for no frame or another layer."""
    if isinstance(frame, LeptonFrame):
        return frame.columns
    no_columns = np.empty(0, np.int64)
    return RotatedColumns(no_columns, no_columns, no_columns, no_columns, azimuth=0, eta=0)


def row_arrays(rows: Rows | Batch) -> RowArrays:
    """Return the arrays of some events whose only input is one matrix of features."""
    return RowArrays(rows.inputs[0].numpy(), rows.labels.numpy(), rows.weights.numpy())


def compiled_engine(module: nn.Module) -> Engine | None:
    """Return the compiled computation of a network on the CPU, or None if there is none for it.

    There is one for linear layers with ReLU between them, and for a `Classifier` in its standard
    form. The kernels compute the gradients of all parameters, so a network with frozen ones has
    none.

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
    """Return the compiled computation of a classifier, or None if its form is not a known one."""
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
    """Return the class from which a module has a method: its own or the nearest base class."""
    return next(base for base in type(module).__mro__ if method in vars(base))


def _is_perceptron(layers: Sequence[nn.Module]) -> bool:
    """Return whether linear layers with biases and ReLU alternate, from linear to linear.

    A scaling layer may come before them.
    """
    if layers and isinstance(layers[0], Standardize):
        layers = layers[1:]
    # An alternation that begins and ends with a linear layer has an odd length.
    if len(layers) % 2 == 0:
        return False
    for index, layer in enumerate(layers):
        expected_type = nn.Linear if index % 2 == 0 else nn.ReLU
        if type(layer) is not expected_type:
            return False
    return all(layer.bias is not None for layer in layers[::2])
