"""MPCA SGD: its rules and a run by hand, without waiting, and resumed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError
from simulated import (
    CLUSTER,
    UNEVEN_CLUSTER,
    LinearGradients,
    MemoryCheckpoints,
    StepRecorder,
    constant_step_cluster,
    run,
    settings,
    toy_rows,
)

from training.algorithms.base import Algorithm
from training.algorithms.mpca import Mpca
from training.algorithms.mpca_joint import (
    JointShard,
    MpcaConstants,
    contribution,
    driver_rule,
)
from training.loop.checkpoints import Checkpoint
from training.loop.summary import summarize_rank, summarize_sums

RATE = 0.1
SGD: dict[str, Any] = {"optimizer": "sgd", "learning_rate": RATE}
NO_RAMPS: dict[str, Any] = {"alpha_free": 0, "alpha_ramp": 0, "beta_ramp": 0, "gamma_ramp": 0}
MPCA: dict[str, Any] = {"algorithm": "mpca"}


def as_mpca(algorithm: Algorithm) -> Mpca:
    assert isinstance(algorithm, Mpca)
    return algorithm


def joint_model(algorithm: Algorithm) -> NDArray[Any]:
    model = np.empty(5)
    as_mpca(algorithm).joint.read(model)
    return model


def test_contributions_are_weighted_by_the_steps_of_each_worker() -> None:
    first = np.array([1.0, 2.0])
    second = np.array([5.0, 6.0])
    not_finite = np.array([np.nan, 0])

    weighted = contribution(first, 1) + contribution(second, 3)
    empty = contribution(second, 0) + contribution(not_finite, 7)
    plain = contribution(first, 1, weighted=False) + contribution(second, 3, weighted=False)

    # The last number counts the steps, or the workers.
    weighted_sum = first + 3 * second
    plain_sum = first + second
    np.testing.assert_array_equal(weighted, [*weighted_sum, 4])
    np.testing.assert_array_equal(empty, 0)
    np.testing.assert_array_equal(plain, [*plain_sum, 2])
    in_single_precision = contribution(first.astype(np.float32), 2)
    assert in_single_precision.dtype == np.float32


def test_a_cycle_of_the_driver_by_hand() -> None:
    constants = MpcaConstants(**NO_RAMPS)
    total = np.array([6.0, 2.0])
    model = np.array([1.0])
    trajectory = np.array([0.5])
    projected = np.array([7.0])
    shard = JointShard(model, trajectory, projected, cycle=3)

    updated = driver_rule(shard, total, constants)

    # The workers have a mean of 6 / 2.
    expected_model = 0.1 * 1 + 0.9 * 3
    expected_trajectory = 0.8 * 0.5 + 0.2 * (expected_model - 1)
    expected_projection = expected_model + 0.7 * expected_trajectory
    assert updated.model == pytest.approx(expected_model, rel=1e-15)
    assert updated.trajectory == pytest.approx(expected_trajectory, rel=1e-15)
    assert updated.projected == pytest.approx(expected_projection, rel=1e-15)
    assert updated.cycle == 4
    # The earlier projection plays no part, and nothing changes without a contribution.
    other_projection = shard._replace(projected=np.zeros(1))
    assert driver_rule(other_projection, total, constants).model == updated.model
    assert driver_rule(shard, np.zeros(2), constants) is shard


def test_the_pull_towards_the_projection_of_two_steps_ago_by_hand() -> None:
    problem = LinearGradients(workers=3, steps=9, seed=5)
    constants = MpcaConstants(
        alpha=0.3, alpha_peak=0.4, alpha_free=1, alpha_ramp=1, beta_ramp=2, gamma_ramp=2
    )
    settings = MPCA | SGD | constants.model_dump() | {"shards": 1, "cycle_steps": 2}
    recorder = StepRecorder()

    trained = problem.drive(**settings, cluster=UNEVEN_CLUSTER, before_step=recorder)

    models = np.tile(problem.initial, (3, 1))
    shard = JointShard.at_start(problem.initial)
    total: NDArray[Any] | None = None
    for step in range(9):
        alpha = constants.alpha_at(shard.cycle)
        models -= alpha * (models - shard.projected)
        models -= RATE * problem.gradients(step, models)
        np.testing.assert_allclose(trained[step], models, atol=1e-13)
        if step % 2 == 1:
            if total is not None:
                shard = driver_rule(shard, total, constants)
            contributions = [contribution(model, 2) for model in models]
            total = np.sum(contributions, axis=0)
    for algorithm in recorder.algorithms.values():
        np.testing.assert_allclose(joint_model(algorithm), shard.model, atol=1e-13)


def test_effective_steps_lead_as_far_as_the_steps_under_a_pull() -> None:
    num_steps = 9
    recorder = StepRecorder()
    problem = LinearGradients(workers=2, steps=num_steps, seed=8, hessian=0.0)
    problem.pulls[:] = 1.0
    results = np.empty((2, 5))
    constants = {"alpha": 0.3, "alpha_free": 0, "alpha_ramp": 0}

    # The joint model stands still until all steps are contributed at the end, with a beta of 1.
    problem.drive(**MPCA, **SGD, **constants, cycle_steps=99, results=results, before_step=recorder)

    num_effective = sum((1 - 0.3) ** power for power in range(num_steps))
    np.testing.assert_allclose(results - problem.initial, RATE * num_effective)
    for algorithm in recorder.algorithms.values():
        assert algorithm.counters()["effective_steps"] == pytest.approx(num_effective)


def test_steps_before_the_first_pull_are_all_effective() -> None:
    recorder = StepRecorder()
    problem = LinearGradients(workers=2, steps=9, seed=8)
    constants = {"alpha": 0.5, "alpha_free": 1, "alpha_ramp": 0, "shards": 1}

    problem.drive(**MPCA, **SGD, **constants, cycle_steps=3, before_step=recorder)

    # The second sum begins after the first has ended, with steps that were not pulled yet.
    pulled = 1 + 0.5 + 0.25
    for algorithm in recorder.algorithms.values():
        assert algorithm.counters()["effective_steps"] == 3 + 3 + pulled


#: Interruptions of a tenth of a second, such as those of ranks without a core of their own.
BUSY_CLUSTER = CLUSTER.model_copy(update={"pause_probability": 0.05, "pause_seconds": 0.1})


def test_on_a_busy_machine_few_sums_leave_little_of_the_steps() -> None:
    """The pull of each step holds workers at the joint model, which waits for the sums."""
    shares = {}
    losses = {}
    sums = {}
    rows = toy_rows(1280)
    for name, cluster in {"quiet": CLUSTER, "busy": BUSY_CLUSTER}.items():
        records = run(**MPCA, train=rows, workers=3, epochs=4, cluster=cluster).records
        numbers = summarize_sums([summarize_rank(history) for history in records])
        shares[name] = numbers["effective_share"]
        sums[name] = numbers["sums"]
        losses[name] = records[0][-1]["val_loss"]

    assert sums["busy"] < 0.3 * sums["quiet"]
    assert shares["quiet"] > 0.8
    assert shares["busy"] < 0.5
    assert losses["busy"] > 1.5 * losses["quiet"]


def contributed_steps(algorithm: Algorithm) -> int:
    """Steps in the contributions that a worker has begun, over all shards."""
    cycles_by_steps: Counter[int] = algorithm.counters()["steps_per_cycle"]
    return sum(steps * num_cycles for steps, num_cycles in cycles_by_steps.items())


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_replicas_stay_equal_though_nobody_waits(shards: int) -> None:
    recorder = StepRecorder()

    def check_checkpoint(rank: int, step: int, algorithm: Algorithm) -> None:
        recorder(rank, step, algorithm)
        # A checkpoint knows each step, though the last contributions are under way.
        joint = as_mpca(algorithm).joint
        under_way = joint._contributed_steps if joint.is_under_way else 0
        finished = contributed_steps(algorithm) - under_way
        in_checkpoint = joint.state()["steps"].sum()
        assert finished + in_checkpoint == shards * step

    problem = LinearGradients(workers=4, steps=60, seed=6)
    cluster = UNEVEN_CLUSTER.model_copy(update={"slow_ranks": {2: 10.0}})
    problem.drive(**MPCA, **SGD, shards=shards, cluster=cluster, before_step=check_checkpoint)

    algorithms = [recorder.algorithms[rank] for rank in range(4)]
    states = [as_mpca(algorithm).joint.state() for algorithm in algorithms]
    for state in states[1:]:
        np.testing.assert_array_equal(state["vectors"], states[0]["vectors"])
        np.testing.assert_array_equal(state["counts"], states[0]["counts"])
    # Every step is in one contribution of each shard.
    for algorithm in algorithms:
        assert contributed_steps(algorithm) == 60 * shards
    # The fast workers take many steps in a cycle of a shard, the slow one a step for each sum.
    fast = algorithms[0].counters()
    slow = algorithms[2].counters()
    assert max(slow["steps_per_cycle"]) <= shards + 1
    assert max(fast["steps_per_cycle"]) >= 3
    assert max(fast["staleness"]) >= 2
    # Until the end, nobody waited: the fast workers finished ten times earlier.
    last_begin = recorder.began[2][-1]
    assert recorder.began[0][-1] < 0.3 * last_begin
    assert algorithms[2].transport.waited < 0.1 * last_begin


@pytest.mark.parametrize("weighted", [True, False])
def test_the_weight_of_a_worker_is_the_number_of_its_steps(weighted: bool) -> None:
    problem = LinearGradients(workers=2, steps=40, seed=7)
    problem.pulls[0] = 1.0
    problem.pulls[1] = -1.0
    last_means: list[float] = []

    def record_last_mean(rank: int, step: int, algorithm: Algorithm) -> None:
        if (rank, step) == (0, 39):
            last_means.append(float(joint_model(algorithm).mean()))

    settings = MPCA | SGD | NO_RAMPS | {"weighted": weighted, "gamma": 0.0, "gamma_ramp": 20}
    cluster = constant_step_cluster(1e-3, slow_ranks={1: 4.0}, latency_seconds=1e-6)
    problem.drive(**settings, cluster=cluster, before_step=record_last_mean)

    # Rank 0 takes four times as many steps. With equal weights the joint model stays near 0.
    if weighted:
        assert last_means[0] > 0.6
    else:
        assert last_means[0] < 0.5


def test_the_network_of_the_shared_counters_can_be_chosen() -> None:
    """The message of ranks that find no network between hosts names this key."""
    chosen = settings(algorithm="mpca", network="ib0")
    assert chosen.algorithm.transport_options.network == "ib0"
    with pytest.raises(ValidationError, match=r"network: ib0 has no effect: .* cycle_steps: null"):
        settings(algorithm="mpca", network="ib0", cycle_steps=2)


def joint_states(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """The state of the joint model of each of three workers."""
    states = [checkpoint.load(rank) for rank in range(3)]
    return [state["algorithm"]["joint"] for state in states]


def test_by_work_units_workers_resume_with_one_joint_model() -> None:
    cluster = CLUSTER.model_copy(update={"slow_ranks": {2: 5.0}, "latency_seconds": 1e-3})
    settings = MPCA | {"workers": 3, "batch_size": 4, "alpha": 0.3, "alpha_free": 1}
    settings |= {"cluster": cluster, "train": toy_rows(240, groups=6), "checkpoint_steps": 3}
    checkpoints = MemoryCheckpoints()
    complete = run(files=checkpoints.files, **settings)
    complete_positions = []
    for position, states in sorted(checkpoints.content.items()):
        if len(states) == 3:
            complete_positions.append(position)
    middle = checkpoints.at(complete_positions[1])
    counts_by_rank = [joint["counts"].tolist() for joint in joint_states(middle)]
    assert counts_by_rank != [counts_by_rank[0]] * 3, "the workers pass at different cycles"

    later_checkpoints = MemoryCheckpoints()
    resumed = run(files=later_checkpoints.files, resume=middle, **settings)

    end = later_checkpoints.at((2, 0))
    first_joint, *other_joints = joint_states(end)
    for joint in other_joints:
        np.testing.assert_array_equal(joint["vectors"], first_joint["vectors"])
    losses = [record["val_loss"] for record in complete.records[0]]
    resumed_loss = resumed.records[0][-1]["val_loss"]
    assert losses[-1] < losses[0]
    assert resumed_loss == pytest.approx(losses[-1], rel=0.2)
