"""Small checkpoints, as ranks write them."""

from __future__ import annotations

from typing import Any

import torch

from training.loop.checkpoints import Checkpoint, CheckpointFolder
from training.readers.units import Position


def write_checkpoint(
    folder: CheckpointFolder, position: Position, *, workers: int = 2, value: float = 0.0
) -> Checkpoint:
    """Write a complete checkpoint of a few numbers."""
    for rank in range(workers):
        document = {"value": torch.full((100,), value + rank), "name": "x"}
        folder.write_rank([position], workers, rank, document)
    folder.complete([position], workers)
    return require_latest(folder)


def require_latest(folder: CheckpointFolder) -> Checkpoint:
    checkpoint = folder.latest()
    assert checkpoint is not None
    return checkpoint


def load(checkpoint: Checkpoint, rank: int) -> dict[str, Any]:
    """Load content that a test wrote."""
    return dict(checkpoint.load(rank))
