"""Trainings of ranks by methods of a server and of pairs, for test_servers.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from training.algorithms.base import Algorithm
from training.algorithms.push_sum import PushSum
from training.algorithms.server import WindowAlgorithm
from training.algorithms.sharded import Sharded
from training.algorithms.wrapper import Wrapper
from training.flat_model import FlatModel
from training.loop.factories import make_algorithm
from training.settings import TrainSettings
from training.transports.basics import Vector, run_now
from training.transports.mpi import MpiTransport
from training.transports.transport import Transport

SIZE, STEPS, RATE = 7, 6, 0.1
#: Counters of exchanges with the server or with partners.
EXCHANGE_COUNTERS = ("pushes", "averages_begun", "averages_received")


def settings(section: dict[str, Any], workers: int) -> TrainSettings:
    """A training with SGD."""
    sgd = {"optimizer": "sgd", "learning_rate": RATE, "precision": "float64"}
    return TrainSettings.model_validate({"workers": workers} | sgd | section)


async def train(
    transport: Transport,
    section: dict[str, Any],
    *,
    in_turn: bool,
    curvature: float,
    steps: int = STEPS,
) -> dict[str, Any]:
    """Steps on quadratics with a minimum of each rank and step, at once or in turn."""
    rank, world_size = transport.rank, transport.world_size
    model = FlatModel(nn.Linear(SIZE, 1, bias=False, dtype=torch.float64))
    model.write(np.linspace(-1, 1, SIZE))
    algorithm = make_algorithm(model, settings(section, world_size), transport)
    pulls = np.random.default_rng(3).normal(size=(world_size, steps, SIZE))
    sum_of_pulls = np.zeros(SIZE)
    await algorithm.start()
    for step in range(steps):

        async def compute(step: int = step) -> None:
            parameters = read_model(model)
            model.write_gradient(curvature * parameters - pulls[rank, step])
            sum_of_pulls[:] += weight_of_changes(algorithm) * pulls[rank, step]

        if not in_turn:
            await algorithm.step(compute, 1)
            continue
        for turn in range(world_size):
            if turn == rank:
                await algorithm.step(compute, 1)
            await transport.barrier()
    await algorithm.quiesce()
    await algorithm.flush()
    result, current = model.empty(), model.empty()
    await algorithm.result(result)
    await algorithm.current(current)
    await transport.all_reduce_sum(sum_of_pulls)
    counters = algorithm.counters()
    summary = {
        "result": result.tolist(),
        "model": read_model(model).tolist(),
        "current": current.tolist(),
        "unsent": unsent_gradients(algorithm).tolist(),
        "counters": {name: counters[name] for name in EXCHANGE_COUNTERS if name in counters},
        "staleness": dict(counters["staleness"]),
        "sum_of_pulls": sum_of_pulls.tolist(),
    }
    await algorithm.close()
    return summary


def read_model(model: FlatModel) -> Vector:
    parameters = model.empty()
    model.read(parameters)
    return parameters


def weight_of_changes(algorithm: Algorithm) -> float:
    """The factor on the changes of a worker's model in the sum over the workers."""
    while isinstance(algorithm, Wrapper):
        algorithm = algorithm.base
    return float(algorithm._biased[-1]) if isinstance(algorithm, PushSum) else 1.0


def unsent_gradients(algorithm: Algorithm) -> Vector:
    """The sum of the gradients since the last push, and of those dropped.

    0 for methods without pushes of sums.
    """
    while isinstance(algorithm, Wrapper):
        algorithm = algorithm.base
    if isinstance(algorithm, WindowAlgorithm):
        return algorithm.window_change(algorithm.model.empty()) / -RATE
    if isinstance(algorithm, Sharded):
        unsent: Vector = algorithm.residual + algorithm._sum
        return unsent
    return np.zeros(SIZE)


def train_all(
    sections: list[dict[str, Any]], options: list[dict[str, Any]], in_memory: bool
) -> list[dict[str, Any]]:
    """One training after the other, on MPI."""
    results = []
    for section, train_options in zip(sections, options, strict=True):
        transport_options = settings(section, 1).algorithm.transport_options
        transport = MpiTransport(**transport_options._asdict(), shares_memory=in_memory)
        results.append(run_now(train(transport, section, **train_options)))
        transport.close()
    return results
