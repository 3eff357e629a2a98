"""Trains many virtual workers by the trainer and the algorithms of a real run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from hep_studies.simulator.cluster import ClusterSettings, ComputeTimes
from hep_studies.simulator.stacked import BatchedGradients, StackedModels, StackedWork
from hep_studies.simulator.transport import SimNetwork
from hep_studies.simulator.virtual_time import VirtualClock, without_garbage_collection
from training.flat_model import ModelState
from training.loop.checkpoints import Checkpoint
from training.loop.coroutines import checked_awaits
from training.loop.factories import make_algorithm
from training.loop.metering import Meter, MeteredTransport
from training.loop.records import MemoryFiles, RunFiles, merge_records
from training.loop.trainer import Trainer
from training.readers.memory import MemoryRows
from training.readers.skew import DirichletPartition
from training.settings import TrainSettings
from training.threads import be_deterministic, use_threads
from training.workloads.decorrelation import Decorrelation
from training.workloads.draws import Augmentation

#: Only the first workers also validate their own model at the end, since it takes real time.
_VALIDATE_ALONE = 16


class Simulated(NamedTuple):
    """The result of a simulated run."""

    records: list[list[dict[str, Any]]]
    """Records of each worker and epoch, in the format of a real run; times are virtual."""
    parameters: torch.Tensor
    """(world_size, num_parameters) final parameters."""
    seconds: float
    """Virtual time of the run [s]."""
    best: ModelState | None = None
    """The mean model of the lowest validation loss, unless `files` store it elsewhere."""


@without_garbage_collection()
def simulate(
    module: nn.Module,
    train: MemoryRows,
    val: MemoryRows,
    settings: TrainSettings,
    cluster: ClusterSettings,
    *,
    augmentation: Augmentation | None = None,
    partition: DirichletPartition | None = None,
    decorrelation: Decorrelation | None = None,
    files: Callable[[int], RunFiles] | None = None,
    resume: Checkpoint | None = None,
) -> Simulated:
    """Train `settings.workers` virtual workers in this process, and return what they recorded.

    Each worker is a coroutine with the training loop and the algorithm of a real run. A clock of
    virtual time resumes the coroutines in turn: computing takes drawn times, messages take the
    times of a simulated network. The networks are really trained. The same seed gives the same
    numbers.

    Args:
        module: The network; every worker starts with its parameters.
        train: Rows of the training split.
        val: Rows of the validation split.
        settings: The training.
        cluster: Times of computation and communication.
        augmentation: Changes the images of each batch; None for no change.
        partition: The division of the training rows among the workers, with `settings.skew`; None:
            all workers read all rows.
        decorrelation: A further term of the loss; None for the cross-entropy alone.
        files: Makes the files of a rank; None: everything stays in memory.
        resume: A checkpoint to resume from.
    """
    world_size = settings.workers
    use_threads(settings.threads)
    be_deterministic()
    if (partition is None) != (settings.skew is None):
        raise AssertionError("settings with `skew` need a partition of the rows, and only they")
    clock = VirtualClock()
    if resume is not None:
        # The clock continues from the checkpoint. With another starting time, rounding could
        # separate simultaneous events.
        clock.now = resume.load(0)["work"]["now"]
    # What all workers share: the network, the matrices of their models, the rows.
    network = SimNetwork(clock, cluster, world_size, protocol=cluster.protocol(world_size))
    stacked = StackedModels(
        module,
        world_size,
        seed=settings.seed,
        augmentation=augmentation,
        decorrelation=decorrelation,
    )
    gradients = BatchedGradients(clock, stacked, train, val)
    files_of_rank: list[RunFiles] = []
    trainers = []
    # Each worker has its own view of them, and a training loop as a coroutine on the clock.
    for transport in network.transports():
        rank = transport.rank
        files_of_rank.append(files(rank) if files else MemoryFiles())
        meter = Meter(transport.now)
        metered = MeteredTransport(transport, meter)
        model = stacked.row(rank)
        times = ComputeTimes(cluster, seed=settings.seed, rank=rank)
        work = StackedWork(
            gradients,
            model,
            rank=rank,
            times=times,
            owned_rows=None if partition is None else partition.rows_of_worker(rank),
            validates_alone=rank < _VALIDATE_ALONE,
        )
        algorithm = make_algorithm(model, settings, metered)
        trainer = Trainer(
            settings,
            train.group_rows,
            work,
            algorithm,
            metered,
            meter,
            files_of_rank[rank],
            None,
            partition=partition,
        )
        trainers.append(trainer)
    for rank, trainer in enumerate(trainers):
        clock.spawn(trainer.run(resume), f"worker {rank}")
    # Runs all training loops to their ends.
    with checked_awaits():
        clock.run()
    records = merge_records([trainer.history for trainer in trainers])
    return Simulated(records, stacked.parameters, clock.now, _best_model(files_of_rank))


def _best_model(files_of_rank: Sequence[RunFiles]) -> ModelState | None:
    """Return the best model of a run whose files stay in memory; None if it is in other files."""
    for files in files_of_rank:
        if isinstance(files, MemoryFiles) and files.best is not None:
            return files.best
    return None
