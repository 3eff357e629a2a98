"""Calibrates a simulated cluster with the records of finished runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from training.simulation.cluster import ClusterSettings

Record = dict[str, Any]

#: Bandwidth of memory that ranks of one machine share; for small messages, latency matters more.
_MEMORY_BYTES_PER_SECOND: Final = 1e10
#: Ratio of standard deviation to median absolute deviation of a normal distribution.
_DEVIATIONS: Final = 1.4826


class _Epochs(NamedTuple):
    """Epochs with equal batch sizes."""

    batch: float
    seconds: list[float]
    """Mean time of a step in each epoch [s]."""
    steps: float
    """Number of steps of an epoch."""


def calibrate(
    alone: Sequence[Sequence[Sequence[Record]]], pairs: Sequence[Sequence[Sequence[Record]]] = (), *, num_bytes: int
) -> ClusterSettings:
    """A cluster of machines with the speed of this one, in computing and in pairwise averages.

    The first epoch of each run counts only if there is no other, since it includes first reads and page faults.

    Args:
        alone: Records of runs on one core each, from `training.loop.summary.read_records`. With at least two batch
            sizes, the time of a step is split into a constant and a time per event; with one, all of it is constant.
        pairs: Records of runs with pairwise averages; if empty, messages take as long as in the thesis' cloud.
        num_bytes: Size of the parameters in these runs.

    Raises:
        ValueError: No run took a step.

    Examples:
        >>> def epoch(batch: int, seconds: float) -> dict[str, object]:
        ...     return {"steps": 10, "samples": 10 * batch, "seconds_by_kind": {"compute": 10 * seconds}}
        >>> found = calibrate([[[epoch(16, 0.002)]], [[epoch(64, 0.005)]]], num_bytes=100)
        >>> round(found.step_seconds, 6), round(found.event_seconds, 8), found.jitter
        (0.001, 6.25e-05, 0.0)
    """
    epochs = _by_batch(alone)
    if not epochs:
        raise ValueError("no run took a step: there is nothing to calibrate with")
    step, event = _line([each.batch for each in epochs], [float(np.median(each.seconds)) for each in epochs])
    jitter = float(np.median([_jitter(each) for each in epochs]))
    return ClusterSettings.model_validate(
        {"step_seconds": step, "event_seconds": event, "jitter": jitter, **_network(pairs, num_bytes)}
    )


def in_the_cloud(cluster: ClusterSettings) -> ClusterSettings:
    """The same machines on the network of the thesis."""
    return cluster.model_copy(update=dict(ClusterSettings.THESIS_CLOUD))


def settled(records: Sequence[Record]) -> Sequence[Record]:
    """The epochs of a worker that count for timing: all except the first, if there are more."""
    return records[1:] or records


def _by_batch(runs: Iterable[Sequence[Sequence[Record]]]) -> list[_Epochs]:
    found: dict[float, list[tuple[float, int]]] = {}
    for run in runs:
        for record in (record for worker in run for record in settled(worker) if record["steps"]):
            kinds = record["seconds_by_kind"]
            seconds = (kinds["compute"] + kinds.get("read", 0.0)) / record["steps"]
            # Steps of one run differ by at most one event.
            batch = round(record["samples"] / record["steps"])
            found.setdefault(batch, []).append((seconds, record["steps"]))
    return [
        _Epochs(batch, [seconds for seconds, _ in each], float(np.mean([steps for _, steps in each])))
        for batch, each in sorted(found.items())
    ]


def _line(batches: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Constant and slope of a fitted line, both at least 0."""
    if len(batches) == 1:
        return seconds[0], 0.0
    slope, constant = np.polyfit(batches, seconds, 1).tolist()
    if slope < 0:
        return float(np.mean(seconds)), 0.0
    if constant < 0:
        return 0.0, float(np.dot(batches, seconds) / np.dot(batches, batches))
    return constant, slope


def _jitter(epochs: _Epochs) -> float:
    """Spread of the logarithm of a step's time, from the spread of the epoch means; steps vary independently."""
    median = float(np.median(epochs.seconds))
    if not median:
        return 0.0
    of_means = _DEVIATIONS * float(np.median(np.abs(np.asarray(epochs.seconds) - median))) / median
    return math.sqrt(math.log1p(of_means**2 * epochs.steps))


def _network(pairs: Iterable[Sequence[Sequence[Record]]], num_bytes: int) -> dict[str, float]:
    """Latency and bandwidth: an exchange is two messages, and its time beyond that of the bytes is latency."""
    averages = [
        record["exchange_seconds"] / record["averages_begun"]
        for run in pairs
        for worker in run
        for record in settled(worker)
        if record["averages_begun"]
    ]
    if not averages:
        return dict(ClusterSettings.THESIS_CLOUD)
    latency = float(np.median(averages)) / 2 - num_bytes / _MEMORY_BYTES_PER_SECOND
    return {"latency_seconds": max(latency, 0.0), "bytes_per_second": _MEMORY_BYTES_PER_SECOND}
