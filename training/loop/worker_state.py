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
    """From the optimiser's `state_dict`: moments, number of steps and learning rate."""
    algorithm: dict[str, Any]
    """What the method itself holds, such as a shared model."""
    work: dict[str, Any]
    """State of the random numbers of the steps."""
    buffers: Tensor
    """(num_buffers,) numbers of the network that are no parameters, such as running means."""


async def worker_state(work: Work, algorithm: Algorithm) -> WorkerState:
    """Collect the state of a worker between two steps."""
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
    """Put a worker exactly into the state of a checkpoint; all workers call this together."""
    work.write_buffers(state["buffers"].numpy())
    await algorithm.restore(_tensors_to_arrays(state["algorithm"]))
    algorithm.note_constants()
    work.load_state(state["work"])
    algorithm.optimizer.load_state_dict(state["optimizer"])


async def start_from_joint_model(
    work: Work, algorithm: Algorithm, states: Sequence[WorkerState]
) -> None:
    """Start from the joint model of other workers, with new momentum and moments.

    This is for a checkpoint of another number of workers, whose states fit no single worker of
    now. All workers call this together.

    `states`: of all workers of the checkpoint; empty for a new run, which starts from the initial
    model.
    """
    if states:
        work.model.write(_joint_model(algorithm, states))
        buffers = [state["buffers"].numpy() for state in states]
        work.write_buffers(_mean_of_finite(buffers, [1.0] * len(buffers)))
    await algorithm.start()
    algorithm.note_constants()


def _joint_model(algorithm: Algorithm, states: Sequence[WorkerState]) -> Vector:
    """Return the model that stands for all workers of a checkpoint.

    It is the newest model that the method itself holds, such as that of a server. If the method
    holds none, it is the mean of the workers' models, with the weights of the method.
    """
    # Each item is the number of changes that a model has had, and the model.
    aged_models: list[tuple[int, Vector]] = []
    weights = []
    for state in states:
        state_of_method = _tensors_to_arrays(state["algorithm"])
        weights.append(algorithm.weight_of(state_of_method))
        aged_model = algorithm.model_of(state_of_method)
        if aged_model is not None:
            aged_models.append(aged_model)
    if aged_models:
        _, newest_model = max(aged_models, key=itemgetter(0))
        return newest_model
    return _mean_of_finite([state["current"].numpy() for state in states], weights)


def _mean_of_finite(vectors: Sequence[Vector], weights: Sequence[float]) -> Vector:
    """Return the mean of those vectors that have no NaN or infinity; of all, if each has.

    `weights`: that of each vector.
    """
    indices = [index for index, vector in enumerate(vectors) if is_finite(vector)]
    indices = indices or list(range(len(vectors)))
    rows = [vectors[index].astype(np.float64) for index in indices]
    mean: Vector = np.average(rows, axis=0, weights=[weights[index] for index in indices])
    return mean.astype(vectors[0].dtype)


def _arrays_to_tensors(state: Any) -> Any:
    """Replace the arrays in a nested state by tensors, which a checkpoint can hold."""
    return _convert(state, np.ndarray, torch.from_numpy)


def _tensors_to_arrays(state: Any) -> Any:
    """Replace the tensors in a nested state by arrays."""
    return _convert(state, Tensor, Tensor.numpy)


def _convert(state: Any, leaf_type: type, convert_leaf: Callable[[Any], Any]) -> Any:
    """Convert the values of one type in nested dictionaries, lists and tuples; copy the rest."""
    if isinstance(state, dict):
        return {name: _convert(item, leaf_type, convert_leaf) for name, item in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_convert(item, leaf_type, convert_leaf) for item in state)
    return convert_leaf(state) if isinstance(state, leaf_type) else state


class SharedBuffers:
    """Averages the buffers of all workers before a validation; each worker continues with its own.

    Buffers are numbers of a network that are no parameters, such as the running means of a batch
    normalisation.

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
        """This worker's published buffers; None before `share`, and without buffers."""
        self._published = np.empty(0)
        """Copy of the buffers that this worker published last."""

    async def share(self) -> None:
        """Publish the buffers for the first time; all workers call this together."""
        self._published = self._work.buffers()
        if self._published.size:
            self._shared = await self._transport.shared_vector(self._published)

    async def publish(self) -> None:
        """Let the other workers read the present buffers.

        Buffers that are not finite are replaced by those that were published last.
        """
        if self._shared is None:
            return
        buffers = self._work.buffers()
        if is_finite(buffers):
            # A shared vector takes changes only, so the difference is added.
            await self._shared.add(buffers - self._published)
            self._published = buffers
        else:
            self._work.write_buffers(self._published)

    async def mean(self) -> Vector:
        """Return the mean of the buffers of all workers, which call this together.

        A worker whose own buffers are not finite takes over the mean.
        """
        buffers = self._work.buffers()
        if not buffers.size:
            return buffers
        was_finite = is_finite(buffers)
        await mean_over_workers(buffers, self._transport)
        if not was_finite:
            self._work.write_buffers(buffers)
        return buffers

    async def snapshot(self) -> Vector:
        """Return the mean of the buffers that all workers have published; nobody waits for it."""
        buffers = self._work.buffers()
        if self._shared is None:
            return buffers
        total = np.zeros_like(buffers)
        for rank in range(self._transport.world_size):
            await self._shared.read_from_rank(rank, buffers)
            total += buffers
        return total / self._transport.world_size

    async def close(self) -> None:
        """Free the published buffers; all workers call this together."""
        if self._shared is not None:
            await self._shared.close()
