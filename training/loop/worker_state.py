"""The state of a worker's model, optimiser and algorithm in a checkpoint, and the mean of the workers' buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import torch

from training.algorithms.base import Algorithm, mean_over_workers
from training.transports.basics import Vector, is_finite
from training.transports.transport import SharedVector, Transport
from training.workloads.work import Work


async def worker_state(work: Work, algorithm: Algorithm) -> dict[str, Any]:
    """The state as tensors and plain values."""
    current = work.model.empty()
    await algorithm.current(current)
    return {
        "current": torch.from_numpy(current),
        "optimizer": algorithm.optimizer.state_dict(),
        "algorithm": _mapped(await algorithm.state(), np.ndarray, torch.from_numpy),
        "work": work.state(),
        "buffers": torch.from_numpy(work.buffers()),
    }


async def start(
    work: Work, algorithm: Algorithm, parts: Sequence[dict[str, Any]], *, is_same: bool
) -> None:
    """Start the algorithm; all workers together.

    `parts`: states of the workers of a checkpoint; none for a new run. `is_same`: whether the only part is this
    worker's own. It then continues exactly as it was, and else from the model of the method, with new momentum and
    moments.
    """
    if is_same:
        (own,) = parts
        work.write_buffers(own["buffers"].numpy())
        await algorithm.restore(_mapped(own["algorithm"], torch.Tensor, torch.Tensor.numpy))
        algorithm.note_constants()
        work.load_state(own["work"])
        algorithm.optimizer.load_state_dict(own["optimizer"])
        return
    if parts:
        work.model.write(_joint_model(algorithm, parts))
        work.write_buffers(_mean([part["buffers"].numpy() for part in parts]))
    await algorithm.start()
    algorithm.note_constants()


def _joint_model(algorithm: Algorithm, parts: Sequence[dict[str, Any]]) -> Vector:
    """The newest joint model of the method, without what workers had not yet sent; else the average of their models."""
    states = [_mapped(part["algorithm"], torch.Tensor, torch.Tensor.numpy) for part in parts]
    kept = [found for found in map(algorithm.model_of, states) if found is not None]
    return (
        max(kept, key=itemgetter(0))[1]
        if kept
        else _mean([part["current"].numpy() for part in parts])
    )


def _mean(vectors: Sequence[Vector]) -> Vector:
    """The mean of those vectors that are finite; of all, if none is."""
    chosen = [each for each in vectors if is_finite(each)] or vectors
    mean: Vector = np.mean(chosen, axis=0, dtype=np.float64).astype(vectors[0].dtype)
    return mean


def _mapped(state: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """The state of an algorithm, with all values of a kind changed: a checkpoint holds tensors for arrays."""
    if isinstance(state, dict):
        return {name: _mapped(value, kind, change) for name, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_mapped(value, kind, change) for value in state)
    return change(state) if isinstance(state, kind) else state


class SharedBuffers:
    """Averages the buffers of all workers before a validation; each worker then continues with its own.

    Workers that meet for a validation take the exact mean. Workers that wait for nobody publish their buffers after
    each work unit, in a vector that others can read. A network without buffers takes no communication. Buffers that are
    not finite do not reach other workers; as running means never recover, their worker then takes over the mean, or the
    last ones that it published.
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
        """Let the other workers read the buffers as they are now."""
        if self._shared is not None:
            present = self._work.buffers()
            if is_finite(present):
                await self._shared.add(present - self._published)
                self._published = present
            else:
                self._work.write_buffers(self._published)

    async def mean(self) -> Vector:
        """The mean of the buffers; all workers together."""
        mean = self._work.buffers()
        if mean.size:
            was_finite = is_finite(mean)
            await mean_over_workers(mean, self._transport)
            if not was_finite:
                self._work.write_buffers(mean)
        return mean

    async def snapshot(self) -> Vector:
        """The mean of the published buffers, without stopping anyone."""
        theirs = self._work.buffers()
        if self._shared is None:
            return theirs
        total = np.zeros_like(theirs)
        for rank in range(self._transport.world_size):
            await self._shared.read_from_rank(rank, theirs)
            total += theirs
        return total / self._transport.world_size

    async def close(self) -> None:
        """Free the published buffers; all workers together."""
        if self._shared is not None:
            await self._shared.close()
