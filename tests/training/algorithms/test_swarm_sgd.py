"""SwarmSGD by hand: local steps, then the average of already updated models (Migliorini 2020, Algorithm 3)."""

from __future__ import annotations

import numpy as np
import pytest
from simulated import CLUSTER, LinearGradients, Pairs, run

from training.algorithms.swarm_sgd import draw_local_steps
from training.random_streams import random_stream

RATE = 0.1
SWARM = {"algorithm": "swarm-sgd", "optimizer": "sgd", "learning_rate": RATE}


def algorithm_3(
    problem: LinearGradients, start: np.ndarray, *, times: list[float], partners: list[list[int]], local_steps: int
) -> np.ndarray:
    """The models after each step, in plain Python: steps end in the order of time, and an average takes none."""
    now, began = start.copy(), start.copy()
    found = np.empty((problem.steps, *start.shape))
    ends = sorted((times[rank] * (step + 1), rank, step) for rank in range(len(times)) for step in range(problem.steps))
    for _, rank, step in ends:
        now[rank] -= RATE * problem.gradient(rank, step, began[rank])
        if (step + 1) % local_steps == 0:
            other = partners[rank][step // local_steps]
            now[rank] = now[other] = (now[rank] + now[other]) / 2
        began[rank] = found[step, rank] = now[rank]
    return found


@pytest.mark.parametrize("exchange", ["memory", "sockets"])
def test_a_worker_that_was_met_learned_of_the_average_only_after_its_next_local_steps(exchange: str) -> None:
    problem = LinearGradients(workers=3, steps=12, seed=6)
    start = np.random.default_rng(1).normal(size=(3, 5))
    slow, partners = {1: 1.63, 2: 2.37}, [[1, 2, 1, 1], [2, 0, 0, 2], [1, 0, 1, 0]]
    found = problem.drive(
        cluster=CLUSTER.model_copy(update={"slow_ranks": slow}),
        partners=lambda rank: Pairs(partners[rank]),
        initial=start,
        local_steps=3,
        exchange=exchange,
        **SWARM,
    )
    expected = algorithm_3(problem, start, times=[1, 1.63, 2.37], partners=partners, local_steps=3)
    np.testing.assert_allclose(found, expected, atol=1e-14)


def test_geometric_numbers_of_local_steps_have_the_right_mean_and_differ_between_ranks() -> None:
    drawn = []
    for rank in range(2):
        rng = random_stream(1, "local steps", rank)
        drawn.append(np.array([draw_local_steps(3, rng) for _ in range(20_000)]))
        assert drawn[rank].min() == 1
        # Standard deviation of the mean: sqrt(H (H - 1) / 20000) = 0.017.
        assert abs(drawn[rank].mean() - 3) < 0.07
        assert abs((drawn[rank] == 1).mean() - 1 / 3) < 0.015
    assert abs(np.corrcoef(drawn)[0, 1]) < 0.03


def test_geometric_numbers_of_local_steps_are_used() -> None:
    fixed, random = (run(algorithm="swarm-sgd", local_steps_law=law, epochs=4) for law in ("fixed", "geometric"))
    begun = [[sum(r["averages_begun"] for r in records) for records in each.records] for each in (fixed, random)]
    assert len(set(begun[0])) == 1
    assert len(set(begun[1])) > 1
