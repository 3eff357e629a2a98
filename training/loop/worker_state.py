"""The state of a worker in a checkpoint, and the mean of the workers' buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from training.algorithms.base import Algorithm, mean_over_workers
from training.transports.basics import Vector, is_finite
from training.transports.transport import SharedVector, Transport
from training.workloads.work import Work


class WorkerState(TypedDict):
    """Model, optimiser and algorithm of a worker, as tensors and plain values."""

    current: Tensor
    """(num_parameters,) the worker's current model."""
    optimizer: dict[str, Any]
    algorithm: dict[str, Any]
    work: dict[str, Any]
    buffers: Tensor
    """(num_buffers,)."""


async def worker_state(work: Work, algorithm: Algorithm) -> WorkerState:
    """The state of a worker between two steps."""
    current = work.model.empty()
    await algorithm.current(current)
    return {
        "current": torch.from_numpy(current),
        "optimizer": algorithm.optimizer.state_dict(),
        "algorithm": _arrays_to_tensors(await algorithm.state()),
        "work": work.state(),
        "buffers": torch.from_numpy(work.buffers()),
    }


async def continue_worker(work: Work, algorithm: Algorithm, state: WorkerState) -> None:
    """Continue a worker exactly as it was; all workers together."""
    work.write_buffers(state["buffers"].numpy())
    await algorithm.restore(_tensors_to_arrays(state["algorithm"]))
    algorithm.note_constants()
    work.load_state(state["work"])
    algorithm.optimizer.load_state_dict(state["optimizer"])


async def start_from_joint_model(
    work: Work, algorithm: Algorithm, states: Sequence[WorkerState]
) -> None:
    """Start from the joint model of other workers, with new momentum and moments; all together.

    `states`: of all workers of a checkpoint; none for a new run.
    """
    if states:
        work.model.write(_joint_model(algorithm, states))
        work.write_buffers(_mean_of_finite([state["buffers"].numpy() for state in states]))
    await algorithm.start()
    algorithm.note_constants()


def _joint_model(algorithm: Algorithm, states: Sequence[WorkerState]) -> Vector:
    """The newest model that the method itself holds; else the mean of the workers' models."""
    aged_models: list[tuple[int, Vector]] = []
    for state in states:
        aged_model = algorithm.model_of(_tensors_to_arrays(state["algorithm"]))
        if aged_model is not None:
            aged_models.append(aged_model)
    if aged_models:
        _, newest_model = max(aged_models, key=itemgetter(0))
        return newest_model
    return _mean_of_finite([state["current"].numpy() for state in states])


def _mean_of_finite(vectors: list[Vector]) -> Vector:
    """The mean of the finite vectors; of all, if none is finite."""
    finite = [vector for vector in vectors if is_finite(vector)]
    mean: Vector = np.stack(finite or vectors).mean(axis=0, dtype=np.float64)
    return mean.astype(vectors[0].dtype)


def _arrays_to_tensors(state: Any) -> Any:
    """A nested state with tensors for arrays, since a checkpoint holds tensors."""
    return _convert(state, np.ndarray, torch.from_numpy)


def _tensors_to_arrays(state: Any) -> Any:
    return _convert(state, Tensor, Tensor.numpy)


def _convert(state: Any, leaf_type: type, convert_leaf: Callable[[Any], Any]) -> Any:
    if isinstance(state, dict):
        return {name: _convert(item, leaf_type, convert_leaf) for name, item in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_convert(item, leaf_type, convert_leaf) for item in state)
    return convert_leaf(state) if isinstance(state, leaf_type) else state


class SharedBuffers:
    """Averages the buffers of all workers before a validation; each worker continues with its own.

    Workers that meet for a validation take the exact mean. Workers that wait for nobody publish
    their buffers after each work unit, in a vector that others can read. A network without buffers
    takes no communication.

    Buffers that are not finite do not reach other workers. As running means never recover, their
    worker then takes over the mean, or the last buffers that it published.
    """

    def __init__(self, work: Work, transport: Transport) -> None:
        self._work = work
        self._transport = transport
        self._shared: SharedVector | None = None
        self._published = np.empty(0)

    async def share(self) -> None:
        """Publish the buffers for the first time; all workers together."""
        self._published = self._work.buffers()
        if self._published.size:
            self._shared = await self._transport.shared_vector(self._published)

    async def publish(self) -> None:
        """Let the other workers read the present buffers."""
        if self._shared is None:
            return
        buffers = self._work.buffers()
        if is_finite(buffers):
            await self._shared.add(buffers - self._published)
            self._published = buffers
        else:
            self._work.write_buffers(self._published)

    async def mean(self) -> Vector:
        """The mean of the buffers; all workers together."""
        buffers = self._work.buffers()
        if not buffers.size:
            return buffers
        was_finite = is_finite(buffers)
        await mean_over_workers(buffers, self._transport)
        if not was_finite:
            self._work.write_buffers(buffers)
        return buffers

    async def snapshot(self) -> Vector:
        """The mean of the published buffers, without stopping anyone."""
        buffers = self._work.buffers()
        if self._shared is None:
            return buffers
        total = np.zeros_like(buffers)
        for rank in range(self._transport.world_size):
            await self._shared.read_from_rank(rank, buffers)
            total += buffers
        return total / self._transport.world_size

    async def close(self) -> None:
        """Free the published buffers; all workers together."""
        if self._shared is not None:
            await self._shared.close()
