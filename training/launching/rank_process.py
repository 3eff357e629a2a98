"""The program of one rank of a training run; `training.launching.launcher` starts it.

Its argument is the file of a list, `[{"number": 0, "spec": "run.json"}, ...]`, whose runs it trains
one after the other. Rank 0 prints the progress with the number of the run, one JSON object per
line. An error on any rank ends the whole job; its message goes to `errors/rank-<n>.json` in the
folder of the list.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Final

from training.errors import LaunchError
from training.launching.rank import train
from training.launching.rank_reports import LaunchFiles, RankError
from training.launching.run_spec import read_runs
from training.loop.progress import Progress
from training.loop.watchdog import Watchdog
from training.transports.basics import load_mpi, run_now
from training.transports.mpi import MpiTransport

_SECONDS_BETWEEN_LOOKS: Final = 2.0


def main(argv: list[str]) -> int:
    """Run this rank to its end; returns the exit status.

    It notes how far its start is, waits for all ranks, and trains the runs. After an error it
    writes the error for the launcher, and ends all ranks by MPI.
    """
    runs_path = Path(argv[1])
    files = LaunchFiles(runs_path.parent)
    files.write_heartbeat("has begun, and does not come out of the start of MPI")
    world = load_mpi().COMM_WORLD
    files.write_heartbeat("is in MPI, and waits for the others or for its data")
    transport: MpiTransport | None = None
    threading.Thread(target=_exit_when_orphaned, args=(os.getppid(),), daemon=True).start()
    if world.rank == 0 and "--launched" in argv:
        threading.Thread(target=_exit_when_launcher_ends, daemon=True).start()
    try:
        runs = read_runs(runs_path)
        # All runs have the same number of workers; the first one's limit of a stall holds for all.
        settings = runs[0][1].train
        watchdog = Watchdog(
            files.stalls, files.signs, rank=world.rank, seconds=settings.stall_seconds
        )
        check_world_size(world.size, settings.workers)
        world.Barrier()
        if world.rank == 0:
            files.clear_stalls()
            files.mark_started()
        for run_number, spec in runs:
            transport = MpiTransport(**spec.train.algorithm.transport_options._asdict())
            run_now(transport.barrier())
            on_progress = None if world.rank else partial(_print_progress, run_number)
            train(spec, transport, on_progress=on_progress, watchdog=watchdog)
            transport.close()
    except BaseException as error:  # noqa: BLE001 - after any error, the other ranks must not wait forever
        if not _is_rank_loss(error):
            # The launcher knows of a lost rank anyway, and the loss is no error of this rank.
            try:
                files.report_error(world.rank, error)
            except OSError:
                # This host does not see the folder; the launcher quotes what the ranks print.
                sys.stderr.write(f"{RankError.from_exception(error).message}\n")
        if transport is None:
            world.Abort(1)
        else:
            transport.abort()
    return 0


def _print_progress(run_number: int, progress: Progress) -> None:
    sys.stdout.write(json.dumps({"run": run_number, **progress._asdict()}) + "\n")
    sys.stdout.flush()


def _is_rank_loss(error: BaseException) -> bool:
    """Return whether an error is MPI's message that another rank is gone."""
    mpi = load_mpi()
    return isinstance(error, mpi.Exception) and error.Get_error_class() == mpi.ERR_PROC_FAILED


def check_world_size(started: int, configured: int) -> None:
    """Raise an error if another number of ranks runs together than configured.

    Ranks find each other by PMIx; `srun` without it silently starts N jobs of one rank each.
    """
    if started != configured:
        raise LaunchError(
            f"{started} MPI processes run together, {configured} workers are configured. If srun "
            f"started them, its PMIx does not work here (`srun --mpi=list` lists the types): set "
            f"train.launcher: mpirun, or start by hand with --mpi=pmix or mpirun -n {configured}."
        )


def _exit_when_orphaned(parent: int) -> None:
    """End this rank when its mpirun was killed; it would wait for the others forever.

    A process whose parent has ended gets another parent. `parent`: process number of mpirun.
    """
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)


def _exit_when_launcher_ends() -> None:
    """End this rank when its standard input ends: the launcher keeps it open, and never writes."""
    # The descriptor is read, since a read through sys.stdin in a thread aborts the interpreter at
    # exit.
    while os.read(0, 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
