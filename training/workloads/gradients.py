"""The gradient of one batch, in compiled code or by torch's backpropagation."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from training.compiled.engines import Batches, Engine, compiled_engine
from training.flat_model import FlatModel
from training.readers.batch import Batch
from training.transports.basics import Vector
from training.transports.transport import Transport
from training.workloads.decorrelation import Decorrelation


class Sums(NamedTuple):
    """Weighted sums over events, which add up over batches and ranks."""

    loss: float = 0.0
    """Sum of weight times cross-entropy, and of the weight of a batch times its further term."""
    weight: float = 0.0
    """Sum of the weights."""
    correct: float = 0.0
    """Sum of the weights of the events whose class was predicted."""
    samples: int = 0
    """Number of events."""

    @classmethod
    def from_array(cls, numbers: Vector) -> Self:
        """Make the sums from an array of these four numbers."""
        loss, weight, correct, samples = numbers.tolist()
        return cls(loss, weight, correct, round(samples))

    def combine(self, more: Sums) -> Sums:
        """Return the sums over the events of both."""
        return Sums(
            self.loss + more.loss,
            self.weight + more.weight,
            self.correct + more.correct,
            self.samples + more.samples,
        )

    @property
    def mean_loss(self) -> float:
        """Weighted mean loss; NaN without events."""
        return self.loss / self.weight if self.weight else float("nan")

    @property
    def accuracy(self) -> float:
        """Weighted share of correct predictions; NaN without events."""
        return self.correct / self.weight if self.weight else float("nan")


def weighted_losses(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted cross-entropy of each event, (num_events,)."""
    return weights * functional.cross_entropy(logits, labels, reduction="none")


def compute_sums(logits: Tensor, labels: Tensor, weights: Tensor) -> Sums:
    """Return the sums over some events.

    Args:
        logits: (num_events, num_classes).
        labels: (num_events,) classes.
        weights: (num_events,).
    """
    losses = weighted_losses(logits, labels, weights)
    correct_weights = (logits.argmax(dim=1) == labels) * weights
    # All three come from the device in one transfer.
    totals = torch.stack(
        [losses.double().sum(), weights.double().sum(), correct_weights.double().sum()]
    )
    loss, weight, correct = totals.tolist()
    return Sums(loss, weight, correct, len(labels))


def compute_batch_sums(
    logits: Tensor, batch: Batch, decorrelation: Decorrelation | None = None
) -> Sums:
    """Return the sums over the events of a batch, with the further term of the loss if any.

    Args:
        logits: (num_events, num_classes) of the batch.
        batch: The events.
        decorrelation: The further term; None for the cross-entropy alone.
    """
    sums = compute_sums(logits, batch.labels, batch.weights)
    if decorrelation is None:
        return sums
    term = float(decorrelation.term(logits, batch))
    return sums._replace(loss=sums.loss + term * sums.weight)


async def reduce_sums(sums: Sums, transport: Transport) -> Sums:
    """Return the sums over the events of all workers, which call this together."""
    vector = np.array(sums, dtype=np.float64)
    await transport.all_reduce_sum(vector)
    return Sums.from_array(vector)


#: Number of steps whose outputs are summed together, which is cheaper than step by step.
_STEPS_AT_ONCE: Final = 64


class Gradients(Protocol):
    """Computes gradients of one model, and sums over their batches."""

    #: Whether it runs the network's `forward`, which may draw random numbers from torch.
    runs_forward: bool
    #: Number of batches whose loss had a further term above 0 that can move the model.
    num_decorrelated: int = 0

    def compute(self, batch: Batch) -> None:
        """Compute the gradient of the mean weighted loss of a batch, and write it into the model.

        A further term of the loss is added to this mean. The mean divides by the number of events.
        The weights are 1 on average, but may add up to 0 in a batch. The batch is added to the
        sums.
        """

    def running_sums(self) -> Sums:
        """Return the sums over the batches since `pop_sums`, computed before their updates."""

    def pop_sums(self) -> Sums:
        """Return the sums so far, and reset them."""


