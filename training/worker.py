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
from training.launch_files import LaunchFiles
from training.run import RunSpec, train
from training.settings import GOSSIP
from training.trainer import Progress
from training.transports.mpi import MpiTransport
from training.transports.ulfm import is_rank_loss, leave, survivors
from training.watchdog import Watchdog

_SECONDS_BETWEEN_LOOKS: Final = 2.0


def main(argv: list[str]) -> int:
    """Run this rank to its end; returns the exit status."""
    spec_path = Path(argv[1])
    files = LaunchFiles(spec_path.parent)
    spec = RunSpec.load(spec_path)
    transport = MpiTransport(protocol=spec.train.exchange, overlap=spec.train.overlap)
    threading.Thread(target=_exit_when_orphaned, args=(os.getppid(),), daemon=True).start()
    if transport.rank == 0 and "--launched" in argv:
        threading.Thread(target=_exit_when_launcher_ends, daemon=True).start()
    torch.set_num_threads(1)
    try:
        check_world_size(transport.world_size, spec.train.workers)
        if transport.rank == 0:
            files.say_started()
        _train_with_survivors(spec, transport, files)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the other ranks must not wait for this one for ever
        _report(error, files, transport.rank)
        transport.abort()
    return 0


def _train_with_survivors(spec: RunSpec, transport: MpiTransport, files: LaunchFiles) -> None:
    """Train; when a rank is lost and the run may shrink, go on from the last checkpoint with those that are left."""
    may_shrink = spec.train.on_rank_loss == "shrink" and spec.train.algorithm not in GOSSIP
    watchdog = Watchdog(files.stalls, rank=transport.rank, seconds=spec.train.stall_seconds)
    has_lost = False
    while True:
        try:
            train(spec, transport, on_progress=_nothing if transport.rank else print_progress, watchdog=watchdog)
        except Exception as error:
            if not (may_shrink and is_rank_loss(error)):
                raise
            transport = survivors(transport)
            has_lost, watchdog.rank = True, transport.rank
            lost = spec.train.workers - transport.world_size
            spec = spec._replace(train=spec.train.model_copy(update={"workers": transport.world_size}))
            if transport.rank == 0:
                files.note_loss(f"{lost} rank(s) lost; {transport.world_size} went on from the last checkpoint")
        else:
            if has_lost:
                leave(transport)
            return


def print_progress(progress: Progress) -> None:
    """A JSON line for the launcher."""
    sys.stdout.write(json.dumps(progress._asdict()) + "\n")
    sys.stdout.flush()


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


def _report(error: BaseException, files: LaunchFiles, rank: int) -> None:
    content = {
        "known": isinstance(error, TrainingError | ModelError | FeatureError),
        "message": str(error) or type(error).__name__,
        "traceback": traceback.format_exc(),
    }
    files.report_error(rank, content)


def _nothing(_: Progress) -> None:
    pass


def _exit_when_orphaned(parent: int) -> None:
    """A rank whose mpirun was killed would else spin for ever, waiting for the others."""
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)


def _exit_when_launcher_ends() -> None:
    """The launcher holds our standard input open and never writes: its end means that the launcher is gone."""
    # Not through sys.stdin: a thread inside its buffer makes the interpreter abort at exit.
    while os.read(0, 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
