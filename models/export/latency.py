"""How long an exported network takes: single events, as a trigger has them, and batches."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.errors import InputError
from models.export.onnx_classifier import Feeds, OnnxClassifier

Columns = Mapping[str, NDArray[Any]]


class Latency(NamedTuple):
    """Percentiles of the time of one call with one event [us]."""

    p50: float
    p90: float
    p99: float
    p99_9: float
    calls: int
    """How many were measured."""


def measure_latency(exported: OnnxClassifier, columns: Columns, *, calls: int = 1000, warm_up: int = 50) -> Latency:
    """Time of single-event calls, from one thread; events come in turn, each with the particles it has.

    Only the call into onnxruntime is timed, not what makes arrays of an event.

    Args:
        exported: The network.
        columns: Of some real events, as `models.inputs.input_tensors` takes them.
        calls: Calls to measure.
        warm_up: Calls before, which count for nothing.

    Raises:
        InputError: There are no events, or the columns are not what the network takes.
    """
    num_events = min(_count(exported, columns), max(calls, warm_up))
    events = [_feeds(exported, columns, np.array([event])) for event in range(num_events)]
    for call in range(warm_up):
        exported.run(events[call % num_events])
    times = np.empty(calls)
    for call in range(calls):
        feeds = events[call % num_events]
        start = perf_counter_ns()
        exported.run(feeds)
        times[call] = perf_counter_ns() - start
    p50, p90, p99, p99_9 = (np.percentile(times, [50, 90, 99, 99.9]) / 1000).tolist()
    return Latency(p50, p90, p99, p99_9, calls)


def measure_throughput(
    exported: OnnxClassifier, columns: Columns, *, batch_size: int = 256, seconds: float = 0.5
) -> float:
    """Events per second of calls with one batch, over and over; preparing its arrays is not timed.

    Args:
        exported: The network.
        columns: Of some real events, as `models.inputs.input_tensors` takes them; repeated to fill the batch.
        batch_size: Events in a call.
        seconds: How long to measure, at least; one call is made before.

    Raises:
        InputError: There are no events, or the columns are not what the network takes.
    """
    feeds = _feeds(exported, columns, np.arange(batch_size) % _count(exported, columns))
    exported.run(feeds)
    calls = 0
    elapsed = 0
    start = perf_counter_ns()
    while calls == 0 or elapsed < seconds * 1e9:
        exported.run(feeds)
        calls += 1
        elapsed = perf_counter_ns() - start
    return calls * batch_size / elapsed * 1e9


def _count(exported: OnnxClassifier, columns: Columns) -> int:
    """Number of events, at least 1."""
    num_events = len(columns[exported.inputs[0]])
    if num_events == 0:
        raise InputError("there are no events to time the exported model on. Give some of the test split.")
    return num_events


def _feeds(exported: OnnxClassifier, columns: Columns, events: NDArray[np.int64]) -> Feeds:
    """Arrays of some of the events."""
    return exported.prepare({name: columns[name][events] for name in exported.inputs})
