"""Times beyond this machine: short runs calibrate its cores, then a simulator runs clusters of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from training.launching.rank import RunSpec
from training.loop.records import read_records
from training.readers.batch import Rows
from training.readers.memory_rows import MemoryRows
from training.settings import TrainSettings
from training.simulation.calibrate import Record, calibrate, in_the_cloud, settled
from training.simulation.cluster import ClusterSettings
from training.simulation.probe import Measurement
from training.simulation.simulate import simulate
from training.studies.plan import PlannedRun
from training.studies.results import Timing, communicating
from training.studies.trained import simulate_workload
from training.studies.variants import ALONE, APART, BEST, METHODS, PLAIN

#: The two networks of the scaling study.
THIS_MACHINE: Final = "shared memory"
CLOUD: Final = "10 Gb/s ethernet"
#: Number of steps of every worker in the scaling study, in one epoch.
_STEPS: Final = 48
_FLOAT_BYTES: Final = {"float32": 4, "float64": 8}
_STAND_IN_PARAMETERS: Final = 256
#: Kinds of work that count as training; validation and checkpoints do not.
_TRAINING: Final = ("read", "compute", "communicate", "wait")

Tell = Callable[[int, int, str], None]
"""Called with the finished part, the total, and a note."""


class _StandIn(nn.Module):
    """A network whose gradient is 0, to simulate times, which do not depend on the learnt weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(_STAND_IN_PARAMETERS))

    def forward(self, inputs: Tensor) -> Tensor:
        """One class of probability 1 for each of the inputs (num_events, 1)."""
        return inputs * self.weights.sum()


def time_model(
    timed: Sequence[PlannedRun],
    compared: Sequence[PlannedRun],
    group_rows: Sequence[int],
    *,
    num_parameters: int,
    most_workers: int | None,
    messages: Sequence[Measurement],
    on_progress: Tell,
) -> Timing:
    """Calibrate with the timing runs of a network, check on others, and simulate its runs with one machine per worker.

    One worker alone, workers apart on the same machine, and messages calibrate. The methods are the check.

    Args:
        timed: Finished timing runs of the network.
        compared: Runs to simulate: all seeds of a variant at its best learning rate.
        group_rows: Number of events of each row group of the training split.
        num_parameters: Number of parameters of the network.
        most_workers: Highest number of workers of the scaling study; None for no such study.
        messages: Measured messages between processes of this machine.
        on_progress: Called with the number of finished simulations.
    """
    found = [(run.spec.train, read_records(run.spec.out_dir)) for run in timed]
    num_bytes = num_parameters * _FLOAT_BYTES[timed[0].spec.train.precision]
    alone = [ranks for settings, ranks in found if settings.workers == 1]
    crowded = [ranks for settings, ranks in found if settings.algorithm.name == APART]
    cluster = calibrate(alone, crowded, messages)
    measured = [rates(*each) for each in found if each[0].algorithm.name != APART]
    checks = [
        _checked(settings, ranks, group_rows, cluster, num_bytes)
        for settings, ranks in found
        if settings.algorithm.name in METHODS
    ]
    studies = _studies([run.spec.train for run in timed], cluster, most_workers) if most_workers else []
    plain = {run.variant: run for run in reversed(compared) if run.variant in PLAIN}
    best = [run for run in compared if run.variant in BEST]
    total = len(plain) + len(best) + sum(len(runs) for _, _, runs in studies)
    epochs: dict[str, dict[str, list[float]]] = {}
    for variant, run in plain.items():
        on_progress(len(epochs), total, variant.title)
        records = simulate_times(group_rows, run.spec.train, in_the_cloud(cluster), num_bytes=num_bytes)
        epochs[variant.key] = epoch_times(records, run.spec.train)
    done = len(epochs)
    convergence: dict[str, list[dict[str, list[float]]]] = {}
    for run in best:
        on_progress(done, total, f"{run.variant.title}, seed {run.seed}")
        convergence.setdefault(run.variant.key, []).append(simulate_learning(run.spec, in_the_cloud(cluster)))
        done += 1
    scaling = []
    for network, each, runs in studies:
        times = []
        for settings in runs:
            on_progress(done, total, f"{settings.algorithm.name}, {settings.workers} workers")
            rows = [settings.batch_size * _STEPS] * settings.workers
            times.append(rates(settings, simulate_times(rows, settings, each, num_bytes=num_bytes)))
            done += 1
        scaling.append({"network": network, **_columns(times)})
    return Timing(cluster.model_dump(mode="json"), measured, epochs, scaling, checks, convergence)


