"""A program for MPI ranks that sleep for the time of a step and exchange the messages of a method.

`time_checks` compares the times that it measures with those of the simulator. All workloads are
measured once, then all again, and so on (A B C A B C ...), so that other work of the machine, which
comes and goes, disturbs all alike.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from torch import nn

from hep_core.plugins import after_loading
from hep_studies.other_work import OtherWork
from hep_studies.run_result import training_seconds
from hep_studies.simulator.cluster import ClusterSettings, ComputeTimes
from training.algorithms.base import VectorModel
from training.flat_model import FlatModel, ModelState
from training.launching.message_probe import answer
from training.loop.factories import make_algorithm
from training.loop.metering import Meter, MeteredTransport
from training.loop.records import MemoryFiles, Record
from training.loop.summary import summarize_rank, summarize_sums
from training.loop.trainer import Trainer
from training.readers.sharding import Assignment
from training.settings import TrainSettings
from training.transports.basics import Vector, run_now
from training.transports.mpi import MpiTransport
from training.workloads.gradients import Sums
from training.workloads.work import ValidationPart

#: Arguments of `prctl`: the option PR_SET_TIMERSLACK, and a value [ns]. Linux wakes a sleeper up
#: to 50 us late; this makes it 1 us.
_TIMER_SLACK: Final = (29, 1000)


class SyntheticWorkload(NamedTuple):
    """A training whose workers sleep instead of computing, and exchange a method's messages."""

    method: str
    step_seconds: float
    """Mean time of a step without messages [s]."""
    train: TrainSettings
    cluster: ClusterSettings
    """Gives the time for which a step sleeps; its network is not used."""
    num_parameters: int
    """Size of the vectors in messages."""
    rows: list[int]
    """Number of events of each worker and epoch."""

    @property
    def key(self) -> tuple[str, float]:
        """Method and time of a step, which no two workloads of a study share."""
        return self.method, self.step_seconds


class MeasuredStep(NamedTuple):
    """A measurement of the steps of a workload."""

    seconds: float
    """Time of a step with its messages [s]."""
    load: float
    """Number of cores that other work kept busy meanwhile."""
    steps_per_cycle: float = 0.0
    """Steps of a worker between two sums of a shard, see `steps_per_cycle`."""


#: The file that the ranks read.
WORKLOADS: Final = TypeAdapter(list[SyntheticWorkload])
# Plugins add methods, whose settings the adapter then has.
after_loading(partial(WORKLOADS.rebuild, force=True))


class _SleepingWork:
    """The computation of a worker that sleeps: a step takes a drawn time, its gradient is constant.

    The training loop calls these methods as those of a real worker.
    """

    validates_alone: bool = False

    def __init__(self, num_parameters: int, times: ComputeTimes) -> None:
        module = nn.Module()
        module.weights = nn.Parameter(torch.zeros(num_parameters))
        self.model: VectorModel = FlatModel(module)
        # Gradient dropping sorts the elements, so that no two may be equal.
        self._gradient = np.linspace(0.5, 1.0, num_parameters, dtype=np.float32)
        self._times = times
        # Numbers of events of the batches to come, of the present one, and of all since `pop_sums`.
        self._batch_sizes: Iterator[int] = iter(())
        self._batch_size = 0
        self._num_samples = 0

    def begin(self, assignment: Assignment) -> None:
        self._batch_sizes = iter(assignment.sizes)

    def prefetch(self, assignment: Assignment) -> None:
        """Do nothing: there is nothing to read."""

    def write_buffers(self, values: Vector) -> None:
        """Do nothing: there are no buffers."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Do nothing: there is no state."""

    def next_batch(self) -> int:
        self._batch_size = next(self._batch_sizes)
        self._num_samples += self._batch_size
        return self._batch_size

    async def compute_gradient(self) -> None:
        """Write the constant gradient into the model, and sleep for the drawn time of the step."""
        self.model.write_gradient(self._gradient)
        time.sleep(self._times.draw(self._batch_size))

    def pop_sums(self) -> Sums:
        sums = self.running_sums()
        self._num_samples = 0
        return sums

    def running_sums(self) -> Sums:
        """Return a loss and weight of 1, nothing predicted correctly, and the number of events."""
        return Sums(1.0, 1.0, 0.0, self._num_samples)

    def counters(self) -> dict[str, Any]:
        return {}

    def buffers(self) -> Vector:
        return np.empty(0)

    def state(self) -> dict[str, Any]:
        return {}

    async def validate(self, state: ModelState, part: ValidationPart) -> Sums:  # noqa: ARG002 - of a `Work`
        return Sums(1.0, 1.0, 0.0, 1)


