"""The files of a run: records of each rank, the best model, checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from typing_extensions import override

from training.loop.checkpoints import CheckpointFolder
from training.loop.scalars import TensorBoardScalars
from training.transports.transport import Vector


class RunFiles(Protocol):
    """Storage of one worker's results."""

    keeps_checkpoints: bool

    def begin(self, history: Sequence[dict[str, Any]]) -> None:
        """Begin a run, or resume it after these records."""

    def record(self, record: dict[str, Any]) -> None:
        """Add an epoch's record."""

    def keep_best(self, parameters: Vector) -> None:
        """Keep the average model, which is the best so far."""

    def write_checkpoint(self, position: tuple[int, int], content: dict[str, Any]) -> None:
        """Write this worker's part of a checkpoint; position is the epoch and the number of its finished steps."""

    def complete_checkpoint(self, position: tuple[int, int]) -> None:
        """Complete a checkpoint after all workers have written their parts."""


class DiskFiles(RunFiles):
    """Files on disk: `metrics/rank-<n>.jsonl` (one line per epoch, flushed at once), the best model, `checkpoints/`.

    Args:
        out_dir: Folder of the run.
        rank: Rank of the worker.
        world_size: Number of ranks.
        digest: Digest of the settings; see `training.loop.checkpoints.settings_digest`.
        save_model: Writes the best model with the given parameters; called on rank 0.
        scalars: Writes numbers of rank 0 for TensorBoard; None for none.
    """

    keeps_checkpoints = True

    def __init__(
        self,
        out_dir: Path,
        *,
        rank: int,
        world_size: int,
        digest: str,
        save_model: Callable[[Vector], None],
        scalars: TensorBoardScalars | None = None,
    ) -> None:
        self._metrics = out_dir / "metrics" / f"rank-{rank}.jsonl"
        self._metrics.parent.mkdir(exist_ok=True)
        self._rank, self._world_size = rank, world_size
        self._save_model = save_model
        self._scalars = scalars if rank == 0 else None
        self.checkpoints = CheckpointFolder(out_dir / "checkpoints", digest)

    @override
    def begin(self, history: Sequence[dict[str, Any]]) -> None:
        """Write the records; they replace those that an interrupted run wrote after its checkpoint."""
        self._metrics.write_text("".join(json.dumps(record) + "\n" for record in history), encoding="utf-8")
        if self._rank == 0:
            for path in self._metrics.parent.glob("rank-*.jsonl"):
                if int(path.stem.removeprefix("rank-")) >= self._world_size:
                    path.unlink()

    @override
    def record(self, record: dict[str, Any]) -> None:
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        if self._scalars is not None:
            self._scalars.write(record)

    @override
    def keep_best(self, parameters: Vector) -> None:
        if self._rank == 0:
            self._save_model(parameters)

    @override
    def write_checkpoint(self, position: tuple[int, int], content: dict[str, Any]) -> None:
        self.checkpoints.write_rank(position, self._world_size, self._rank, content)

    @override
    def complete_checkpoint(self, position: tuple[int, int]) -> None:
        if self._rank == 0:
            self.checkpoints.complete(position, self._world_size)

    def close(self) -> None:
        """Close the files at the end of the run."""
        if self._scalars is not None:
            self._scalars.close()


class MemoryFiles(RunFiles):
    """Records and best parameters in memory, without files on disk."""

    keeps_checkpoints = False

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.best: Vector | None = None

    @override
    def begin(self, history: Sequence[dict[str, Any]]) -> None:
        self.records = list(history)

    @override
    def record(self, record: dict[str, Any]) -> None:
        self.records.append(record)

    @override
    def keep_best(self, parameters: Vector) -> None:
        self.best = parameters.copy()

    def write_checkpoint(self, position: tuple[int, int], content: dict[str, Any]) -> None:
        """There are none."""

    def complete_checkpoint(self, position: tuple[int, int]) -> None:
        """There are none."""
