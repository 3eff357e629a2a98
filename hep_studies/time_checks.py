"""Checks the times of the simulator where a study claims them: ranks that sleep for its step exchange by MPI."""

from __future__ import annotations

import ctypes
import math
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from scipy.optimize import nnls
from torch import nn

from hep_core.atomic_files import new_file
from hep_core.plugins import after_loading
from hep_studies.plan import PlannedRun, digest_of
from hep_studies.run_in_simulator import num_parameters, simulate_times
from hep_studies.run_result import training_seconds
from hep_studies.simulator.cluster import ClusterSettings, ComputeTimes
from hep_studies.simulator.costs import (
    Link,
    Network,
    all_reduce_seconds,
    average_seconds,
    push_seconds,
)
from hep_studies.study_result import TimeCheck
from training.algorithms.base import VectorModel
from training.flat_model import FlatModel, ModelState
from training.launching.message_probe import ALL_REDUCE, PUSH, Measurement, answer
from training.launching.mpirun import measure_messages, run_measurement
from training.loop.factories import make_algorithm
from training.loop.metering import Meter, MeteredTransport
from training.loop.records import MemoryFiles, Record
from training.loop.trainer import Trainer
from training.readers.sharding import Assignment
from training.settings import TrainSettings
from training.transports.basics import Vector, run_now
from training.transports.mpi import MpiTransport
from training.workloads.gradients import Sums
from training.workloads.work import ValidationPart

#: Linux wakes a sleeper up to 50 us late; PR_SET_TIMERSLACK [ns] makes that 1 us.
_TIMER_SLACK: Final = (29, 1000)
#: Ranks for each core: asleep they need no core, but a step has work beside the sleep.
_RANKS_PER_CORE: Final = 2
#: Sizes of messages, around that of the HLF network's parameters [bytes].
_SIZES: Final = (256, 32_768)
#: Steps of an epoch of a check; it is short, since the fastest counts: other work disturbs it the less.
_STEPS: Final = 12
#: Length of a check [s], and its numbers of epochs, of which the first and last do not count.
_SECONDS: Final = 8.0
_FEWEST, _MOST = 4, 60
_TIMEOUT: Final = 1800.0
#: What a check leaves out: nothing of it costs time.
_PLAIN: Final[dict[str, Any]] = {"learning_rate": 1e-6, "schedule": {}, "seed": 1, "skew": None}


class Sleepers(NamedTuple):
    """Workers of a method that sleep."""

    method: str
    step_seconds: float
    """Mean time of a step without messages."""
    train: TrainSettings
    cluster: ClusterSettings
    """Gives the time of a step; its network is not used."""
    num_parameters: int
    rows: list[int]
    """Number of events of each worker and epoch."""


#: What the ranks read, and what is kept of a measurement.
_SLEEPERS: Final = TypeAdapter(list[Sleepers])
_CHECKS: Final = TypeAdapter(list[TimeCheck])
# It has the settings of the methods that there are when it is built.
after_loading(partial(_SLEEPERS.rebuild, force=True))


class _SleepingWork:
    """A `Work` whose steps take the time of the cluster, and have a constant gradient."""

    validates_alone: bool = False

    def __init__(self, num_parameters: int, times: ComputeTimes) -> None:
        module = nn.Module()
        module.weights = nn.Parameter(torch.zeros(num_parameters))
        self.model: VectorModel = FlatModel(module)
        # Gradient dropping sorts them: no two are equal.
        self._gradient = np.linspace(0.5, 1.0, num_parameters, dtype=np.float32)
        self._times = times
        self._sizes: Iterator[int] = iter(())
        self._size = self._samples = 0

    def begin(self, assignment: Assignment) -> None:
        self._sizes = iter(assignment.sizes)

    def prefetch(self, assignment: Assignment) -> None:
        """There is nothing to read."""

    def write_buffers(self, values: Vector) -> None:
        """There are none."""

    def load_state(self, state: dict[str, Any]) -> None:
        """There is none."""

    def next_batch(self) -> int:
        self._size = next(self._sizes)
        self._samples += self._size
        return self._size

    async def compute_gradient(self) -> None:
        self.model.write_gradient(self._gradient)
        time.sleep(self._times.draw(self._size))

    def pop_sums(self) -> Sums:
        found, self._samples = self.running_sums(), 0
        return found

    def running_sums(self) -> Sums:
        return Sums(1.0, 1.0, 0.0, self._samples)

    def buffers(self) -> Vector:
        return np.empty(0)

    def state(self) -> dict[str, Any]:
        return {}

    async def validate(self, state: ModelState, part: ValidationPart) -> Sums:  # noqa: ARG002 - of a `Work`
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

    def measured() -> Iterator[float]:
        for sleepers in _SLEEPERS.validate_json(Path(argv[1]).read_bytes()):
            of_method = MpiTransport(**sleepers.train.algorithm.transport_options._asdict())
            yield seconds_per_step(sleepers, of_method)
            of_method.close()

    answer(transport, measured)