def seconds_and_steps(records: Sequence[Record], num_epochs: int) -> NDArray[np.float64]:
    """Return an array (2, num_epochs) of one rank: training time [s] and number of steps.

    An epoch without a record has 0.
    """
    sums = np.zeros((2, num_epochs))
    for record in records:
        sums[:, record["epoch"]] = training_seconds(record), record["steps"]
    return sums


def fastest_step(sums: NDArray[np.float64]) -> float:
    """Return the mean time of a step in the fastest epoch, without the first and last epoch [s].

    The fastest one counts since other work on the machine only adds to the time. `sums`: (2,
    num_epochs), sum of `seconds_and_steps` over the ranks.
    """
    seconds, steps = sums[:, 1:-1]
    has_steps = steps > 0
    return float((seconds[has_steps] / steps[has_steps]).min())


def steps_per_cycle(ranks: Iterable[Sequence[Record]]) -> float:
    """Return the steps of a worker between two sums of a shard, a mean over the ranks.

    It is 0 for methods without a joint model. What such a method learns depends on it.
    """
    sums = summarize_sums([summarize_rank(list(records)) for records in ranks])
    return sums.get("steps_per_cycle", 0.0)


def measure_step(workload: SyntheticWorkload, transport: MpiTransport) -> MeasuredStep:
    """Return the measurement of a step with its messages; only the load is that of this rank.

    All ranks call it together. They train the workload by the training loop of a real run, and add
    up what they measured.
    """
    settings = workload.train
    other_work = OtherWork()
    meter = Meter(transport.now)
    times = ComputeTimes(workload.cluster, seed=settings.seed, rank=transport.rank)
    work = _SleepingWork(workload.num_parameters, times)
    metered = MeteredTransport(transport, meter)
    algorithm = make_algorithm(work.model, settings, metered)
    trainer = Trainer(settings, workload.rows, work, algorithm, metered, meter, MemoryFiles(), None)
    run_now(trainer.run())
    sums = seconds_and_steps(trainer.history, settings.epochs)
    run_now(transport.all_reduce_sum(sums))
    totals = np.array([other_work.own_seconds(), steps_per_cycle([trainer.history])])
    run_now(transport.all_reduce_sum(totals))
    processor_seconds, total_steps = totals.tolist()
    load = other_work.busy_cores(processor_seconds)
    return MeasuredStep(fastest_step(sums), load, total_steps / transport.world_size)


def main(argv: list[str]) -> None:
    """Measure all workloads in turn as one of the MPI ranks; rank 0 prints the measurements.

    `argv[1]`: the file of the workloads. `argv[2]`: how often all are measured.
    """
    ctypes.CDLL(None).prctl(*_TIMER_SLACK)
    transport = MpiTransport()
    workloads = WORKLOADS.validate_json(Path(argv[1]).read_bytes())
    num_repeats = int(argv[2])

    def measured_steps() -> Iterator[MeasuredStep]:
        for workload in workloads * num_repeats:
            # Each method has a transport of its own, with the options that it needs.
            options = workload.train.algorithm.transport_options._asdict()
            method_transport = MpiTransport(**options)
            yield measure_step(workload, method_transport)
            method_transport.close()

    answer(transport, measured_steps)


if __name__ == "__main__":
    main(sys.argv)
