"""Validation of the models of a run; the best one is remembered and saved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from training.algorithms.base import Algorithm, consensus_distance
from training.errors import ShardError, TrainingError
from training.flat_model import ModelState
from training.loop.coroutines import require_awaited
from training.loop.metering import Meter
from training.loop.records import RunFiles
from training.loop.worker_state import SharedBuffers
from training.transports.basics import Vector
from training.transports.transport import Transport
from training.workloads.gradients import Sums, reduce_sums
from training.workloads.work import ValidationPart, Work


class BestModel(NamedTuple):
    """The model of the lowest validation loss that a worker has validated."""

    val_loss: float = math.inf
    model: Tensor | None = None
    buffers: Tensor | None = None


class Validator:
    """Validates the model that a run delivers, and remembers the best one.

    Each validation returns the part of a record that is about all workers. Time in it counts as
    validation, except that of messages which the method needs anyway.

    Args:
        work: The validation split and the network.
        algorithm: The method, which has the models.
        transport: Messages to the other workers.
        meter: Measures time.
        buffers: The buffers of all workers.
        num_rows: Rows of an epoch of all workers.
    """

    def __init__(
        self,
        work: Work,
        algorithm: Algorithm,
        transport: Transport,
        meter: Meter,
        buffers: SharedBuffers,
        num_rows: int,
    ) -> None:
        self._work = work
        self._algorithm = algorithm
        self._transport = transport
        self._meter = meter
        self._buffers = buffers
        self._num_rows = num_rows
        self.best = BestModel()
        """The best model that this worker has validated."""

    def restore_best(self, saved_models: Iterable[Mapping[str, Any]]) -> None:
        """Take over the best of some models of a checkpoint, given by the fields of `BestModel`."""
        models = [BestModel(**saved_model) for saved_model in saved_models]
        self.best = min([self.best, *models], key=lambda model: model.val_loss)

    async def validate_together(self, epoch: int, *, is_last: bool) -> dict[str, Any]:
        """Synchronize all workers; each validates the method's joint model on its part.

        The method's joint model is what a run delivers, such as the mean of the workers' models.
        At the end of the run each worker also validates its own model on the whole split, to show
        how far the workers differ.
        """
        work, transport, meter = self._work, self._transport, self._meter
        meter.doing = "at the end of the epoch"
        require_awaited()
        await self._algorithm.quiesce()
        local_model, joint_model = _unwritten(work), _unwritten(work)
        # The worker's own model is copied before `flush`, which may change it.
        with meter.attribute_all_to("validate"):
            await self._algorithm.current(local_model)
            _require_written(local_model, self._algorithm.current)
        await self._algorithm.flush()
        with meter.attribute_all_to("validate"):
            await self._algorithm.result(joint_model)
            require_awaited()
            _require_written(joint_model, self._algorithm.result)
            distance = await consensus_distance(local_model, joint_model, transport)
            state = ModelState(joint_model, await self._buffers.mean())
            share = ValidationPart(transport.rank, transport.world_size)
            sums = await reduce_sums(await work.validate(state, share), transport)
            validation = self._describe(epoch, sums, distance)
            if is_last and transport.world_size > 1 and work.validates_alone:
                local_state = ModelState(local_model, work.buffers())
                local_sums = await work.validate(local_state, ValidationPart(0, 1))
                validation["worker_val_loss"] = local_sums.mean_loss
                validation["worker_val_accuracy"] = local_sums.accuracy
        # All workers have the same result, so only rank 0 keeps the model.
        if transport.rank == 0:
            self._remember_best(sums.mean_loss, state)
        return validation

    async def validate_snapshot(self, epoch: int) -> dict[str, Any]:
        """Validate a snapshot of the model on the whole split, while the other workers train.

        The snapshot may mix models of different steps.
        """
        require_awaited()
        self._meter.doing = "validating"
        model = _unwritten(self._work)
        with self._meter.attribute_all_to("validate"):
            distance = await self._algorithm.snapshot(model)
            require_awaited()
            _require_written(model, self._algorithm.snapshot)
            state = ModelState(model, await self._buffers.snapshot())
            sums = await self._work.validate(state, ValidationPart(0, 1))
        validation = self._describe(epoch, sums, distance)
        self._remember_best(sums.mean_loss, state)
        return validation

    def _describe(self, epoch: int, sums: Sums, distance: float) -> dict[str, Any]:
        """Return the part of a record that is about all workers.

        `sums`: over the validation split. `distance`: consensus distance, a measure of how far the
        workers' models are apart.

        Raises:
            ShardError: The validation split has no events.
        """
        if not sums.samples:
            raise ShardError(
                "the validation split has no events. Make the features again, from more events."
            )
        return {
            "train_rows": self._num_rows,
            "samples_seen_by_all": (epoch + 1) * self._num_rows,
            "consensus_distance": distance,
            "val_loss": sums.mean_loss,
            "val_accuracy": sums.accuracy,
        }

    def _remember_best(self, val_loss: float, state: ModelState) -> None:
        """Keep a model if its loss is the lowest so far; a loss that is NaN is never the lowest."""
        if val_loss < self.best.val_loss:
            model, buffers = torch.from_numpy(state.parameters), torch.from_numpy(state.buffers)
            self.best = BestModel(val_loss, model, buffers)

    async def save_best(self, files: RunFiles) -> None:
        """Save the best model of the run; the worker that has it writes it.

        Each worker knows only the best model that it has validated itself, so all call this
        together.
        """
        transport = self._transport
        # The sum of vectors with one entry per worker gives all losses to each.
        losses = np.zeros(transport.world_size)
        losses[transport.rank] = self.best.val_loss
        await transport.all_reduce_sum(losses)
        best_rank = int(np.argmin(losses))
        _, model, buffers = self.best
        if best_rank == transport.rank and model is not None and buffers is not None:
            files.save_best(ModelState(model.numpy(), buffers.numpy()))


def _unwritten(work: Work) -> Vector:
    """Return a vector of the size of the model, in which no model can have an element.

    An element that stays so shows that a method wrote nothing there.
    """
    vector = work.model.empty()
    vector.fill(np.finfo(vector.dtype).max)
    return vector


def _require_written(vector: Vector, write: Callable[..., object]) -> None:
    """Raise TrainingError if a call of a method left elements of an `_unwritten` vector.

    `write`: the function that was called.
    """
    num_unwritten = np.count_nonzero(vector == np.finfo(vector.dtype).max)
    if num_unwritten:
        raise TrainingError(
            f"{write.__qualname__} left {num_unwritten} of the {vector.size} elements of `out` "
            f"unwritten. Write the model into it, as by `out[:] = ...`; `out = ...` only gives the "
            f"name to another vector"
        )
