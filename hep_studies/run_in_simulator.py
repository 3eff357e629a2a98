"""Simulates the runs of a study, as many at a time as there are cores."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from hep_core.plugins import load_from_environment, plugin_error
from hep_studies.run_result import evaluate_on_test, write_diverged, write_result
from hep_studies.simulator.cluster import ClusterSettings
from hep_studies.simulator.simulate import Simulated, simulate
from training.errors import DivergedError, StudyError
from training.flat_model import FlatModel
from training.loop.factories import make_model
from training.readers.batch import Rows
from training.readers.memory import MemoryRows
from training.settings import OptimizerName, TrainSettings
from training.transports.transport import Transport
from training.workloads.workload import Workload, network_dtype

# Runs are stale when the code that they use changes. The plan of their study is not such code.
if TYPE_CHECKING:
    from hep_studies.plan import PlannedRun

#: Fewest parameters of the small network that replaces a larger one in a study of times.
_FEWEST_PARAMETERS: Final = 256
#: Fewest parameters in a message of the small network. A message has whole ones, and may have one
#: too many: so its size is right within one percent.
_FEWEST_IN_MESSAGE: Final = 100

ReportProgress = Callable[[int, int, str], None]
"""Gets the finished work, the total, and a note."""


def simulate_all(
    runs: Sequence[PlannedRun], *, cores: int, code: str, on_progress: ReportProgress
) -> None:
    """Simulate runs in processes of one thread each, as many at a time as there are cores.

    Each run writes its result into its folder. An error or Ctrl-C ends all processes at once.
    `code`: version of the code, stored with each run.

    Raises:
        StudyError: A process was killed, or the system lets processes share no semaphores.
    """
    num_processes = min(cores, len(runs))
    context = multiprocessing.get_context("spawn")
    try:
        pool = ProcessPoolExecutor(num_processes, context, _begin_process)
    except OSError as cause:
        raise StudyError(
            f"processes that simulate need semaphores, and the system makes none here ({cause}). "
            f"They lie in /dev/shm: is it missing, full, or not writable for this user? Mount a "
            f"tmpfs there with mode 1777."
        ) from cause
    try:
        run_of_future = {pool.submit(run_in_pool, run, code): run for run in runs}
        for num_finished, future in enumerate(as_completed(run_of_future), 1):
            # Raises the error of the run, if it has one.
            future.result()
            run = run_of_future[future]
            on_progress(num_finished, len(runs), f"{run.title}, seed {run.train.seed}")
    except BaseException as cause:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.kill()
            process.join()
        if isinstance(cause, BrokenProcessPool):
            raise StudyError(
                "a process that simulates was killed: out of memory? The same command continues; "
                "fewer cores (`taskset`) need less memory."
            ) from cause
        raise
    pool.shutdown()


def _begin_process() -> None:
    """Begin a process of the pool: it ignores Ctrl-C, and ends when its parent process ends.

    On Ctrl-C, the parent ends it. It also loads the plugins of the environment.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    load_from_environment()
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def end_with_parent() -> None:
        # Waits until the parent has ended, also by a kill. A thread can only end the process so.
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def run_in_pool(run: PlannedRun, code: str) -> None:
    """Simulate a run in a process of the pool; see `run_simulated`.

    Raises:
        PluginError: A plugin fails. Its line is in the message, since the traceback of an error
            stays in its process.
    """
    try:
        run_simulated(run, code)
    except Exception as error:
        cause = plugin_error(error)
        if cause is None:
            raise
        raise cause from error


def run_simulated(run: PlannedRun, code: str) -> None:
    """Simulate a run and write its result; a run that diverges has a result too.

    A run of a study of times learns nothing: its workers take a given number of steps. Other runs
    are trained, and their best model predicts the test split. `code`: version of the code.
    """
    if run.cluster is None:
        raise AssertionError(f"{run.folder} is a run of MPI ranks")
    begin = time.perf_counter()
    workload = run.subject.settings.open()
    if run.times_only is not None:
        # One row group for each worker, with exactly the rows of its steps.
        group_rows = [run.train.batch_size * run.times_only] * run.train.workers
        simulated = simulate_times(
            group_rows, run.train, run.cluster, num_parameters=num_parameters(workload)
        )
        seconds = time.perf_counter() - begin
        write_result(run.folder, simulated.records, None, code=code, wall_seconds=seconds)
        return
    try:
        simulated = simulate_workload(workload, run.train, run.cluster)
    except DivergedError:
        seconds = time.perf_counter() - begin
        write_diverged(run.folder, code=code, wall_seconds=seconds)
        return
    if simulated.best is None:
        raise AssertionError("the simulated run kept no model")
    model = initial_model(workload, run.train)
    model.load(simulated.best)
    scores = evaluate_on_test(workload, model.module, run.train)
    seconds = time.perf_counter() - begin
    write_result(run.folder, simulated.records, scores, code=code, wall_seconds=seconds)