def make_gradients(model: FlatModel, decorrelation: Decorrelation | None = None) -> Gradients:
    """Choose compiled code if it knows network and loss, else torch's backpropagation.

    Compiled code knows the cross-entropy alone. `decorrelation`: a further term; None for none.
    """
    engine = compiled_engine(model.module)
    if engine is None or decorrelation is not None:
        return TorchGradients(model, decorrelation)
    return CompiledGradients(model, engine)


class CompiledGradients(Gradients):
    """Gradients by an engine, into the vectors of the model."""

    runs_forward = False

    def __init__(self, model: FlatModel, engine: Engine) -> None:
        self._engine = engine
        # An engine computes several networks, so these arrays are (1, num_parameters). They share
        # the memory of the model.
        self._parameters = model.flat.detach().numpy()[None]
        self._gradient = model.gradient.numpy()[None]
        self._batches = Batches(
            np.zeros(1, dtype=np.int64), np.arange(0), np.zeros(2, dtype=np.int64)
        )
        self._sums = np.zeros((1, 4))

    @override
    def compute(self, batch: Batch) -> None:
        size = batch.labels.shape[0]
        # The batch is all of its rows in order; the list of their numbers only grows.
        if len(self._batches.order) < size:
            self._batches = self._batches._replace(order=np.arange(size))
        self._batches.bounds[1] = size
        self._engine.gradients(self._parameters, self._gradient, batch, self._batches, self._sums)

    @override
    def running_sums(self) -> Sums:
        return Sums.from_array(self._sums[0])

    @override
    def pop_sums(self) -> Sums:
        sums = self.running_sums()
        self._sums[:] = 0
        return sums


class TorchGradients(Gradients):
    """Gradients by backpropagation.

    `decorrelation`: a further term of the loss; None for the cross-entropy alone.
    """

    runs_forward = True

    def __init__(self, model: FlatModel, decorrelation: Decorrelation | None = None) -> None:
        self._model = model
        self._decorrelation = decorrelation
        self.num_decorrelated = 0
        self._unsummed: list[tuple[Tensor, Tensor, Tensor]] = []
        """Logits, labels and weights of the last batches, which `_sums` lacks."""
        self._sums = Sums()

    @override
    def compute(self, batch: Batch) -> None:
        self._model.zero_gradient()
        logits = self._model.module(*batch.inputs)
        losses = weighted_losses(logits, batch.labels, batch.weights)
        loss = losses.sum() / len(batch)
        if self._decorrelation is not None:
            term = self._decorrelation.term(logits, batch)
            loss = loss + term
            self._add_term(float(term.detach()), batch, moves=self._decorrelation.moves(batch))
        loss.backward()
        self._unsummed.append((logits.detach(), batch.labels, batch.weights))
        if len(self._unsummed) == _STEPS_AT_ONCE:
            self._sum_up()

    def _add_term(self, term: float, batch: Batch, *, moves: bool) -> None:
        """Add the further term of a batch to the sums, which its weight makes part of the mean.

        `moves`: whether it can have a gradient; else the batch is not counted.
        """
        if term > 0 and moves:
            self.num_decorrelated += 1
        self._sums = self._sums.combine(Sums(loss=term * float(batch.weights.double().sum())))

    @override
    def running_sums(self) -> Sums:
        if not self._unsummed:
            return self._sums
        logits, labels, weights = map(torch.cat, zip(*self._unsummed, strict=True))
        return self._sums.combine(compute_sums(logits, labels, weights))

    @override
    def pop_sums(self) -> Sums:
        self._sum_up()
        sums, self._sums = self._sums, Sums()
        return sums

    def _sum_up(self) -> None:
        """Move the last batches into the sums."""
        self._sums = self.running_sums()
        self._unsummed.clear()
