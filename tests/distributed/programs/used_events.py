"""Which events each rank trains on, for test_every_event_is_used.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

from training.launching.rank import RunSpec, train
from training.transports.mpi import MpiTransport
from training.workloads.work import ReaderWork


def noted(runs: list[str]) -> list[list[float]]:
    """Train the runs of these files; for each the first feature of every event of every step of this rank."""
    return [_noted(RunSpec.load(Path(path))) for path in runs]


def _noted(spec: RunSpec) -> list[float]:
    found: list[float] = []
    next_batch = ReaderWork.next_batch

    def noting(self: Any) -> int:
        size = next_batch(self)
        found.extend(self._batch.inputs[0][:, 0].tolist())
        return size

    transport = MpiTransport(**spec.train.algorithm.transport_options._asdict())
    with mock.patch.object(ReaderWork, "next_batch", noting):
        train(spec, transport, on_progress=None)
    transport.close()
    return found
