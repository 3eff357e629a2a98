"""Parameters and gradients of a network as views of two vectors: an exchange is one message."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from models.networks.lepton_frame import LeptonFrame
from models.networks.scaling_layer import Standardize
from training.algorithms.base import VectorModel
from training.compiled.optimizer import is_finite
from training.errors import FrozenNetworkError, TrainingError
from training.transports.basics import Vector


class ModelState(NamedTuple):
    """The numbers of a trained network in host memory."""

    parameters: Vector
    """(num_parameters,) the trained parameters."""
    buffers: Vector
    """(num_buffers,) float64: other numbers that training changes, such as running means of batch
    norm."""


class FlatVectors(VectorModel):
    """A model whose parameters and gradients live in one vector each.

    The methods copy them to and from vectors of numpy on the host; see `VectorModel`.

    `flat`: (num_parameters,) trained parameters, on any device. `gradient`: (num_parameters,) their
    gradients, on the same device. `shapes`: shapes of the parameters of the layers, in this order.
    """

    def __init__(
        self, flat: nn.Parameter, gradient: Tensor, shapes: Sequence[Sequence[int]]
    ) -> None:
        self.flat = flat
        self.shapes = shapes
        self._shape = (flat.numel(),)
        self.gradient = flat.grad = gradient
        # On the CPU the host's views share memory with the tensors.
        on_host = flat.device.type == "cpu"
        self._host_parameters = flat.detach().numpy() if on_host else None
        self._host_gradient = gradient.numpy() if on_host else None

    @override
    def empty(self) -> Vector:
        dtype = str(self.flat.dtype).removeprefix("torch.")
        return np.empty(self.flat.numel(), np.dtype(dtype))

    @override
    def read(self, out: Vector) -> None:
        self._require_size(out)
        if self._host_parameters is not None:
            np.copyto(out, self._host_parameters)
        else:
            torch.from_numpy(out).copy_(self.flat.detach())

    @override
    def write(self, values: Vector) -> None:
        self._require_size(values)
        if self._host_parameters is not None:
            np.copyto(self._host_parameters, values)
        else:
            self.flat.detach().copy_(torch.from_numpy(values))

    @override
    def read_gradient(self, out: Vector) -> None:
        self._require_size(out)
        if self._host_gradient is not None:
            np.copyto(out, self._host_gradient)
        else:
            torch.from_numpy(out).copy_(self.gradient)

    @override
    def write_gradient(self, values: Vector) -> None:
        self._require_size(values)
        if self._host_gradient is not None:
            np.copyto(self._host_gradient, values)
        else:
            self.gradient.copy_(torch.from_numpy(values))

    def _require_size(self, vector: Vector) -> None:
        """Raise TrainingError unless a vector has one element for each parameter.

        A copy would repeat a single number for all parameters.
        """
        if np.shape(vector) != self._shape:
            raise TrainingError(
                f"a vector of shape {np.shape(vector)} cannot hold the {self.flat.numel()} "
                f"parameters of the model. Make vectors by `model.empty()`"
            )

    @override
    def gradient_is_finite(self) -> bool:
        """Return whether all elements of the gradient are finite.

        On a GPU, only the sum of their squares is copied to the host: it is finite if they are.
        """
        if self._host_gradient is not None:
            return is_finite(self._host_gradient)
        return math.isfinite(float(torch.dot(self.gradient, self.gradient)))


class FlatModel(FlatVectors):
    """A network whose trained parameters live in one vector.

    All base optimisers but Muon are elementwise. So one call on the vector gives the same numbers
    as one tensor per layer. Muon gets the shapes of the layers. Frozen parameters
    (`requires_grad=False`) are no part of it: no optimiser, weight decay or average changes them.

    `module`: the network, on its device; its trained parameters become views of the vector.

    Raises:
        FrozenNetworkError: All parameters are frozen, or there are none.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not parameters:
            raise FrozenNetworkError(
                f"{type(module).__name__} has no parameter to train: it has none, or all have "
                f"requires_grad=False. Leave requires_grad as it is for at least one layer."
            )
        # The vector gets a copy of all parameters, one behind the other.
        vector = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        shapes = [tuple(parameter.shape) for parameter in parameters]
        super().__init__(nn.Parameter(vector), torch.zeros_like(vector), shapes)
        # Each parameter becomes a view of its part, so layers and vector share memory.
        start = 0
        for parameter in parameters:
            stop = start + parameter.numel()
            parameter.data = self.flat.data[start:stop].view_as(parameter)
            parameter.grad = self.gradient[start:stop].view_as(parameter)
            start = stop
        self._buffers = list(_changing_buffers(module))

    def zero_gradient(self) -> None:
        """Set all gradients to 0 in place; None would detach them from the vector."""
        self.gradient.zero_()

    def buffers(self) -> Vector:
        """Return a copy of the network's buffers, (num_buffers,).

        They are float64, which holds integers and float32 exactly.
        """
        arrays = [buffer.detach().cpu().double().reshape(-1).numpy() for buffer in self._buffers]
        if not arrays:
            return np.empty(0)
        return np.concatenate(arrays)

    def write_buffers(self, values: Vector) -> None:
        """Overwrite the network's buffers by the elements of a vector of `buffers`, in their order.

        Integers are rounded, since a mean over workers need not be whole.
        """
        start = 0
        for buffer in self._buffers:
            stop = start + buffer.numel()
            new_buffer = torch.from_numpy(values[start:stop]).view(buffer.shape)
            if not buffer.is_floating_point():
                new_buffer = new_buffer.round()
            buffer.copy_(new_buffer)
            start = stop

    def state(self) -> ModelState:
        """Return a copy of parameters and buffers."""
        parameters = self.empty()
        self.read(parameters)
        return ModelState(parameters, self.buffers())

    def load(self, state: ModelState) -> None:
        """Overwrite parameters and buffers."""
        self.write(state.parameters)
        self.write_buffers(state.buffers)


def _changing_buffers(module: nn.Module) -> Iterator[Tensor]:
    """Yield the buffers that training can change, such as running means of batch norm.

    Left out are those of layers whose buffers are constants.
    """
    for submodule in module.modules():
        if not isinstance(submodule, (LeptonFrame, Standardize)):
            yield from submodule.buffers(recurse=False)