def _checked(
    settings: TrainSettings,
    ranks: Sequence[Sequence[Record]],
    group_rows: Sequence[int],
    cluster: ClusterSettings,
    num_bytes: int,
) -> dict[str, Any]:
    """Measured and predicted time per batch of a run whose workers share this machine."""
    here = cluster.model_copy(update={"workers_per_host": settings.workers})
    predicted = simulate_times(group_rows, settings, here, num_bytes=num_bytes)
    both = {"measured": ranks, "predicted": predicted}
    times = {name: rates(settings, records)["seconds_per_batch"] for name, records in both.items()}
    return {"method": settings.algorithm.name, "workers": settings.workers, **times}


def simulate_learning(spec: RunSpec, cluster: ClusterSettings) -> dict[str, list[float]]:
    """Accuracy and time of every epoch of one simulated run of the real network on the real data."""
    settings = spec.train
    records = simulate_workload(spec.workload.open(), settings, cluster).records
    found = {
        "seconds": epoch_times(records, settings)["seconds"],
        "val_accuracy": [float(record["val_accuracy"]) for record in records[0]],
    }
    return {name: [float(f"{value:.6g}") for value in values] for name, values in found.items()}


def simulate_times(
    group_rows: Sequence[int], settings: TrainSettings, cluster: ClusterSettings, *, num_bytes: int
) -> list[list[Record]]:
    """The records of a run on a simulated cluster; only their times are meaningful.

    Args:
        group_rows: Number of events of each row group.
        settings: Settings of the run.
        cluster: The cluster.
        num_bytes: Size of the parameters; a small network replaces the real one, with links slower in proportion.
    """
    scale = _STAND_IN_PARAMETERS * _FLOAT_BYTES["float32"] / num_bytes
    scaled = ("bytes_per_second", "memory_bytes_per_second", "ring_above_bytes")
    slower = cluster.model_copy(update={name: scale * getattr(cluster, name) for name in scaled})
    train, val = (
        MemoryRows(Rows((torch.ones(size, 1),), torch.zeros(size, dtype=torch.int64), torch.ones(size)), 0, groups)
        for size, groups in ((sum(group_rows), list(group_rows)), (1, [1]))
    )
    # Whose events they are does not matter: all workers have the same number.
    return simulate(_StandIn(), train, val, settings.model_copy(update={"skew": None}), slower).records


def epoch_times(records: Sequence[Sequence[Record]], settings: TrainSettings) -> dict[str, list[float]]:
    """Time of every epoch and of its communication, averaged over the workers [s]."""
    by_epoch = list(zip(*records, strict=True))
    return {
        "seconds": [float(np.mean([record["seconds"] for record in epoch])) for epoch in by_epoch],
        "communicate": [float(np.mean([communicating(each, settings) for each in epoch])) for epoch in by_epoch],
    }


def rates(settings: TrainSettings, records: Sequence[Sequence[Record]]) -> dict[str, Any]:
    """Speed of a run without validation and checkpoints: the median over its epochs, except the first.

    The median is robust: other work on the machine for one second can make a short epoch five times longer.

    Examples:
        >>> record = {"steps": 4, "samples": 64, "seconds_by_kind": {"compute": 2.0, "validate": 9.0}}
        >>> found = rates(TrainSettings(algorithm="ar-sgd", workers=2, batch_size=16), [[record], [record]])
        >>> found["seconds_per_batch"], found["samples_per_second"]
        (0.5, 64.0)
    """
    epochs = list(zip(*(settled(worker) for worker in records), strict=True))
    seconds = np.array(
        [
            np.mean([sum(record["seconds_by_kind"].get(kind, 0.0) for kind in _TRAINING) for record in epoch])
            for epoch in epochs
        ]
    )
    steps = np.array([np.mean([record["steps"] for record in epoch]) for epoch in epochs])
    samples = np.array([sum(record["samples"] for record in epoch) for epoch in epochs])
    return {
        "method": settings.algorithm.name,
        "workers": settings.workers,
        "batch_size": settings.batch_size,
        "seconds_per_batch": float(np.median(seconds / steps)),
        "samples_per_second": float(np.median(samples / seconds)),
    }


_Study = tuple[str, ClusterSettings, list[TrainSettings]]


def _studies(timed: Sequence[TrainSettings], cluster: ClusterSettings, most_workers: int) -> list[_Study]:
    """The methods on growing clusters, on both networks; the first entry of each is one worker alone."""
    counts = [2**power for power in range(1, most_workers.bit_length()) if 2**power <= most_workers]
    base = {settings.algorithm.name: settings.model_dump(mode="json") for settings in reversed(timed)}
    runs = [(ALONE, 1), *((method, workers) for method in METHODS for workers in counts)]
    settings = [
        TrainSettings.model_validate(
            {**base[method], "epochs": 1, "workers": workers, "batch_size": timed[0].batch_size}
        )
        for method, workers in runs
    ]
    return [(network, each, settings) for network, each in ((THIS_MACHINE, cluster), (CLOUD, in_the_cloud(cluster)))]


def _columns(times: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Times as one list per quantity."""
    return {name: [each[name] for each in times] for name in times[0]}
