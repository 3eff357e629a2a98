"""Computes gradients of many virtual workers together: their parameters and gradients are rows of two matrices."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Generator, Mapping
from copy import deepcopy
from itertools import accumulate
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from typing_extensions import override

from hep_studies.simulator.cluster import ComputeTimes
from hep_studies.simulator.virtual_time import VirtualClock
from training.compiled.engines import Batches, compiled_engine
from training.flat_model import FlatModel, FlatVectors, ModelState
from training.readers.batch import Rows
from training.readers.memory import MemoryRows
from training.readers.sharding import Assignment, OwnedRows
from training.transports.basics import Vector
from training.workloads.draws import Augmentation, Draws
from training.workloads.gradients import Sums, TorchGradients, compute_sums
from training.workloads.work import ValidationPart, Work

_VALIDATED_AT_ONCE: Final = 2048


class StackedModels:
    """The parameters of all virtual workers as rows of one matrix; likewise their gradients, and their buffers.

    `module`: the network; every worker starts with its parameters and buffers. `augmentation`: changes the images of
    each batch; None for no change.
    """

    def __init__(
        self,
        module: nn.Module,
        world_size: int,
        *,
        seed: int = 0,
        augmentation: Augmentation | None = None,
    ) -> None:
        self.model = FlatModel(deepcopy(module).train())
        """A model to load the parameters of any worker into."""
        # Compiled code picks its batches from rows that nobody changes.
        self._engine = None if augmentation else compiled_engine(self.model.module)
        self._torch = TorchGradients(self.model)
        self.parameters = self.model.flat.detach().repeat(world_size, 1)
        """(world_size, num_parameters)."""
        self.gradients = torch.zeros_like(self.parameters)
        """(world_size, num_parameters)."""
        self._host_parameters, self._host_gradients = (
            self.parameters.numpy(),
            self.gradients.numpy(),
        )
        self.buffers = np.tile(self.model.buffers(), (world_size, 1))
        """(world_size, num_buffers) float64."""
        self.draws = [
            Draws(seed=seed, rank=rank, augmentation=augmentation) for rank in range(world_size)
        ]
        """The random numbers of each worker."""
        self.sums = np.zeros((world_size, 4))
        """Sums of each worker: loss, weight, correct, samples."""

    def row(self, rank: int) -> FlatVectors:
        """The model of one worker."""
        return FlatVectors(
            nn.Parameter(self.parameters[rank], requires_grad=False), self.gradients[rank]
        )

    def compute(self, batches: Mapping[int, Vector], rows: Rows) -> None:
        """Compute the gradients of some workers at their parameters, into `gradients`, and add to `sums`.

        `batches`: the numbers of the rows of each worker's batch, by its rank. `rows`: the rows to pick from.
        """
        if self._engine is not None:
            order = np.concatenate(list(batches.values()))
            bounds = np.cumsum([0, *map(len, batches.values())])
            ranks = np.fromiter(batches, np.int64, len(batches))
            chosen = Batches(ranks, order, bounds)
            self._engine.gradients(
                self._host_parameters, self._host_gradients, rows, chosen, self.sums
            )
            return
        for rank, batch in batches.items():
            self.model.load(ModelState(self._host_parameters[rank], self.buffers[rank]))
            self._torch.compute(self.draws[rank].prepare(rows.batch(batch), for_torch=True))
            self.model.read_gradient(self._host_gradients[rank])
            self.buffers[rank] = self.model.buffers()
            self.sums[rank] += self._torch.pop_sums()


class BatchedGradients:
    """Evaluates the gradients of all computing workers together, when the first one is needed.

    A worker's parameters and batch do not change while it computes, so the gradient may be evaluated at any time within
    this period.
    """

    def __init__(
        self, clock: VirtualClock, stacked: StackedModels, train: MemoryRows, val: MemoryRows
    ) -> None:
        self.clock = clock
        self.stacked = stacked
        self.train = train
        self._val = val
        self._pending: dict[int, Vector] = {}
        self.num_val = len(val)

    @types.coroutine
    def gradient(self, rank: int, rows: Vector, seconds: float) -> Generator[float, None, None]:
        """Let a worker compute on some rows, for some virtual time."""
        self._pending[rank] = rows
        yield self.clock.now + seconds
        if rank in self._pending:
            self._evaluate()

    def _evaluate(self) -> None:
        self.stacked.compute(self._pending, self.train.rows)
        self._pending.clear()

    def validate(self, state: ModelState) -> Sums:
        """Sums over the whole validation split."""
        model, sums = self.stacked.model, Sums()
        model.load(state)
        model.module.eval()
        with torch.inference_mode():
            for batch in self._val.batches(_VALIDATED_AT_ONCE):
                sums = sums.combine(
                    compute_sums(model.module(*batch.inputs), batch.labels, batch.weights)
                )
        model.module.train()
        return sums


class StackedWork(Work):
    """One virtual worker's computation.

    `owned_rows`: rows of each row group to train on; None: all.
    """

    def __init__(
        self,
        evaluator: BatchedGradients,
        model: FlatVectors,
        *,
        rank: int,
        times: ComputeTimes,
        owned_rows: OwnedRows | None,
        validates_alone: bool,
    ) -> None:
        self.model = model
        self._evaluator = evaluator
        self._rank = rank
        self._times, self._owned_rows = times, owned_rows
        self.validates_alone = validates_alone
        self._order: Vector = np.empty(0, dtype=np.int64)
        self._bounds: list[int] = [0]
        self._step = 0
        self._rows: Vector = self._order

    @override
    def begin(self, assignment: Assignment) -> None:
        self._order = self._evaluator.train.reading_order(assignment, self._owned_rows)
        self._bounds = [0, *accumulate(assignment.sizes)]
        self._step = 0

    def prefetch(self, assignment: Assignment) -> None:
        """Do nothing: all rows are in memory."""

    @override
    def next_batch(self) -> int:
        start = self._bounds[self._step]
        self._step += 1
        stop = self._bounds[self._step]
        self._rows = self._order[start:stop]
        return stop - start

    @override
    def compute_gradient(self) -> Awaitable[None]:
        return self._evaluator.gradient(self._rank, self._rows, self._times.draw(len(self._rows)))

    @override
    def pop_sums(self) -> Sums:
        sums = self.running_sums()
        self._evaluator.stacked.sums[self._rank] = 0
        return sums

    @override
    def running_sums(self) -> Sums:
        return Sums.from_array(self._evaluator.stacked.sums[self._rank])

    @override
    def buffers(self) -> Vector:
        return np.array(self._evaluator.stacked.buffers[self._rank])

    @override
    def write_buffers(self, values: Vector) -> None:
        self._evaluator.stacked.buffers[self._rank] = values

    @override
    async def validate(self, state: ModelState, part: ValidationPart) -> Sums:
        """Validate for as long as the gradients of a third of the rows take; the first worker evaluates all parts."""
        await self._evaluator.clock.sleep(
            self._times.evaluating(self._evaluator.num_val // part.num_parts)
        )
        return Sums() if part.part else self._evaluator.validate(state)

    @override
    def state(self) -> dict[str, Any]:
        draws = self._evaluator.stacked.draws[self._rank].state()
        return {"times": self._times.state(), "now": self._evaluator.clock.now, "draws": draws}

    @override
    def load_state(self, state: dict[str, Any]) -> None:
        self._times.load_state(state["times"])
        self._evaluator.stacked.draws[self._rank].load_state(state["draws"])
