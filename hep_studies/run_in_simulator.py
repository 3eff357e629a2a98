"""Simulates the runs of a study, as many at a time as there are cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from hep_core.plugins import load_from_environment
from hep_studies.run_result import scores_of, write_diverged, write_result
from hep_studies.simulator.cluster import ClusterSettings
from hep_studies.simulator.simulate import Simulated, simulate
from training.errors import DivergedError, StudyError
from training.flat_model import FlatModel
from training.loop.factories import make_model
from training.readers.batch import Rows
from training.readers.memory import MemoryRows
from training.settings import TrainSettings
from training.transports.transport import Transport
from training.workloads.workload import Workload

# The plan of a study is no code of its runs, which are stale when their code changes.
if TYPE_CHECKING:
    from hep_studies.plan import PlannedRun

_FLOAT_BYTES: Final = {"float32": 4, "float64": 8}
_STAND_IN_PARAMETERS: Final = 256

Tell = Callable[[int, int, str], None]
"""Called with the finished part, the total, and a note."""


def simulate_all(runs: Sequence[PlannedRun], *, cores: int, code: str, on_progress: Tell) -> None:
    """Simulate runs in as many processes of one thread each; at an error or Ctrl-C all end at once.

    `code`: version of the code, stored with each run. Raises a StudyError if a process was killed.
    """
    pool = ProcessPoolExecutor(min(cores, len(runs)), multiprocessing.get_context("spawn"), _begin)
    try:
        waiting = {pool.submit(run_simulated, run, code): run for run in runs}
        for done, future in enumerate(as_completed(waiting), 1):
            future.result()
            on_progress(
                done, len(runs), f"{waiting[future].title}, seed {waiting[future].train.seed}"
            )
    except BaseException as cause:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.kill()
            process.join()
        if isinstance(cause, BrokenProcessPool):
            raise StudyError(
                "a process that simulates was killed: out of memory? The same command continues; fewer cores "
                "(`taskset`) need less memory."
            ) from cause
        raise
    pool.shutdown()


def _begin() -> None:
    """Begin a process of the pool: it leaves Ctrl-C to its parent, and ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    load_from_environment()
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def end_with_parent() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def run_simulated(run: PlannedRun, code: str) -> None:
    """Simulate a run, and write its result; a run that diverges is a result too."""
    if run.cluster is None:
        raise AssertionError(f"{run.folder} is a run of MPI ranks")
    workload, settings = run.subject.settings.open(), run.train
    if run.times_only is not None:
        rows = [settings.batch_size * run.times_only] * settings.workers
        timed = simulate_times(rows, settings, run.cluster, num_parameters=num_parameters(workload))
        write_result(run.folder, timed.records, None, code=code)
        return
    try:
        found = simulate_workload(workload, settings, run.cluster)
    except DivergedError:
        write_diverged(run.folder, code=code)
        return
    if found.best is None:
        raise AssertionError("the simulated run kept no model")
    model = fresh_model(workload, settings)
    model.load(found.best)
    write_result(run.folder, found.records, scores_of(workload, model.module, settings), code=code)


def simulate_workload(
    workload: Workload, settings: TrainSettings, cluster: ClusterSettings, **how: Any
) -> Simulated:
    """Train a workload in the simulator, from the same initial weights as on MPI; `how`: arguments of `simulate`."""
    train, val = (workload.rows(split, settings) for split in ("train", "val"))
    module, partition = (
        fresh_model(workload, settings).module,
        workload.partition(settings, world_size=settings.workers),
    )
    return simulate(
        module,
        train,
        val,
        settings,
        cluster,
        augmentation=workload.augmentation,
        partition=partition,
        **how,
    )


def fresh_model(workload: Workload, settings: TrainSettings) -> FlatModel:
    """The network with the initial weights of its seed."""
    return make_model(workload, settings, Transport(), torch.device("cpu"))


def num_parameters(workload: Workload) -> int:
    """Number of parameters of the network."""
    return fresh_model(workload, TrainSettings()).flat.numel()


class _StandIn(nn.Module):
    """A network of constant loss and gradient, to simulate times, which do not depend on the learnt weights.

    No two elements of its gradient are equal and none is 0, so that gradient dropping sends as many as it should.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(_STAND_IN_PARAMETERS))

    def forward(self, inputs: Tensor) -> Tensor:
        """Two classes of equal probability for each of the inputs (num_events, 1), which are 1."""
        slopes = torch.linspace(0.5, 1.0, _STAND_IN_PARAMETERS, dtype=self.weights.dtype)
        zero = (self.weights - self.weights.detach()) @ slopes
        return torch.cat([inputs * zero, torch.zeros_like(inputs)], dim=1)


def simulate_times(
    group_rows: Sequence[int],
    settings: TrainSettings,
    cluster: ClusterSettings,
    *,
    num_parameters: int,
) -> Simulated:
    """A run on a simulated cluster; only its times are meaningful.

    A small network replaces that of `num_parameters`, with links slower in proportion. `group_rows`: number of events
    of each row group.
    """
    scale = (
        _STAND_IN_PARAMETERS
        * _FLOAT_BYTES["float32"]
        / (num_parameters * _FLOAT_BYTES[settings.precision])
    )
    scaled = ("bytes_per_second", "memory_bytes_per_second", "ring_above_bytes")
    slower = cluster.model_copy(update={name: scale * getattr(cluster, name) for name in scaled})
    train, val = (
        MemoryRows(
            Rows((torch.ones(size, 1),), torch.zeros(size, dtype=torch.int64), torch.ones(size)),
            0,
            groups,
        )
        for size, groups in ((sum(group_rows), list(group_rows)), (1, [1]))
    )
    # Whose events they are does not matter: all workers have the same number.
    return simulate(_StandIn(), train, val, settings.model_copy(update={"skew": None}), slower)
