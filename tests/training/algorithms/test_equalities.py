"""Every special case in which one method must equal another, or a computation by hand: in the simulator, in double."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from simulated import SEVERAL, LinearGradients, matched, models, run, toy_network, toy_rows
from torch.optim import SGD, Adam, Optimizer

from training.readers.sharding import assignment_of, plan_epoch, step_bounds

OPTIMIZERS: list[dict[str, Any]] = [
    {"optimizer": "sgd"},
    {"optimizer": "sgd", "momentum": 0.9},
    {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01},
    {"optimizer": "adam", "weight_decay": 0.01},
]
#: Row groups of very different sizes, and a number of rows that no number of workers divides.
UNEVEN = replace(toy_rows(323), group_rows=[1, 79, 1, 1, 1, 80, 80, 80])
SGD_ONLY: dict[str, Any] = {"optimizer": "sgd", "scale_learning_rate": False}


def torch_optimizer(chosen: dict[str, Any], parameters: Any, rate: float) -> Optimizer:
    decay = chosen.get("weight_decay", 0.0)
    if chosen["optimizer"] == "adam":
        return Adam(parameters, lr=rate, weight_decay=decay)
    return SGD(parameters, lr=rate, momentum=chosen.get("momentum", 0.0), weight_decay=decay)


def sequential(chosen: dict[str, Any], *, workers: int, rate: float = 0.05, epochs: int = 2) -> NDArray[np.float64]:
    """A plain torch loop over one network that is fed the batches of all workers together."""
    network, rows = toy_network(), UNEVEN
    optimizer = torch_optimizer(chosen, network.parameters(), rate)
    for epoch in range(epochs):
        plan = plan_epoch(rows.group_rows, world_size=workers, batch_size=10, seed=1, epoch=epoch)
        shares = [assignment_of(plan, rank=rank, epoch=epoch) for rank in range(workers)]
        orders = [rows.reading_order(share) for share in shares]
        bounds = [step_bounds(len(order), plan.num_steps) for order in orders]
        for step in range(plan.num_steps):
            picked = np.concatenate([o[b[step] : b[step + 1]] for o, b in zip(orders, bounds, strict=True)])
            batch = rows.rows.batch(picked)
            losses = torch.nn.functional.cross_entropy(network(*batch.inputs), batch.labels, reduction="none")
            optimizer.zero_grad()
            ((losses * batch.weights).sum() / len(picked)).backward()
            optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()]).numpy()


def assert_all_equal(found: NDArray[np.float64], expected: NDArray[np.float64], tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), rtol=0, atol=tolerance)


@pytest.mark.parametrize("chosen", OPTIMIZERS)
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_ar_sgd_is_one_worker_fed_all_batches(chosen: dict[str, Any], workers: int) -> None:
    found = models(run(algorithm="ar-sgd", workers=workers, scale_learning_rate=False, train=UNEVEN, **chosen))
    assert_all_equal(found, sequential(chosen, workers=workers))


@pytest.mark.parametrize("algorithm", ["sgd", "ar-sgd", "local-sgd", "d-psgd", "choco-sgd", "ad-psgd", "swarm-sgd"])
@pytest.mark.parametrize("chosen", OPTIMIZERS)
def test_with_one_worker_every_method_is_sequential(algorithm: str, chosen: dict[str, Any]) -> None:
    found = models(run(algorithm=algorithm, workers=1, local_steps=1, sharding="static", train=UNEVEN, **chosen))
    assert_all_equal(found, sequential(chosen, workers=1))


def test_d_psgd_on_the_complete_graph_is_ar_sgd_in_the_mean_where_gradients_are_linear() -> None:
    problem = LinearGradients(workers=4, steps=20, seed=3)
    mixed = problem.drive(algorithm="d-psgd", topology="complete", **SGD_ONLY)
    together = problem.drive(algorithm="ar-sgd", **SGD_ONLY)
    np.testing.assert_allclose(mixed.mean(axis=1), together.mean(axis=1), atol=1e-12)


def test_ad_psgd_and_swarm_sgd_of_the_same_pairs_move_the_mean_as_ar_sgd_but_not_the_workers() -> None:
    problem = LinearGradients(workers=4, steps=30, seed=3)
    pairs = [[(0, 1), (2, 3)], [(0, 2), (1, 3)]]
    # Who begins is chosen so that both gradients of a pair are at models before the average (AD-PSGD: the later of the
    # two begins), or both at models after it (SwarmSGD: the earlier); else one of each would move the mean differently.
    ad = problem.drive(algorithm="ad-psgd", partners=matched(pairs, max), **SGD_ONLY)
    swarm = problem.drive(algorithm="swarm-sgd", local_steps=1, partners=matched(pairs, min), **SGD_ONLY)
    together = problem.drive(algorithm="ar-sgd", **SGD_ONLY)
    for found in (ad, swarm):
        assert_all_equal(found.mean(axis=1), together.mean(axis=1))
        assert abs(found - together).max() > 1e-2
    assert abs(ad - swarm).max() > 1e-2


@pytest.mark.parametrize("method", SEVERAL)
def test_workers_without_events_take_part_in_the_steps_of_the_others(method: str) -> None:
    simulated = run(train=toy_rows(25, groups=2), **SEVERAL[method], workers=3, sharding="static", batch_size=1)
    smallest = min(records[0]["samples"] for records in simulated.records)
    assert smallest < simulated.records[0][0]["steps"], "a worker with fewer events than steps is wanted"
    assert np.isfinite(models(simulated)).all()
    assert sum(record["steps_not_finite"] for records in simulated.records for record in records) == 0
    assert simulated.records[0][-1]["train_loss"] < simulated.records[0][0]["train_loss"]
