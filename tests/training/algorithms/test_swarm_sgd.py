"""SwarmSGD by hand: local steps, then the average of already updated models.

Source: Migliorini 2020, Algorithm 3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import CLUSTER, LinearGradients, ListedPartners

RATE = 0.1
SWARM = {"algorithm": "swarm-sgd", "optimizer": "sgd", "learning_rate": RATE}
STEP_MILLISECONDS = [1, 1.63, 2.37]
#: Partners of each rank, after three local steps each.
PARTNERS = [[1, 2, 1, 1], [2, 0, 0, 2], [1, 0, 1, 0]]


def algorithm_3(problem: LinearGradients, start: np.ndarray) -> np.ndarray:
    """The models after each step: steps end in the order of time, and an average takes none."""
    models = start.copy()
    snapshots = start.copy()
    trained = np.empty((problem.steps, *start.shape))
    step_ends = []
    for rank, milliseconds in enumerate(STEP_MILLISECONDS):
        step_ends += [(milliseconds * (step + 1), rank, step) for step in range(problem.steps)]
    for _, rank, step in sorted(step_ends):
        models[rank] -= RATE * problem.gradient(rank, step, snapshots[rank])
        if step % 3 == 2:
            partner = PARTNERS[rank][step // 3]
            average = (models[rank] + models[partner]) / 2
            models[rank] = average
            models[partner] = average
        snapshots[rank] = models[rank]
        trained[step, rank] = models[rank]
    return trained


@pytest.mark.parametrize("exchange", ["memory", "sockets"])
def test_a_worker_continues_from_the_average_of_a_partner_at_its_next_step(exchange: str) -> None:
    problem = LinearGradients(workers=3, steps=12, seed=6)
    start = np.random.default_rng(1).normal(size=(3, 5))
    slow_ranks = dict(enumerate(STEP_MILLISECONDS))
    cluster = CLUSTER.model_copy(update={"slow_ranks": slow_ranks})

    trained = problem.drive(
        cluster=cluster,
        partners=lambda rank: ListedPartners(PARTNERS[rank]),
        initial=start,
        local_steps=3,
        exchange=exchange,
        **SWARM,
    )

    expected = algorithm_3(problem, start)
    np.testing.assert_allclose(trained, expected, atol=1e-14)


def test_numbers_of_local_steps_are_geometric_and_differ_between_ranks() -> None:
    steps = 1000
    problem = LinearGradients(workers=2, steps=steps, seed=6)
    averages_begun = np.zeros((2, steps))

    def record_averages(rank: int, step: int, algorithm: Any) -> None:
        averages_begun[rank, step] = algorithm.counters()["averages_begun"]

    law = {"local_steps": 3, "local_steps_law": "geometric"}
    problem.drive(**SWARM, **law, before_step=record_averages)

    begins_average = np.diff(averages_begun)
    for rank in range(2):
        local_steps = np.diff(np.flatnonzero(begins_average[rank]))
        # Standard deviation of the mean of 333: sqrt(H (H - 1) / 333) = 0.13.
        share_of_single_steps = np.mean(local_steps == 1)
        assert local_steps.mean() == pytest.approx(3, abs=0.4)
        assert share_of_single_steps == pytest.approx(1 / 3, abs=0.08)
    correlation = np.corrcoef(begins_average)[0, 1]
    assert abs(correlation) < 0.1
