"""Fits the links of the simulator to messages between processes of this machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from scipy.optimize import nnls

from hep_studies.simulator.costs import (
    Link,
    Network,
    all_reduce_seconds,
    average_seconds,
    push_seconds,
)
from training.launching.measurement import ALL_REDUCE, PUSH, Measurement

#: Lower limit of the latency [s] and the inverse bandwidth [s/byte] of a fitted link.
_SMALLEST: Final = 1e-12


def fit_machine(messages: Sequence[Measurement]) -> dict[str, float]:
    """Return the keys of a cluster for messages between processes of this machine.

    Latency and bandwidth are fitted to measured all-reduces and averages. The processor time of a
    push is the mean of what they leave unexplained of measured pushes, at least 0.
    """
    pushes = [message for message in messages if message.operation == PUSH]
    link = fit_link([message for message in messages if message.operation != PUSH])
    # The messages of a push explain a part of its time; the processor takes the remainder.
    processor_times = [message.seconds - predicted_seconds(message, link) for message in pushes]
    mean_time = float(np.mean(processor_times)) if pushes else 0.0
    return {
        "memory_latency_seconds": link.latency,
        "memory_bytes_per_second": link.bandwidth,
        "push_seconds": max(0.0, mean_time),
    }


def fit_link(messages: Sequence[Measurement], *, ring_above: float = math.inf) -> Link:
    """Return the link that predicts measured operations with the smallest relative errors.

    All predictions are linear in the latency and in the inverse bandwidth, so that a least-squares
    fit with both at least 0 gives them. `ring_above`: size of a vector above which an all-reduce
    goes around a ring [bytes].
    """
    # A second of latency alone, and a second for each byte alone.
    latency_link = Link(1.0, math.inf)
    bandwidth_link = Link(0.0, 1.0)
    rows = []
    # A row holds both terms relative to the measured time: their sum should be 1.
    for message in messages:
        latency_seconds = predicted_seconds(message, latency_link, ring_above)
        bandwidth_seconds = predicted_seconds(message, bandwidth_link, ring_above)
        rows.append([latency_seconds / message.seconds, bandwidth_seconds / message.seconds])
    terms = np.array(rows)

    # Both columns get a largest value of 1, since bytes and messages differ by orders of magnitude.
    scale = terms.max(axis=0)
    expected_sums = np.ones(len(messages))
    scaled_solution, _ = nnls(terms / scale, expected_sums)
    solution = np.maximum(scaled_solution / scale, _SMALLEST)
    latency, inverse_bandwidth = solution.tolist()
    return Link(latency, 1 / inverse_bandwidth)


def predicted_seconds(message: Measurement, link: Link, ring_above: float = math.inf) -> float:
    """Return the time of a measured operation by the simulator's formulas, over equal links [s].

    Operations are an all-reduce, a push to a parameter server, or an average by some protocol.
    """
    network = Network(link, link, 1, ring_above)
    if message.operation == ALL_REDUCE:
        return all_reduce_seconds(network, message.workers, message.nbytes)
    if message.operation == PUSH:
        return push_seconds(network, message.nbytes)
    return average_seconds(network, message.operation, message.nbytes)
