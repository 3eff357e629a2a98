"""Calibrates a simulated cluster with the records of finished runs and with measured messages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from training.loop.records import Record, settled
from training.simulation.cluster import ClusterSettings
from training.simulation.costs import Link, Network, all_reduce_seconds, average_seconds, push_seconds
from training.simulation.probe import ALL_REDUCE, PUSH, Measurement

#: Ratio of standard deviation to median absolute deviation of a normal distribution.
_DEVIATIONS: Final = 1.4826
#: Latency and inverse bandwidth of a fitted link are at least this, [s] and [s/byte]: it is above 0.
_SMALLEST: Final = 1e-12


class _Epochs(NamedTuple):
    """Epochs with equal batch sizes."""

    batch: float
    seconds: list[float]
    """Mean time of a step in each epoch [s]."""
    steps: float
    """Number of steps of an epoch."""


def calibrate(
    alone: Sequence[Sequence[Sequence[Record]]],
    crowded: Sequence[Sequence[Sequence[Record]]] = (),
    messages: Sequence[Measurement] = (),
) -> ClusterSettings:
    """A cluster of machines with the speed of this one, in computing and in messages.

    The first epoch of each run counts only if there is no other, since it includes first reads and page faults.
    Nor does the last of three or more, which has the wait for the end.

    Args:
        alone: Records of runs on one core each, from `training.loop.records.read_records`. With at least two batch
            sizes, the time of a step is split into a constant and a time per event; with one, all of it is constant.
        crowded: Records of runs whose workers compute together on this machine, without messages.
        messages: Measured messages between processes of this machine; if empty, those of the thesis' cloud hold.

    Raises:
        ValueError: No run took a step.

    Examples:
        >>> def epoch(batch: int, seconds: float) -> dict[str, object]:
        ...     return {"steps": 10, "samples": 10 * batch, "seconds_by_kind": {"compute": 10 * seconds}}
        >>> found = calibrate([[[epoch(16, 0.002)]], [[epoch(64, 0.005)]]])
        >>> round(found.step_seconds, 6), round(found.event_seconds, 8), found.jitter
        (0.001, 6.25e-05, 0.0)
    """
    epochs = _by_batch(alone)
    if not epochs:
        raise ValueError("no run took a step: there is nothing to calibrate with")
    step, event = _line([each.batch for each in epochs], [float(np.median(each.seconds)) for each in epochs])
    found = ClusterSettings(
        step_seconds=step, event_seconds=event, jitter=float(np.median([_jitter(each) for each in epochs]))
    )
    crowding = {
        workers: max(
            [
                1.0,
                *(
                    float(np.median(each.seconds)) / (step + event * each.batch)
                    for each in _by_batch(run for run in crowded if len(run) == workers)
                ),
            ]
        )
        for workers in {len(run) for run in crowded}
    }
    if not messages:
        return found.model_copy(update={"crowding": crowding})
    link = fit_link([each for each in messages if each.operation != PUSH])
    here = {"latency_seconds": link.latency, "bytes_per_second": link.bandwidth}
    within = {f"memory_{name}": value for name, value in here.items()}
    # What the messages do not explain is the work of the processor.
    work = [each.seconds - predicted(each, link) for each in messages if each.operation == PUSH]
    pushes = {"push_seconds": max(0.0, float(np.mean(work)))} if work else {}
    return found.model_copy(update={**here, **within, **pushes, "crowding": crowding})


def fit_link(messages: Sequence[Measurement], *, ring_above: float = math.inf) -> Link:
    """Latency and bandwidth that predict measured operations with the smallest relative errors.

    All predictions are linear in the latency and in the inverse bandwidth.
    """
    without_bytes, without_latency = Link(1.0, math.inf), Link(0.0, 1.0)
    terms = np.array(
        [[predicted(each, link, ring_above) for link in (without_bytes, without_latency)] for each in messages]
    )
    terms /= np.array([[each.seconds] for each in messages])
    scale = terms.max(axis=0)
    found, *_ = np.linalg.lstsq(terms / scale, np.ones(len(messages)), rcond=None)
    latency, inverse = np.maximum(found / scale, _SMALLEST).tolist()
    return Link(latency, 1 / inverse)


def predicted(message: Measurement, link: Link, ring_above: float = math.inf) -> float:
    """Time of an operation between workers that each have such a link [s]."""
    network = Network(link, link, 1, ring_above)
    if message.operation == ALL_REDUCE:
        return all_reduce_seconds(network, message.workers, message.nbytes)
    if message.operation == PUSH:
        return push_seconds(network, message.nbytes)
    return average_seconds(network, message.operation, message.nbytes)


def in_the_cloud(cluster: ClusterSettings) -> ClusterSettings:
    """The same machines on the network of the thesis."""
    cloud = ClusterSettings()
    return cluster.model_copy(update=cloud.model_dump(include={"latency_seconds", "bytes_per_second"}))


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
