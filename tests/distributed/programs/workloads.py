"""What ranks train that no command line can name, for test_workloads.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny_images import TinyImages

from training.launching.rank import train
from training.launching.run_spec import RunSpec
from training.settings import TrainSettings
from training.transports.mpi import MpiTransport


def train_tiny(out: str, selected: dict[str, Any]) -> None:
    """Train the small workload."""
    settings = TrainSettings(**selected)
    transport = MpiTransport(**settings.algorithm.transport_options._asdict())
    train(RunSpec(TinyImages(), settings, Path(out)), transport, on_progress=None)  # type: ignore[arg-type]
    transport.close()