def simulate_workload(
    workload: Workload, settings: TrainSettings, cluster: ClusterSettings, **options: Any
) -> Simulated:
    """Train a workload in the simulator, from the same initial weights as on MPI.

    `options`: further arguments of `simulate`.
    """
    return simulate(
        initial_model(workload, settings).module,
        workload.rows("train", settings),
        workload.rows("val", settings),
        settings,
        cluster,
        augmentation=workload.augmentation,
        partition=workload.partition(settings, world_size=settings.workers),
        decorrelation=workload.decorrelation(settings),
        **options,
    )


def initial_model(workload: Workload, settings: TrainSettings) -> FlatModel:
    """Return the network with the initial weights of its seed."""
    return make_model(workload, settings, Transport(), torch.device("cpu"))


def num_parameters(workload: Workload) -> int:
    """Return the number of parameters of the network."""
    return initial_model(workload, TrainSettings()).flat.numel()


class _StandIn(nn.Module):
    """A small network of constant loss and gradient, for runs of which only the times count.

    The times of a simulated run do not depend on what is learnt. No two elements of the gradient
    are equal and none is 0, so that gradient dropping sends as large a share as of a real network.
    """

    def __init__(self, num_parameters: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(num_parameters, dtype=dtype))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return equal logits of two classes for inputs (num_events, 1), which are 1."""
        slopes = torch.linspace(0.5, 1.0, len(self.weights), dtype=self.weights.dtype)
        # Its value is always 0, and its gradient is `slopes`.
        zero = (self.weights - self.weights.detach()) @ slopes
        return torch.cat([inputs * zero, torch.zeros_like(inputs)], dim=1)


def stand_in_size(settings: TrainSettings, num_parameters: int) -> int:
    """Return the number of parameters of the network that replaces one of `num_parameters`.

    It is large enough for whole parameters in the smallest message that the settings make, so that
    each message has the same share of the network.
    """
    share = settings.algorithm.smallest_message(settings.workers)
    num_needed = max(_FEWEST_PARAMETERS, math.ceil(_FEWEST_IN_MESSAGE / share))
    return min(num_needed, num_parameters)


def simulate_times(
    group_rows: Sequence[int],
    settings: TrainSettings,
    cluster: ClusterSettings,
    *,
    num_parameters: int,
) -> Simulated:
    """Simulate a run of which only the times are meaningful.

    A small network replaces a larger one of `num_parameters`. The bandwidths are smaller in the
    same proportion, so that a message takes the same time. `group_rows`: number of events of each
    row group.
    """
    stand_in = _StandIn(stand_in_size(settings, num_parameters), network_dtype(settings))
    scale = len(stand_in.weights) / num_parameters
    scaled_keys = ("bytes_per_second", "memory_bytes_per_second", "ring_above_bytes")
    scaled = {key: scale * getattr(cluster, key) for key in scaled_keys}
    # All workers have the same number of events; whose they are does not matter.
    changes: dict[str, Any] = {"skew": None}
    # The small network has no matrices; the optimiser takes no virtual time.
    if settings.optimizer is OptimizerName.MUON:
        changes["optimizer"] = OptimizerName.ADAMW
    without_skew = settings.model_copy(update=changes)
    return simulate(
        stand_in,
        _equal_rows(group_rows, stand_in.weights.dtype),
        _equal_rows([1], stand_in.weights.dtype),
        without_skew,
        cluster.model_copy(update=scaled),
    )


def _equal_rows(group_rows: Sequence[int], dtype: torch.dtype) -> MemoryRows:
    """Return row groups of these sizes, of events that are all the same: input 1, label 0."""
    num_rows = sum(group_rows)
    labels = torch.zeros(num_rows, dtype=torch.int64)
    ones = torch.ones(num_rows, dtype=dtype)
    rows = Rows((ones[:, None],), labels, ones)
    return MemoryRows(rows, 0, list(group_rows))
