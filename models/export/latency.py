"""Measures the latency of an exported network for single events, and its throughput for batches."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.export.onnx_classifier import Feeds, OnnxClassifier

Columns = Mapping[str, NDArray[Any]]

#: Least number of slower calls for a percentile; with fewer it is almost the time of the slowest
#: call.
_FEWEST_SLOWER: Final = 10


class Latency(NamedTuple):
    """Percentiles of the time of one call with one event [us].

    None where fewer than 10 calls are slower.
    """

    p50: float
    """Median: half of the calls are faster."""
    p90: float | None
    p99: float | None
    p99_9: float | None
    calls: int
    """Number of measured calls."""


def measure_latency(
    exported: OnnxClassifier, columns: Columns, *, calls: int = 10_000, warm_up: int = 50
) -> Latency:
    """Measure the time of single-event calls, from one thread.

    It cycles through the events, each with its own particles. The time covers only the call into
    onnxruntime, without the preparation of the event's arrays.

    Args:
        exported: The network.
        columns: Input columns of the events.
        calls: Number of measured calls.
        warm_up: Number of calls before, which are not measured.
    """
    num_available = len(columns[exported.inputs[0]])
    num_events = min(num_available, max(calls, warm_up))
    events = [_feeds(exported, columns, np.array([event])) for event in range(num_events)]
    for call in range(warm_up):
        exported.run(events[call % num_events])
    times = np.empty(calls)
    for call in range(calls):
        feeds = events[call % num_events]
        start = perf_counter_ns()
        exported.run(feeds)
        times[call] = perf_counter_ns() - start
    # The clock counts ns, the result is in us.
    times /= 1000
    return Latency(
        p50=float(np.median(times)),
        p90=_percentile(times, 90),
        p99=_percentile(times, 99),
        p99_9=_percentile(times, 99.9),
        calls=calls,
    )


def _percentile(times: NDArray[np.float64], percent: float) -> float | None:
    """Compute a percentile of the times; None where fewer than 10 calls are slower."""
    num_slower = len(times) * (100 - percent) / 100
    # The margin keeps rounding from excluding exactly 10.
    if num_slower < _FEWEST_SLOWER - 1e-8:
        return None
    return float(np.percentile(times, percent))


def measure_throughput(
    exported: OnnxClassifier, columns: Columns, *, batch_size: int = 256, seconds: float = 0.5
) -> float:
    """Measure events per second in repeated calls with one batch.

    The events are repeated to fill the batch. The preparation of its arrays is not counted. The
    calls end after `seconds`.
    """
    num_events = len(columns[exported.inputs[0]])
    rows = np.arange(batch_size) % num_events
    feeds = _feeds(exported, columns, rows)
    # The first call is not measured.
    exported.run(feeds)
    calls = 0
    elapsed = 0
    start = perf_counter_ns()
    while calls == 0 or elapsed < seconds * 1e9:
        exported.run(feeds)
        calls += 1
        elapsed = perf_counter_ns() - start
    # The elapsed time is in ns, the result is events per s.
    return calls * batch_size / elapsed * 1e9


def _feeds(exported: OnnxClassifier, columns: Columns, events: NDArray[np.int64]) -> Feeds:
    """Prepare the input arrays of some events, by their rows."""
    inputs = {name: columns[name][events] for name in exported.inputs}
    return exported.prepare(inputs)
