"""The computation of one worker, as the training loop sees it: batches, gradients, validation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from typing_extensions import override

from training.algorithms.base import Counters, VectorModel
from training.flat_model import FlatModel, ModelState
from training.readers.batch import Batch
from training.readers.reader import Reader
from training.readers.sharding import Assignment
from training.transports.basics import Vector
from training.workloads.decorrelation import Decorrelation
from training.workloads.draws import Draws
from training.workloads.gradients import Sums, compute_batch_sums, make_gradients


class ValidationPart(NamedTuple):
    """The part of the validation split that a worker evaluates: one of `num_parts`, from 0."""

    part_index: int
    num_parts: int


class Work(Protocol):
    """The computation of one worker."""

    #: The model of the gradients.
    model: VectorModel
    #: Whether the worker also evaluates its own model at the end.
    validates_alone: bool = True

    def begin(self, assignment: Assignment) -> None:
        """Begin to train on these rows."""

    def prefetch(self, assignment: Assignment) -> None:
        """Begin to read the rows that come next."""

    def next_batch(self) -> int:
        """Read the batch of the next step; returns its number of events, which may be 0."""

    def compute_gradient(self) -> Awaitable[None]:
        """Compute the gradient of the batch's mean weighted loss, and write it into the model."""

    def pop_sums(self) -> Sums:
        """Return the sums over the batches since the last call, and reset them.

        The loss of a batch is computed before the update by it.
        """

    def running_sums(self) -> Sums:
        """Return the sums over the batches since `pop_sums`, without resetting them."""

    def counters(self) -> Counters:
        """Return how often each action of the loss happened since the start, by name."""
        return {}

    def buffers(self) -> Vector:
        """Return a copy of the buffers of this worker's network, (num_buffers,) float64.

        Buffers are numbers that are no parameters, such as running means.
        """

    def write_buffers(self, values: Vector) -> None:
        """Overwrite the buffers of this worker's network."""

    async def validate(self, state: ModelState, part: ValidationPart) -> Sums:
        """Return the sums over a part of the validation split under a model.

        `state`: parameters and buffers of the model. The worker's own stay unchanged.
        """

    def state(self) -> dict[str, Any]:
        """Return what the next steps depend on besides epoch and step, as plain values."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the content of `state`."""


class ReaderWork(Work):
    """Work on the batches of a reader.

    `draws`: the random numbers of the steps. `alive`: called within long work. `decorrelation`: a
    further term of the loss, of training and validation; None for the cross-entropy alone.
    """

    model: FlatModel

    def __init__(
        self,
        model: FlatModel,
        reader: Reader,
        *,
        draws: Draws,
        alive: Callable[[], None],
        decorrelation: Decorrelation | None = None,
    ) -> None:
        self.model = model
        self._reader = reader
        self._report_alive = alive
        self._batches: Iterator[Batch] = iter(())
        self._batch: Batch
        self._gradients = make_gradients(model, decorrelation)
        self._decorrelation = decorrelation
        self._draws = draws

    @override
    def begin(self, assignment: Assignment) -> None:
        self._batches = iter(self._reader.train_batches(assignment))
        self.model.module.train()

    @override
    def prefetch(self, assignment: Assignment) -> None:
        self._reader.prefetch(assignment)

    @override
    def next_batch(self) -> int:
        self._batch = next(self._batches)
        return len(self._batch)

    @override
    async def compute_gradient(self) -> None:
        batch = self._draws.prepare(self._batch, for_torch=self._gradients.runs_forward)
        self._gradients.compute(batch)

    @override
    def pop_sums(self) -> Sums:
        return self._gradients.pop_sums()

    @override
    def running_sums(self) -> Sums:
        return self._gradients.running_sums()

    @override
    def counters(self) -> Counters:
        if self._decorrelation is None:
            return {}
        return {"decorrelated_steps": self._gradients.num_decorrelated}

    @override
    def buffers(self) -> Vector:
        return self.model.buffers()

    @override
    def write_buffers(self, values: Vector) -> None:
        self.model.write_buffers(values)

    @override
    async def validate(self, state: ModelState, part: ValidationPart) -> Sums:
        # The network gets the other state for the validation, then its own again.
        network = self.model.module
        trained_state = self.model.state()
        self.model.load(state)
        network.eval()
        sums = Sums()
        with torch.inference_mode():
            for batch in self._reader.val_batches(rank=part.part_index, world_size=part.num_parts):
                self._report_alive()
                logits = network(*batch.inputs)
                sums = sums.combine(compute_batch_sums(logits, batch, self._decorrelation))
        network.train()
        self.model.load(trained_state)
        return sums

    @override
    def state(self) -> dict[str, Any]:
        """The random numbers; the order of events depends on seed, epoch and row group only."""
        return {"draws": self._draws.state()}

    @override
    def load_state(self, state: dict[str, Any]) -> None:
        self._draws.load_state(state["draws"])
