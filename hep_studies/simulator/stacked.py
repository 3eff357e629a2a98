"""Computes gradients of many virtual workers together: they are rows of one matrix."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Generator, Iterator, Mapping
from copy import deepcopy
from itertools import accumulate
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from typing_extensions import override

from hep_studies.simulator.cluster import ComputeTimes
from hep_studies.simulator.virtual_time import VirtualClock
from training.algorithms.base import Counters
from training.compiled.engines import Batches, compiled_engine
from training.flat_model import FlatModel, FlatVectors, ModelState
from training.readers.batch import Batch, Rows
from training.readers.memory import MemoryReader, MemoryRows
from training.readers.sharding import Assignment, OwnedRows
from training.transports.basics import Vector
from training.workloads.decorrelation import Decorrelation
from training.workloads.draws import Augmentation, Draws
from training.workloads.gradients import Sums, TorchGradients, compute_batch_sums
from training.workloads.work import ValidationPart, Work

#: Number of rows that a model is validated on at once.
_VALIDATION_BATCH: Final = 2048


class StackedModels:
    """The models of all virtual workers: parameters, gradients and buffers are rows of matrices.

    Row `rank` belongs to the worker of that rank. So one call of compiled code can compute the
    gradients of many workers; networks without compiled code take one call of torch each.

    `module`: the network; every worker starts with its parameters and buffers. `augmentation`:
    changes the images of each batch; None for no change. `decorrelation`: a further term of the
    loss; None for the cross-entropy alone.
    """

    def __init__(
        self,
        module: nn.Module,
        world_size: int,
        *,
        seed: int = 0,
        augmentation: Augmentation | None = None,
        decorrelation: Decorrelation | None = None,
    ) -> None:
        self.model = FlatModel(deepcopy(module).train())
        """A model to load the parameters of any worker into."""
        # Compiled code takes its batches from rows that no augmentation changes, and knows the
        # cross-entropy alone.
        needs_torch = augmentation is not None or decorrelation is not None
        self._engine = None if needs_torch else compiled_engine(self.model.module)
        self._torch = TorchGradients(self.model, decorrelation)
        self.decorrelation = decorrelation
        """A further term of the loss; None for the cross-entropy alone."""
        self.num_decorrelated = np.zeros(world_size, dtype=np.int64)
        """(world_size,) batches of each worker whose loss had a further term above 0."""
        self.parameters = self.model.flat.detach().repeat(world_size, 1)
        """(world_size, num_parameters)."""
        self.gradients = torch.zeros_like(self.parameters)
        """(world_size, num_parameters)."""
        self._parameters_array = self.parameters.numpy()
        self._gradients_array = self.gradients.numpy()
        self.buffers = np.tile(self.model.buffers(), (world_size, 1))
        """(world_size, num_buffers) float64, such as the running means of batch norm."""
        self.draws = [
            Draws(seed=seed, rank=rank, augmentation=augmentation) for rank in range(world_size)
        ]
        """The random numbers of each worker."""
        self.sums = np.zeros((world_size, 4))
        """(world_size, 4) sums of each worker over its batches since they were last reset.

        They are the weighted loss, the weight of the events, that of the correctly predicted ones,
        and the number of events.
        """

    def row(self, rank: int) -> FlatVectors:
        """Return the model of one worker, whose vectors share the memory of its rows."""
        parameters = nn.Parameter(self.parameters[rank], requires_grad=False)
        return FlatVectors(parameters, self.gradients[rank], self.model.shapes)

    def compute(self, batches: Mapping[int, Vector], rows: Rows) -> None:
        """Write the gradients of some workers at their parameters into `gradients`.

        Each worker has a batch of its own. Its losses and counts are added to its row of `sums`,
        and its buffers change as in training. `batches`: indices of the rows of each worker's
        batch, by its rank. `rows`: all rows.
        """
        if self._engine is not None:
            # The batches lie one after the other in `row_indices`, divided at `bounds`.
            ranks = np.fromiter(batches, np.int64, len(batches))
            row_indices = np.concatenate(list(batches.values()))
            bounds = np.cumsum([0, *map(len, batches.values())])
            stacked_batches = Batches(ranks, row_indices, bounds)
            self._engine.gradients(
                self._parameters_array, self._gradients_array, rows, stacked_batches, self.sums
            )
            return
        # Without compiled code, one torch model takes the parameters of one worker after the other.
        for rank, batch in batches.items():
            self.model.load(ModelState(self._parameters_array[rank], self.buffers[rank]))
            num_decorrelated = self._torch.num_decorrelated
            self._torch.compute(self.draws[rank].prepare(rows.batch(batch), for_torch=True))
            self.num_decorrelated[rank] += self._torch.num_decorrelated - num_decorrelated
            self.model.read_gradient(self._gradients_array[rank])
            self.buffers[rank] = self.model.buffers()
            self.sums[rank] += self._torch.pop_sums()


class BatchedGradients:
    """Computes the gradients of all workers that are in a step together.

    A worker's parameters and batch do not change during its step, so that the gradient may be
    computed at any time of the step. Each worker leaves its batch here when its step begins. The
    first step that ends computes all batches that are here, which is faster than one by one.
    """

    def __init__(
        self, clock: VirtualClock, stacked: StackedModels, train: MemoryRows, val: MemoryRows
    ) -> None:
        self.clock = clock
        self.stacked = stacked
        self.train = train
        self._val = val
        # Rows of the batch of each worker in a step whose gradient is not computed, by rank.
        self._pending: dict[int, Vector] = {}
        self.num_val = len(val)

    @types.coroutine
    def gradient(self, rank: int, rows: Vector, seconds: float) -> Generator[float, None, None]:
        """Take the virtual time of a step [s], and have the worker's gradient computed by its end.

        `rows`: indices of the rows of its batch.
        """
        self._pending[rank] = rows
        # Suspends the worker until its step ends; other workers begin and end steps meanwhile.
        yield self.clock.now + seconds
        # Another worker whose step ended earlier may have computed this gradient too.
        if rank in self._pending:
            self.stacked.compute(self._pending, self.train.rows)
            self._pending.clear()

    def validate(self, state: ModelState) -> Sums:
        """Return the sums of losses and counts of a model over the validation split.

        The common torch model is left with its parameters, in training mode.
        """
        model = self.stacked.model
        sums = Sums()
        model.load(state)
        model.module.eval()
        with torch.inference_mode():
            for batch in self._val_batches():
                logits = model.module(*batch.inputs)
                sums = sums.combine(compute_batch_sums(logits, batch, self.stacked.decorrelation))
        model.module.train()
        return sums

    def _val_batches(self) -> Iterator[Batch]:
        """Yield the validation split in batches, with the term of a loss in those of ranks.

        The cross-entropy does not depend on the batches.
        """
        if self.stacked.decorrelation is None:
            return self._val.batches(_VALIDATION_BATCH)
        return MemoryReader(self.train, self._val).val_batches(rank=0, world_size=1)


class StackedWork(Work):
    """One virtual worker's computation: its batches, gradients and validation.

    Real and virtual workers have the same training loop, which calls these methods. The numbers are
    those of a real worker; the times are drawn.

    Args:
        gradients: Computes the gradients of all workers.
        model: The worker's parameters and gradient.
        rank: The worker.
        times: Draws the times of its steps.
        owned_rows: Rows of each row group to train on; None: all.
        validates_alone: Whether the worker also validates its own model at the end.
    """

    def __init__(
        self,
        gradients: BatchedGradients,
        model: FlatVectors,
        *,
        rank: int,
        times: ComputeTimes,
        owned_rows: OwnedRows | None,
        validates_alone: bool,
    ) -> None:
        self.model = model
        self._gradients = gradients
        self._rank = rank
        self._times = times
        self._owned_rows = owned_rows
        self.validates_alone = validates_alone
        # Rows of the assignment in reading order, and the positions at which its batches begin and
        # end: step i has the rows _bounds[i] to _bounds[i + 1].
        self._order: Vector = np.empty(0, dtype=np.int64)
        self._bounds: list[int] = [0]
        self._step = 0
        # Rows of the present batch.
        self._rows: Vector = self._order

    @override
    def begin(self, assignment: Assignment) -> None:
        """Begin to train on the rows of an assignment, which also says how many a step has."""
        self._order = self._gradients.train.reading_order(assignment, self._owned_rows)
        self._bounds = [0, *accumulate(assignment.sizes)]
        self._step = 0

    def prefetch(self, assignment: Assignment) -> None:
        """Do nothing: all rows are in memory."""

    @override
    def next_batch(self) -> int:
        """Take the rows of the next step from the reading order; return their number."""
        start = self._bounds[self._step]
        self._step += 1
        stop = self._bounds[self._step]
        self._rows = self._order[start:stop]
        return stop - start

    @override
    def compute_gradient(self) -> Awaitable[None]:
        """Draw the time of the step, and return the wait for its end and so for the gradient."""
        seconds = self._times.draw(len(self._rows))
        return self._gradients.gradient(self._rank, self._rows, seconds)

    @override
    def pop_sums(self) -> Sums:
        """Return the sums of losses and counts since the last call, and reset them."""
        sums = self.running_sums()
        self._gradients.stacked.sums[self._rank] = 0
        return sums

    @override
    def running_sums(self) -> Sums:
        return Sums.from_array(self._gradients.stacked.sums[self._rank])

    @override
    def counters(self) -> Counters:
        stacked = self._gradients.stacked
        if stacked.decorrelation is None:
            return {}
        return {"decorrelated_steps": int(stacked.num_decorrelated[self._rank])}

    @override
    def buffers(self) -> Vector:
        return np.array(self._gradients.stacked.buffers[self._rank])

    @override
    def write_buffers(self, values: Vector) -> None:
        self._gradients.stacked.buffers[self._rank] = values

    @override
    async def validate(self, state: ModelState, part: ValidationPart) -> Sums:
        """Take the virtual time of this worker's part of the validation split.

        Adding up the sums of all parts gives those of the split: the first part returns all of
        them, the other parts return none.
        """
        num_rows = self._gradients.num_val // part.num_parts
        await self._gradients.clock.sleep(self._times.evaluation_seconds(num_rows))
        return Sums() if part.part_index else self._gradients.validate(state)

    @override
    def state(self) -> dict[str, Any]:
        """Return, for a checkpoint, the positions in the random numbers and the virtual time."""
        draws = self._gradients.stacked.draws[self._rank].state()
        return {"times": self._times.state(), "now": self._gradients.clock.now, "draws": draws}

    @override
    def load_state(self, state: dict[str, Any]) -> None:
        self._times.load_state(state["times"])
        self._gradients.stacked.draws[self._rank].load_state(state["draws"])
