"""The gradient of one batch, in compiled code or by torch's backpropagation."""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from training.compiled.engines import Batches, Engine, compiled_engine
from training.flat_model import FlatModel
from training.readers.batch import Batch
from training.workloads.sums import Sums, sums_of, weighted_losses

#: Number of steps whose outputs are summed together, which is cheaper than step by step.
_STEPS_KEPT: Final = 64


class Gradients(Protocol):
    """Computes gradients of one model, and sums over their batches."""

    #: Whether it runs the network's `forward`, which may draw random numbers from torch.
    runs_forward: bool

    def compute(self, batch: Batch) -> None:
        """Compute the gradient of the mean weighted loss of a batch, into the model.

        It divides by the number of events: the weights are 1 on average, but may add up to 0 in a batch.
        """

    def sums_so_far(self) -> Sums:
        """Sums over the batches, computed before their updates."""

    def take_sums(self) -> Sums:
        """The sums so far; resets them."""


def gradients_of(model: FlatModel) -> Gradients:
    """Compiled code where it knows the network, else backpropagation."""
    engine = compiled_engine(model.module)
    return TorchGradients(model) if engine is None else CompiledGradients(model, engine)


class CompiledGradients(Gradients):
    """Gradients by an engine, into the vectors of the model."""

    runs_forward = False

    def __init__(self, model: FlatModel, engine: Engine) -> None:
        self._engine = engine
        self._parameters = model.flat.detach().numpy()[None]
        self._gradient = model.gradient.numpy()[None]
        self._batches = Batches(np.zeros(1, dtype=np.int64), np.arange(0), np.zeros(2, dtype=np.int64))
        self._sums = np.zeros((1, 4))

    @override
    def compute(self, batch: Batch) -> None:
        size = batch.labels.shape[0]
        if len(self._batches.order) < size:
            self._batches = self._batches._replace(order=np.arange(size))
        self._batches.bounds[1] = size
        self._engine.gradients(self._parameters, self._gradient, batch, self._batches, self._sums)

    @override
    def sums_so_far(self) -> Sums:
        return Sums.of(self._sums[0])

    @override
    def take_sums(self) -> Sums:
        sums = self.sums_so_far()
        self._sums[:] = 0
        return sums


class TorchGradients(Gradients):
    """Gradients by backpropagation."""

    runs_forward = True

    def __init__(self, model: FlatModel) -> None:
        self._model = model
        self._kept: list[tuple[Tensor, Tensor, Tensor]] = []
        self._sums = Sums()

    @override
    def compute(self, batch: Batch) -> None:
        self._model.zero_gradient()
        logits = self._model.module(*batch.inputs)
        losses = weighted_losses(logits, batch.labels, batch.weights)
        (losses.sum() / len(batch)).backward()
        self._kept.append((logits.detach(), batch.labels, batch.weights))
        if len(self._kept) == _STEPS_KEPT:
            self._sum_up()

    @override
    def sums_so_far(self) -> Sums:
        if not self._kept:
            return self._sums
        logits, labels, weights = (torch.cat(parts) for parts in zip(*self._kept, strict=True))
        return self._sums.plus(sums_of(logits, labels, weights))

    @override
    def take_sums(self) -> Sums:
        self._sum_up()
        sums, self._sums = self._sums, Sums()
        return sums

    def _sum_up(self) -> None:
        self._sums = self.sums_so_far()
        self._kept.clear()
