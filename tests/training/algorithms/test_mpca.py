"""MPCA SGD: its rules and a run by hand, without waiting, and resumed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import (
    CLUSTER,
    UNEVEN_CLUSTER,
    LinearGradients,
    MemoryCheckpoints,
    StepRecorder,
    constant_step_cluster,
    run,
    toy_rows,
)

from training.algorithms.mpca import Mpca
from training.algorithms.mpca_joint import JointShard, MpcaConstants, contribution, driver_rule

RATE = 0.1
SGD: dict[str, Any] = {"optimizer": "sgd", "learning_rate": RATE}
NO_RAMPS: dict[str, Any] = {"alpha_free": 0, "alpha_ramp": 0, "beta_ramp": 0, "gamma_ramp": 0}
MPCA: dict[str, Any] = {"algorithm": "mpca"}


def mpca(watcher: StepRecorder, rank: int) -> Mpca:
    actual = watcher.algorithms[rank]
    assert isinstance(actual, Mpca)
    return actual


def joint(algorithm: Mpca) -> np.ndarray[Any, Any]:
    actual = np.empty(5)
    algorithm.joint.read(actual)
    return actual


def test_contributions_are_weighted_by_the_steps_of_each_worker() -> None:
    first, second, idle, bad = (
        np.array([1.0, 2.0]),
        np.array([5.0, 6.0]),
        np.array([9.0, 9.0]),
        np.array([np.nan, 0]),
    )
    sent = [contribution(x, steps) for x, steps in ((first, 1), (second, 3), (idle, 0), (bad, 7))]
    np.testing.assert_array_equal(sum(sent), [*(first + 3 * second), 4])
    plain = contribution(first, 1, weighted=False) + contribution(second, 3, weighted=False)
    np.testing.assert_array_equal(plain, [*(first + second), 2])
    assert contribution(first.astype(np.float32), 2).dtype == np.float32


def test_a_cycle_of_the_driver_by_hand() -> None:
    constants = MpcaConstants(**NO_RAMPS)
    shard = JointShard(np.array([1.0]), np.array([0.5]), np.array([7.0]), 3)
    actual = driver_rule(shard, np.array([6.0, 2.0]), constants)
    model = 0.1 * 1 + 0.9 * 3
    trajectory = 0.8 * 0.5 + 0.2 * (model - 1)
    assert actual.cycle == 4
    np.testing.assert_allclose(
        np.concatenate(actual[:3]), [model, trajectory, model + 0.7 * trajectory], rtol=1e-15
    )
    # The earlier projection plays no part, and nothing changes without a contribution.
    assert (
        driver_rule(shard._replace(projected=np.zeros(1)), np.array([6.0, 2.0]), constants).model
        == actual.model
    )
    assert driver_rule(shard, np.zeros(2), constants) is shard


def test_the_pull_towards_the_projection_of_two_steps_ago_by_hand() -> None:
    problem = LinearGradients(workers=3, steps=9, seed=5)
    constants = MpcaConstants(
        alpha=0.3, alpha_peak=0.4, alpha_free=1, alpha_ramp=1, beta_ramp=2, gamma_ramp=2
    )
    settings = MPCA | SGD | constants.model_dump() | {"shards": 1, "cycle_steps": 2}
    watcher = StepRecorder()
    run_of_all = problem.drive(**settings, cluster=UNEVEN_CLUSTER, before_step=watcher)
    local, shard = np.tile(problem.initial, (3, 1)), JointShard.at_start(problem.initial)
    under_way = None
    for step, actual in enumerate(run_of_all):
        local -= constants.alpha_at(shard.cycle) * (local - shard.projected)
        local -= RATE * problem.gradients(step, local)
        np.testing.assert_allclose(actual, local, atol=1e-13)
        if step % 2 == 1:
            if under_way is not None:
                shard = driver_rule(shard, under_way, constants)
            under_way = sum((contribution(vector, 2) for vector in local), np.zeros(6))
    for rank in range(3):
        np.testing.assert_allclose(joint(mpca(watcher, rank)), shard.model, atol=1e-13)


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_replicas_stay_equal_though_nobody_waits(shards: int) -> None:
    slow = UNEVEN_CLUSTER.model_copy(update={"slow_ranks": {2: 10.0}})
    watcher, problem = StepRecorder(), LinearGradients(workers=4, steps=60, seed=6)

    def look(rank: int, step: int, algorithm: Any) -> None:
        watcher(rank, step, algorithm)
        # A checkpoint knows each step, though the last contributions are under way.
        contributed = sum(n * times for n, times in algorithm.counters()["steps_per_cycle"].items())
        under_way = contributed + algorithm.joint.state()["steps"].sum() - shards * step
        assert under_way == (
            algorithm.joint._contributed_steps if algorithm.joint.is_under_way else 0
        )

    problem.drive(**MPCA, **SGD, shards=shards, cluster=slow, before_step=look)
    algorithms = [mpca(watcher, rank) for rank in range(4)]
    states = [each.joint.state() for each in algorithms]
    for state in states[1:]:
        np.testing.assert_array_equal(state["vectors"], states[0]["vectors"])
        np.testing.assert_array_equal(state["counts"], states[0]["counts"])
    counted = [each.counters() for each in algorithms]
    assert len({each["cycles"] for each in counted}) == 1
    # The fast workers take many steps in a cycle of a shard, the slow one a step for each sum.
    means = [sum(n * times for n, times in each["steps_per_cycle"].items()) for each in counted]
    assert means == [60 * shards] * 4, "every step is in one contribution of each shard"
    assert max(counted[2]["steps_per_cycle"]) <= shards + 1
    assert max(counted[0]["steps_per_cycle"]) >= 3
    assert max(counted[0]["staleness"]) >= 2
    # Until the end, nobody waited: the fast workers finished ten times earlier.
    assert watcher.began[0][-1] < 0.3 * watcher.began[2][-1]
    assert algorithms[2].transport.waited < 0.1 * watcher.began[2][-1]


def test_weights_are_the_steps_of_the_workers() -> None:
    slow = constant_step_cluster(1e-3, slow_ranks={1: 4.0}, latency_seconds=1e-6)
    pulls = {}
    for weighted in (True, False):
        problem, watcher = LinearGradients(workers=2, steps=40, seed=7), StepRecorder()
        problem.pulls[0], problem.pulls[1] = 1.0, -1.0
        settings = MPCA | SGD | NO_RAMPS | {"weighted": weighted, "gamma": 0.0, "gamma_ramp": 20}
        seen: list[float] = []

        def look(
            rank: int,
            step: int,
            algorithm: Any,
            seen: list[float] = seen,
            watcher: StepRecorder = watcher,
        ) -> None:
            watcher(rank, step, algorithm)
            if (rank, step) == (0, 39):
                seen.append(float(joint(algorithm).mean()))

        problem.drive(**settings, cluster=slow, before_step=look)
        pulls[weighted] = seen[0]
    assert pulls[True] > pulls[False] + 0.1


def test_by_work_units_workers_resume_with_one_joint_model() -> None:
    memory_checkpoints = MemoryCheckpoints()
    slow = CLUSTER.model_copy(update={"slow_ranks": {2: 5.0}, "latency_seconds": 1e-3})
    settings = MPCA | {"workers": 3, "batch_size": 4, "alpha": 0.3, "alpha_free": 1}
    settings |= {"cluster": slow, "train": toy_rows(240, groups=6), "checkpoint_steps": 3}
    complete = run(files=memory_checkpoints.files, **settings)
    assert complete.records[0][-1]["val_loss"] < complete.records[0][0]["val_loss"]
    middle = [
        position
        for position in sorted(memory_checkpoints.content)
        if len(memory_checkpoints.content[position]) == 3
    ][1]
    numbers = {
        tuple(memory_checkpoints.at(middle).load(rank)["algorithm"]["joint"]["counts"].tolist())
        for rank in range(3)
    }
    assert len(numbers) > 1, "the workers passed the checkpoint at different cycles"
    begun = MemoryCheckpoints()
    resumed = run(files=begun.files, resume=memory_checkpoints.at(middle), **settings)
    ends = [begun.at((2, 0)).load(rank)["algorithm"]["joint"] for rank in range(3)]
    for end in ends[1:]:
        np.testing.assert_array_equal(end["vectors"], ends[0]["vectors"])
    assert resumed.records[0][-1]["val_loss"] == pytest.approx(
        complete.records[0][-1]["val_loss"], rel=0.2
    )
