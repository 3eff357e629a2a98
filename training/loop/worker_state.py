"""The state of a worker's model, optimiser and algorithm in a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import torch

from training.algorithms.base import Algorithm
from training.transports.basics import Vector, is_finite
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


async def start(work: Work, algorithm: Algorithm, parts: Sequence[dict[str, Any]], *, is_same: bool) -> None:
    """Start the algorithm; all workers together.

    `parts`: states of the workers of a checkpoint; none for a new run. `is_same`: whether the only part is this
    worker's own. It then continues exactly as it was, and else from the model of the method, with new momentum and
    moments.
    """
    if is_same:
        (own,) = parts
        work.write_buffers(own["buffers"].numpy())
        await algorithm.restore(_mapped(own["algorithm"], torch.Tensor, torch.Tensor.numpy))
        work.load_state(own["work"])
        algorithm.optimizer.load_state_dict(own["optimizer"])
        return
    if parts:
        work.model.write(_joint_model(algorithm, parts))
        work.write_buffers(_mean([part["buffers"].numpy() for part in parts]))
    await algorithm.start()


def _joint_model(algorithm: Algorithm, parts: Sequence[dict[str, Any]]) -> Vector:
    """The newest joint model of the method, without what workers had not yet sent; else the average of their models."""
    states = [_mapped(part["algorithm"], torch.Tensor, torch.Tensor.numpy) for part in parts]
    kept = [found for found in map(algorithm.model_of, states) if found is not None]
    return max(kept, key=itemgetter(0))[1] if kept else _mean([part["current"].numpy() for part in parts])


def _mean(vectors: Sequence[Vector]) -> Vector:
    """The mean of those vectors that are finite; of all, if none is."""
    chosen = [each for each in vectors if is_finite(each)] or vectors
    mean: Vector = np.mean(chosen, axis=0, dtype=np.float64).astype(vectors[0].dtype)
    return mean


def _mapped(state: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """The state of an algorithm, with all values of a kind changed: a checkpoint holds tensors for arrays."""
    if isinstance(state, dict):
        return {name: _mapped(value, kind, change) for name, value in state.items()}
    return change(state) if isinstance(state, kind) else state
