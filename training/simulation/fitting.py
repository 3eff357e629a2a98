"""Fits the links of a cost model to measured messages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from training.simulation.costs import Link, Network, all_reduce_seconds, average_seconds, push_seconds
from training.simulation.probe import ALL_REDUCE, PUSH, Measurement

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
