"""What ranks do with the methods of a server and of pairs, for test_servers.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from training.algorithms.base import Algorithm
from training.flat_model import FlatModel
from training.loop.factories import make_algorithm
from training.settings import TrainSettings
from training.transports.basics import Vector, run_now
from training.transports.mpi import MpiTransport
from training.transports.transport import Transport

SIZE, STEPS, RATE = 7, 6, 0.1
#: Counters that say how often a worker met the server, or partners.
COUNTED = ("pushes", "averages_begun", "averages_received")


def settings(section: dict[str, Any], workers: int) -> TrainSettings:
    """A training with SGD."""
    defaults = {
        "workers": workers,
        "precision": "float64",
        "optimizer": "sgd",
        "learning_rate": RATE,
    }
    return TrainSettings.model_validate(defaults | section)


async def train(
    transport: Transport,
    section: dict[str, Any],
    *,
    in_turn: bool,
    curvature: float,
    steps: int = STEPS,
) -> dict[str, Any]:
    """Steps on quadratics with a minimum of each rank and step, all at once or one rank after the other."""
    rank, world_size = transport.rank, transport.world_size
    model = FlatModel(nn.Linear(SIZE, 1, bias=False, dtype=torch.float64))
    model.write(np.linspace(-1, 1, SIZE))
    algorithm = make_algorithm(model, settings(section, world_size), transport)
    pulls = np.random.default_rng(3).normal(size=(world_size, steps, SIZE))
    await algorithm.start()
    for step in range(steps):

        async def compute(step: int = step) -> None:
            at = model.empty()
            model.read(at)
            model.write_gradient(curvature * at - pulls[rank, step])

        for turn in range(world_size if in_turn else 1):
            if turn == rank or not in_turn:
                await algorithm.step(compute, 1)
            if in_turn:
                await transport.barrier()
    result, own_value, current = model.empty(), model.empty(), model.empty()
    await algorithm.quiesce()
    await algorithm.flush()
    await algorithm.result(result)
    await algorithm.current(current)
    model.read(own_value)
    actual = {
        "result": result.tolist(),
        "own": own_value.tolist(),
        "current": current.tolist(),
        **left(algorithm),
    }
    await algorithm.close()
    return actual | {"pulled": pulls.sum(axis=(0, 1)).tolist()}


def left(algorithm: Algorithm) -> dict[str, Any]:
    """The gradients that are not sent, and what was counted."""
    counters = algorithm.counters()
    counted = {key: counters[key] for key in COUNTED if key in counters}
    staleness = dict(counters["staleness"])
    return {
        "not_sent": gradients_not_sent(algorithm).tolist(),
        "counted": counted,
        "staleness": staleness,
    }


def gradients_not_sent(algorithm: Any) -> Vector:
    """The sum of the gradients since the last push, and of what was dropped; 0 for methods without pushes of sums."""
    if hasattr(algorithm, "change"):
        return algorithm.change(algorithm.model.empty()) / -RATE
    if hasattr(algorithm, "residual"):
        return algorithm.residual + algorithm._sum
    return np.zeros(SIZE)


def train_all(
    sections: list[dict[str, Any]], ways: list[dict[str, Any]], in_memory: bool
) -> list[dict[str, Any]]:
    """One training after the other, on MPI."""
    results = []
    for section, how in zip(sections, ways, strict=True):
        transport_options = settings(section, 1).algorithm.transport_options
        transport = MpiTransport(**transport_options._asdict(), shares_memory=in_memory)
        results.append(run_now(train(transport, section, **how)))
        transport.close()
    return results
