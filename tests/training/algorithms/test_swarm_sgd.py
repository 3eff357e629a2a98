"""SwarmSGD by hand: local steps, then the average of already updated models (Migliorini 2020, Algorithm 3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import CLUSTER, LinearGradients, ListedPartners

RATE = 0.1
SWARM = {"algorithm": "swarm-sgd", "optimizer": "sgd", "learning_rate": RATE}


def algorithm_3(
    problem: LinearGradients,
    start: np.ndarray,
    *,
    times: list[float],
    partners: list[list[int]],
    local_steps: int,
) -> np.ndarray:
    """The models after each step, in plain Python: steps end in the order of time, and an average takes none."""
    now, began = start.copy(), start.copy()
    actual = np.empty((problem.steps, *start.shape))
    ends = sorted(
        (times[rank] * (step + 1), rank, step)
        for rank in range(len(times))
        for step in range(problem.steps)
    )
    for _, rank, step in ends:
        now[rank] -= RATE * problem.gradient(rank, step, began[rank])
        if (step + 1) % local_steps == 0:
            second = partners[rank][step // local_steps]
            now[rank] = now[second] = (now[rank] + now[second]) / 2
        began[rank] = actual[step, rank] = now[rank]
    return actual


@pytest.mark.parametrize("exchange", ["memory", "sockets"])
def test_a_worker_that_was_met_learned_of_the_average_only_after_its_next_local_steps(
    exchange: str,
) -> None:
    problem = LinearGradients(workers=3, steps=12, seed=6)
    start = np.random.default_rng(1).normal(size=(3, 5))
    slow, partners = {1: 1.63, 2: 2.37}, [[1, 2, 1, 1], [2, 0, 0, 2], [1, 0, 1, 0]]
    actual = problem.drive(
        cluster=CLUSTER.model_copy(update={"slow_ranks": slow}),
        partners=lambda rank: ListedPartners(partners[rank]),
        initial=start,
        local_steps=3,
        exchange=exchange,
        **SWARM,
    )
    expected = algorithm_3(problem, start, times=[1, 1.63, 2.37], partners=partners, local_steps=3)
    np.testing.assert_allclose(actual, expected, atol=1e-14)


def test_numbers_of_local_steps_are_geometric_and_differ_between_ranks() -> None:
    steps, law = 1000, {"local_steps": 3, "local_steps_law": "geometric"}
    problem, ends = LinearGradients(workers=2, steps=steps, seed=6), np.zeros((2, steps))

    def watch(rank: int, step: int, algorithm: Any) -> None:
        ends[rank, step] = algorithm.counters()["averages_begun"]

    problem.drive(**SWARM, **law, before_step=watch)
    for begun in ends:
        drawn = np.diff(np.flatnonzero(np.diff(begun)))
        # Standard deviation of the mean of 333: sqrt(H (H - 1) / 333) = 0.13.
        assert abs(drawn.mean() - 3) < 0.4
        assert abs((drawn == 1).mean() - 1 / 3) < 0.08
    assert abs(np.corrcoef(np.diff(ends))[0, 1]) < 0.1
