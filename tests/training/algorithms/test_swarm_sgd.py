"""SwarmSGD by hand: local steps, then the average of already updated models (Migliorini 2020, Algorithm 3)."""

from __future__ import annotations

import numpy as np
import pytest
from simulated import CLUSTER, LinearGradients, Pairs, Watcher, run

from training.algorithms.swarm_sgd import SwarmSgd, draw_local_steps
from training.random_streams import random_stream

RATE = 0.1
SWARM = {"algorithm": "swarm-sgd", "optimizer": "sgd", "learning_rate": RATE}


@pytest.mark.parametrize("exchange", ["memory", "sockets"])
def test_two_local_steps_then_the_average_of_updated_models(exchange: str) -> None:
    # Rank 1, whose steps take 1.6 times as long, begins an average with rank 0 after each two of its steps.
    problem = LinearGradients(workers=2, steps=4, seed=6)
    start = np.random.default_rng(1).normal(size=(2, 5))
    watcher = Watcher()
    found = problem.drive(
        cluster=CLUSTER.model_copy(update={"slow_ranks": {1: 1.6}}),
        partners=lambda rank: Pairs([0] if rank else [None]),
        initial=start,
        before_step=watcher,
        local_steps=2,
        exchange=exchange,
        **SWARM,
    )

    def trained(rank: int, step: int, at: np.ndarray) -> np.ndarray:
        return at - RATE * problem.gradient(rank, step, at)

    first = [trained(0, 0, start[0])]
    first.append(trained(0, 1, first[0]))  # published at 2 ms
    second = [trained(1, 0, start[1])]  # at 1.6 ms
    average = (first[1] + trained(1, 1, second[0])) / 2  # at 3.2 ms
    second.append(average)
    # Rank 0 took its third step before the average; its progress since 2 ms comes on top of the average.
    first.append(trained(0, 2, first[1]))
    first.append(average + trained(0, 3, first[2]) - first[1])
    second.append(trained(1, 2, average))
    second.append((first[3] + trained(1, 3, second[2])) / 2)  # at 6.4 ms
    np.testing.assert_allclose(found[:, 0], first, atol=1e-14)
    np.testing.assert_allclose(found[:, 1], second, atol=1e-14)
    # Rank 0 published at 2 ms and, one average later, at 4 ms; rank 1 at 3.2 ms and, after its own average, at 6.4 ms.
    assert vars(watcher.algorithms[0])["staleness"] == {0: 1, 1: 1}
    assert vars(watcher.algorithms[1])["staleness"] == {0: 2}


def test_the_present_model_is_the_published_one_and_private_progress() -> None:
    problem = LinearGradients(workers=2, steps=3, seed=6)
    watcher = Watcher()
    found = problem.drive(local_steps=5, before_step=watcher, **SWARM)
    for rank in range(2):
        swarm = watcher.algorithms[rank]
        assert isinstance(swarm, SwarmSgd)
        shared = swarm.shared
        np.testing.assert_array_equal(shared.values, problem.initial)  # type: ignore[attr-defined]
        present = problem.initial
        for step in range(3):
            present = present - RATE * problem.gradient(rank, step, present)
            np.testing.assert_allclose(found[step, rank], present, atol=1e-14)


def test_an_average_comes_after_every_h_steps() -> None:
    simulated = run(algorithm="swarm-sgd", local_steps=3, epochs=3)
    for records in simulated.records:
        assert sum(record["averages_begun"] for record in records) == 3 * 8 // 3
        assert sum(sum(record["staleness"].values()) for record in records) == 3 * 8 // 3


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
