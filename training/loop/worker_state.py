"""The state of a worker's model, optimiser and algorithm in a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from training.algorithms.base import Algorithm
from training.workloads.work import Work


async def worker_state(work: Work, algorithm: Algorithm) -> dict[str, Any]:
    """The state as tensors and plain values."""
    published, current = work.model.empty(), work.model.empty()
    await algorithm.published(published)
    await algorithm.current(current)
    return {
        "published": torch.from_numpy(published),
        "current": torch.from_numpy(current),
        "optimizer": algorithm.optimizer.state_dict(),
        "algorithm": algorithm.state(),
        "work": work.state(),
        "skipped": algorithm.counts.skipped,
    }


async def start(work: Work, algorithm: Algorithm, parts: Sequence[dict[str, Any]], *, is_same: bool) -> None:
    """Start the algorithm; all workers together.

    Args:
        work: The worker's computation.
        algorithm: Its algorithm.
        parts: States of the workers of a checkpoint; none for a new run.
        is_same: Whether the only part is this worker's own. It then continues exactly as it was, and else from the
            average model, with new momentum and moments.
    """
    model = work.model
    if is_same:
        (own,) = parts
        model.write(own["published"].numpy())
    elif parts:
        models = [part["current"].numpy() for part in parts]
        model.write(np.mean(models, axis=0, dtype=np.float64).astype(models[0].dtype))
    await algorithm.start()
    if is_same:
        algorithm.load_state(own["algorithm"])
        work.load_state(own["work"])
        algorithm.optimizer.load_state_dict(own["optimizer"])
