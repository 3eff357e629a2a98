"""Stochastic gradient push in tests: its settings, its graph by hand, and its weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from simulated import StepRecorder

from training.algorithms.base import Algorithm
from training.algorithms.push_sum import PushSum
from training.algorithms.wrapper import Wrapper

RATE = 0.1
SGD: dict[str, Any] = {"optimizer": "sgd", "learning_rate": RATE}
SGP: dict[str, Any] = {"algorithm": "sgp", **SGD}
OSGP: dict[str, Any] = SGP | {"overlap": True}
Matrix = NDArray[np.float64]


def peers_of(rank: int, step: int, *, workers: int, peers: int) -> list[int]:
    """The next peers on the directed exponential graph."""
    hops = [hop for hop in (1, 2, 4, 8) if hop < workers]
    ranks_of_peers = []
    for message in range(step * peers, (step + 1) * peers):
        hop = hops[message % len(hops)]
        ranks_of_peers.append((rank + hop) % workers)
    return ranks_of_peers


def unwrapped(algorithm: Algorithm) -> PushSum:
    while isinstance(algorithm, Wrapper):
        algorithm = algorithm.base
    assert isinstance(algorithm, PushSum)
    return algorithm


def weights_of(recorder: StepRecorder) -> list[float]:
    return [float(unwrapped(worker)._biased[-1]) for worker in recorder.algorithms.values()]
