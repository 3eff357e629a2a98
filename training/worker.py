"""One rank of a training run: `mpirun -n N python -m training.worker SPEC.json`, which `training.launcher` does.

Rank 0 prints one JSON object a line with the progress. An error on any rank ends the whole job: its message goes to
`errors/rank-<n>.json` beside the spec.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Final

import torch

from features.errors import FeatureError
from models.errors import ModelError
from training.errors import LaunchError, TrainingError
from training.trainer import Progress, RunSpec, train
from training.transport import MpiTransport

_SECONDS_BETWEEN_LINES: Final = 0.2


class ProgressLines:
    """Prints progress as JSON lines, rank 0 only and not too often."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._last = 0.0

    def __call__(self, progress: Progress) -> None:
        """Print it, if it is time again or an epoch is over."""
        if self._rank or (
            time.monotonic() - self._last < _SECONDS_BETWEEN_LINES and progress.step < progress.num_steps
        ):
            return
        self._last = time.monotonic()
        sys.stdout.write(json.dumps(progress._asdict()) + "\n")
        sys.stdout.flush()


def main(argv: list[str]) -> int:
    """Run this rank to its end; returns the exit status."""
    spec_path = Path(argv[1])
    transport = MpiTransport()
    if transport.rank == 0 and "--launched" in argv:
        threading.Thread(target=_exit_when_launcher_ends, daemon=True).start()
    torch.set_num_threads(1)
    try:
        spec = RunSpec.load(spec_path)
        check_world_size(transport.world_size, spec.train.workers)
        train(spec, transport, on_progress=ProgressLines(transport.rank))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the other ranks must not wait for this one for ever
        _report(error, spec_path, transport.rank)
        transport.abort()
    return 0


def check_world_size(started: int, configured: int) -> None:
    """Refuse a job of another size than configured: `srun` without PMIx silently starts N jobs of one rank each.

    Raises:
        LaunchError: The sizes differ.
    """
    if started != configured:
        raise LaunchError(
            f"{started} MPI processes run together, {configured} workers are configured. If srun started them, it "
            f"needs --mpi=pmix; by hand, give mpirun -n {configured}."
        )


def _report(error: BaseException, spec_path: Path, rank: int) -> None:
    content = {
        "known": isinstance(error, TrainingError | ModelError | FeatureError),
        "message": str(error) or type(error).__name__,
        "traceback": traceback.format_exc(),
    }
    folder = spec_path.parent / "errors"
    folder.mkdir(exist_ok=True)
    path = folder / f"rank-{rank}.json"
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(content), encoding="utf-8")
    unfinished.replace(path)


def _exit_when_launcher_ends() -> None:
    """The launcher holds our standard input open and never writes: its end means that the launcher is gone."""
    # Not through sys.stdin: a thread inside its buffer makes the interpreter abort at exit.
    while os.read(0, 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
