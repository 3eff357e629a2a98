"""An algorithm's view of a model. No torch, so that the config is read without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from training.transports.basics import Vector

if TYPE_CHECKING:
    from torch import nn


class VectorModel(Protocol):
    """An algorithm's view of a model: a vector of parameters and a vector of gradients, copied to and from the host."""

    flat: nn.Parameter
    """(num_parameters,) all parameters, as the optimiser's only parameter."""

    def empty(self) -> Vector:
        """A host vector of the model's size and type, as a target of copies."""

    def read(self, out: Vector) -> None:
        """Copy the parameters to the host."""

    def write(self, values: Vector) -> None:
        """Copy the parameters from the host."""

    def read_gradient(self, out: Vector) -> None:
        """Copy the gradient to the host."""

    def write_gradient(self, values: Vector) -> None:
        """Copy the gradient from the host."""

    def gradient_is_finite(self) -> bool:
        """Whether all elements of the gradient are finite."""
