"""The program of ranks that sleep for as long as a step takes, and exchange by MPI what the method sends.

Its argument is a file with a list of `Sleepers`; rank 0 prints {"measured": [...]}, the time per step of each [s].
Asleep, two workers fit on each core.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from typing_extensions import override

from training.flat_model import FlatModel, ModelState
from training.loop.making import make_algorithm
from training.loop.metering import Meter, MeteredTransport
from training.loop.records import MemoryFiles, Record
from training.loop.trainer import Trainer
from training.readers.sharding import Assignment
from training.settings import TrainSettings
from training.simulation.cluster import ClusterSettings, ComputeTimes
from training.studies.run_result import training_seconds
from training.transports.basics import Vector, run_now
from training.transports.mpi import MpiTransport
from training.workloads.gradients import Sums
from training.workloads.work import ValidationPart, Work

#: Linux wakes a sleeper up to 50 us late; PR_SET_TIMERSLACK [ns] makes that 1 us.
_TIMER_SLACK: Final = (29, 1000)


class Sleepers(NamedTuple):
    """Workers that sleep, of a method and a cluster."""

    train: TrainSettings
    cluster: ClusterSettings
    """Gives the time of a step; its network is not used."""
    num_parameters: int
    rows: list[int]
    """Number of events of each worker and epoch."""

    def to_json(self) -> list[Any]:
        """Plain values."""
        return [self.train.model_dump(mode="json"), self.cluster.model_dump(mode="json"), *self[2:]]


class _SleepingWork(Work):
    """Steps that take the time of the cluster, and have a constant gradient."""

    validates_alone = False

    def __init__(self, num_parameters: int, times: ComputeTimes) -> None:
        module = nn.Module()
        module.weights = nn.Parameter(torch.zeros(num_parameters))
        self.model = FlatModel(module)
        # Gradient dropping sorts them: no two are equal.
        self.model.write_gradient(np.linspace(0.5, 1.0, num_parameters, dtype=np.float32))
        self._gradient = self.model.gradient.numpy().copy()
        self._times = times
        self._sizes: Iterator[int] = iter(())
        self._size = self._samples = 0

    @override
    def begin(self, assignment: Assignment) -> None:
        self._sizes = iter(assignment.sizes)

    @override
    def prefetch(self, assignment: Assignment) -> None:
        """There is nothing to read."""

    @override
    def next_batch(self) -> int:
        self._size = next(self._sizes)
        self._samples += self._size
        return self._size

    @override
    async def compute_gradient(self) -> None:
        self.model.write_gradient(self._gradient)
        time.sleep(self._times.draw(self._size))

    @override
    def take_sums(self) -> Sums:
        found, self._samples = self.sums_so_far(), 0
        return found

    @override
    def sums_so_far(self) -> Sums:
        return Sums(1.0, 1.0, 0.0, self._samples)

    @override
    def buffers(self) -> Vector:
        return np.empty(0)

    @override
    def write_buffers(self, values: Vector) -> None:
        """There are none."""

    @override
    def state(self) -> dict[str, Any]:
        return {}

    @override
    def load_state(self, state: dict[str, Any]) -> None:
        """There is none."""

    @override
    async def validate(self, state: ModelState, part: ValidationPart) -> Sums:
        return Sums(1.0, 1.0, 0.0, 1)


def fastest_epoch(sums: NDArray[np.float64]) -> float:
    """Time of a step [s], of `seconds_and_steps` of all ranks: other work only adds to it."""
    seconds, steps = sums[:, 1:-1]
    return float((seconds[steps > 0] / steps[steps > 0]).min())


def seconds_and_steps(records: Sequence[Record], epochs: int) -> NDArray[np.float64]:
    """Times of training [s] and numbers of steps (2, epochs) of one rank."""
    found = np.zeros((2, epochs))
    for record in records:
        found[:, record["epoch"]] = training_seconds(record), record["steps"]
    return found


def seconds_per_step(sleepers: Sleepers, transport: MpiTransport) -> float:
    """That of the fastest epoch between the first and the last."""
    settings, meter = sleepers.train, Meter(transport.now)
    times = ComputeTimes(sleepers.cluster, seed=settings.seed, rank=transport.rank)
    work = _SleepingWork(sleepers.num_parameters, times)
    metered = MeteredTransport(transport, meter)
    algorithm = make_algorithm(work.model, settings, metered)
    trainer = Trainer(settings, sleepers.rows, work, algorithm, metered, meter, MemoryFiles(), None)
    run_now(trainer.run())
    sums = seconds_and_steps(trainer.history, settings.epochs)
    run_now(transport.all_reduce_sum(sums))
    return fastest_epoch(sums)


def main(argv: list[str]) -> None:
    """Run this rank to its end."""
    ctypes.CDLL(None).prctl(*_TIMER_SLACK)
    transport = MpiTransport()
    try:
        measured = []
        for train, cluster, *rest in json.loads(Path(argv[1]).read_text(encoding="utf-8")):
            sleepers = Sleepers(TrainSettings(**train), ClusterSettings(**cluster), *rest)
            transport.close()
            transport = MpiTransport(**sleepers.train.algorithm.transport_options._asdict())
            measured.append(seconds_per_step(sleepers, transport))
        if transport.rank == 0:
            sys.stdout.write(json.dumps({"measured": measured}) + "\n")
        transport.close()
    except BaseException as error:  # noqa: BLE001 - after any error, the other ranks must not wait forever
        sys.stdout.write(json.dumps({"error": str(error) or type(error).__name__}) + "\n")
        sys.stdout.flush()
        transport.abort()


if __name__ == "__main__":
    main(sys.argv)