if __name__ == "__main__":
    main(sys.argv)


def check_times(
    runs: Sequence[PlannedRun], folder: Path, *, cores: int, code: str
) -> list[TimeCheck]:
    """Check each method of simulated runs for each time of a step, with as many of its workers as find room.

    The measurement is made once and kept in the folder, for this digest of the code that measures and predicts.

    Raises:
        LaunchError: The ranks do not start or fail.
    """
    chosen = _chosen(runs, most=_RANKS_PER_CORE * cores)
    if not chosen:
        return []
    path = folder / f"times-{digest_of([code, _SLEEPERS.dump_python(chosen, mode='json')])}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        found = _measured(chosen, folder)
        with new_file(path) as unfinished:
            unfinished.write_bytes(_CHECKS.dump_json(found))
    return _CHECKS.validate_json(path.read_bytes())


def _chosen(runs: Sequence[PlannedRun], *, most: int) -> list[Sleepers]:
    """Of each method and time of a step the run with the most workers and messages."""
    found: dict[tuple[str, float], Sleepers] = {}
    for run in sorted(
        runs, key=lambda run: (-run.train.workers, run.train.algorithm.steps_between_averages)
    ):
        if run.cluster is None or run.train.workers == 1:
            continue
        step = run.cluster.step_of(run.train.batch_size)
        if (run.method, step) in found:
            continue
        workers, steps = (
            min(run.train.workers, most),
            max(_STEPS, math.ceil(run.train.algorithm.steps_between_averages)),
        )
        epochs = min(max(math.ceil(_SECONDS / (steps * step)), _FEWEST), _MOST)
        changes = {**_PLAIN, "workers": workers, "epochs": epochs}
        train = TrainSettings.model_validate({**run.train.model_dump(), **changes})
        here = {"workers_per_host": workers, "pause_probability": 0.0, "slow_ranks": {}}
        cluster, size = (
            run.cluster.model_copy(update=here),
            num_parameters(run.subject.settings.open()),
        )
        rows = [train.batch_size * steps] * workers
        found[run.method, step] = Sleepers(run.method, step, train, cluster, size, rows)
    return list(found.values())


def _measured(chosen: Sequence[Sleepers], folder: Path) -> list[TimeCheck]:
    machine = fit_machine(
        measure_messages(chosen[0].train.model_copy(update={"workers": 2}), _SIZES)
    )
    path, found = (folder / "sleepers.json").absolute(), []
    for workers in sorted({each.train.workers for each in chosen}):
        some = [each for each in chosen if each.train.workers == workers]
        path.write_bytes(_SLEEPERS.dump_json(some))
        times = run_measurement(
            some[0].train, ("hep_studies.time_checks", str(path)), timeout=_TIMEOUT
        )
        for each, seconds in zip(some, times, strict=True):
            cluster = each.cluster.model_copy(update=machine)
            simulated = simulate_times(
                each.rows, each.train, cluster, num_parameters=each.num_parameters
            )
            each_rank = [
                seconds_and_steps(records, each.train.epochs) for records in simulated.records
            ]
            predicted_time = fastest_epoch(np.sum(each_rank, axis=0))
            found.append(
                TimeCheck(each.method, each.step_seconds, workers, seconds, predicted_time)
            )
    return found


#: Latency and inverse bandwidth of a fitted link are at least this, [s] and [s/byte]: it is above 0.
_SMALLEST: Final = 1e-12


def fit_machine(messages: Sequence[Measurement]) -> dict[str, float]:
    """Keys of the cluster for messages between processes of this machine."""
    link = fit_link([each for each in messages if each.operation != PUSH])
    # What the messages do not explain is the work of the processor.
    work = [each.seconds - predicted(each, link) for each in messages if each.operation == PUSH]
    return {
        "memory_latency_seconds": link.latency,
        "memory_bytes_per_second": link.bandwidth,
        "push_seconds": max(0.0, float(np.mean(work))) if work else 0.0,
    }


def fit_link(messages: Sequence[Measurement], *, ring_above: float = math.inf) -> Link:
    """Latency and bandwidth that predict measured operations with the smallest relative errors.

    All predictions are linear in the latency and in the inverse bandwidth.
    """
    links = (Link(1.0, math.inf), Link(0.0, 1.0))
    terms = np.array(
        [[predicted(each, link, ring_above) / each.seconds for link in links] for each in messages]
    )
    scale = terms.max(axis=0)
    latency, inverse = np.maximum(
        nnls(terms / scale, np.ones(len(messages)))[0] / scale, _SMALLEST
    ).tolist()
    return Link(latency, 1 / inverse)


def predicted(message: Measurement, link: Link, ring_above: float = math.inf) -> float:
    """Time of an operation between workers that each have such a link [s]."""
    network = Network(link, link, 1, ring_above)
    if message.operation == ALL_REDUCE:
        return all_reduce_seconds(network, message.workers, message.nbytes)
    if message.operation == PUSH:
        return push_seconds(network, message.nbytes)
    return average_seconds(network, message.operation, message.nbytes)
