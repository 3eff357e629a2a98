"""SGP with overlap: workers of any speed, that wait for nobody.

Source: Assran et al. 2019, Algorithm 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from push_sum import OSGP, RATE, Matrix, peers_of, unwrapped, weights_of
from pydantic import ValidationError
from simulated import (
    CLUSTER,
    UNEVEN_CLUSTER,
    LinearGradients,
    MemoryCheckpoints,
    StepRecorder,
    VectorRow,
    run,
    settings,
    toy_rows,
)

from hep_studies.simulator.cluster import ClusterSettings
from hep_studies.simulator.transport import SimNetwork
from hep_studies.simulator.virtual_time import VirtualClock
from training.algorithms.base import Algorithm
from training.algorithms.sgp_overlap import OverlapSgp
from training.loop.factories import make_algorithm


def debiased(biased: Matrix) -> Matrix:
    """The model of a biased model, which has its weight as its last number."""
    model: Matrix = biased[:-1] / biased[-1]
    return model


def osgp_in_order(problem: LinearGradients, order: list[int], *, peers: int) -> Matrix:
    """The models of the workers that step in an order, after each step, (steps, parameters).

    A message has arrived before the next step of any worker. A worker that has not stepped since
    `peers` messages came takes no further one: the share returns to its sender. A worker with less
    than 0.75 of the mean weight sends none.
    """
    workers = problem.workers
    biased_models = np.tile(problem.initial, (workers, 1))
    weights = np.ones((workers, 1))
    state = np.hstack([biased_models, weights])
    returned = np.zeros_like(state)
    num_unread = [0] * workers
    num_steps = [0] * workers
    seen = state.copy()
    models = []
    for rank in order:
        step = num_steps[rank]
        seen_model = debiased(seen[rank])
        seen_weight = seen[rank, -1]
        gradient = problem.gradient(rank, step, seen_model)
        state[rank, :-1] -= seen_weight * RATE * gradient
        state[rank] += returned[rank]
        returned[rank] = 0
        num_unread[rank] = 0
        seen[rank] = state[rank]
        receivers = peers_of(rank, step, workers=workers, peers=peers)
        if state[rank, -1] < 0.75:
            receivers = []
        share = state[rank] / (len(receivers) + 1)
        state[rank] = share
        for receiver in receivers:
            if num_unread[receiver] < peers:
                state[receiver] += share
                num_unread[receiver] += 1
            else:
                returned[rank] += share
        num_steps[rank] += 1
        models.append(debiased(seen[rank]))
    return np.array(models)


@pytest.mark.parametrize("workers_per_host", [1, 8])
@pytest.mark.parametrize(("workers", "peers"), [(2, 1), (5, 1), (8, 1), (5, 2)])
def test_with_overlap_workers_add_what_has_arrived_in_any_order_of_their_steps(
    workers: int, peers: int, workers_per_host: int
) -> None:
    problem = LinearGradients(workers=workers, steps=60, seed=4)
    order = np.random.default_rng(workers).integers(workers, size=60).tolist()
    clock = VirtualClock()
    cluster = CLUSTER.model_copy(update={"workers_per_host": workers_per_host})
    network = SimNetwork(clock, cluster, workers)
    train = settings(**OSGP, workers=workers, peers=peers)
    rows = [VectorRow(problem.initial) for _ in range(workers)]
    algorithms = []
    for row, transport in zip(rows, network.transports(), strict=True):
        algorithms.append(make_algorithm(row, train, transport))
    actual = []

    async def step_in_order() -> None:
        # The workers start together, in the tasks below.
        await clock.sleep(1)
        num_steps = [0] * workers
        for rank in order:

            async def compute(rank: int = rank) -> None:
                row = rows[rank]
                model = row.parameters.copy()
                row.write_gradient(problem.gradient(rank, num_steps[rank], model))

            await algorithms[rank].step(compute, 1)
            num_steps[rank] += 1
            actual.append(rows[rank].parameters.copy())
            # Longer than a message takes.
            await clock.sleep(1)

    for rank, worker in enumerate(algorithms):
        clock.spawn(worker.start(), f"start of {rank}")
    clock.spawn(step_in_order(), "steps")
    clock.run()

    expected = osgp_in_order(problem, order, peers=peers)
    np.testing.assert_allclose(actual, expected, atol=1e-12)


def test_with_overlap_workers_of_unequal_speed_agree_on_the_mean() -> None:
    problem = LinearGradients(workers=6, steps=80, seed=1, hessian=0, noise=0)
    start = np.random.default_rng(3).normal(size=(6, 5))

    trained = problem.drive(**OSGP, initial=start, cluster=UNEVEN_CLUSTER)

    expected = np.tile(start.mean(axis=0), (6, 1))
    np.testing.assert_allclose(trained[-1], expected, atol=1e-3)


@pytest.mark.parametrize(
    "uneven",
    [
        UNEVEN_CLUSTER.model_copy(update={"workers_per_host": 8}),
        CLUSTER.model_copy(update={"jitter": 0.1, "workers_per_host": 8}),
        CLUSTER.model_copy(update={"slow_ranks": {2: 10.0}}),
    ],
    ids=["uneven", "jitter", "slow"],
)
def test_with_overlap_models_stay_as_near_to_the_optimum_as_those_of_pairs(
    uneven: ClusterSettings,
) -> None:
    problem = LinearGradients(workers=8, steps=300, seed=1)
    recorder = StepRecorder()
    lowest_weights = []

    def note_weight(rank: int, step: int, algorithm: Algorithm) -> None:
        recorder(rank, step, algorithm)
        lowest_weights.append(min(weights_of(recorder)))

    fast = {"optimizer": "sgd", "learning_rate": 1.0, "cluster": uneven}
    trained = problem.drive(algorithm="sgp", overlap=True, **fast, before_step=note_weight)
    trained_by_pairs = problem.drive(algorithm="ad-psgd", **fast)

    assert min(lowest_weights) > 0.15
    # The optimum is at 0.
    distance = np.sqrt(np.mean(trained**2))
    distance_by_pairs = np.sqrt(np.mean(trained_by_pairs**2))
    assert distance < 1.5 * distance_by_pairs


def test_an_outer_step_of_slowmo_moves_models_of_any_weight_by_its_change() -> None:
    problem = LinearGradients(workers=4, steps=24, seed=2)
    moves: list[tuple[Matrix, Matrix]] = []
    weights = []
    add = OverlapSgp.add

    async def checked_add(worker: OverlapSgp, change: Matrix) -> None:
        model = np.empty(5)
        moved_model = np.empty(5)
        await worker.current(model)
        weights.append(float(worker._biased[-1]))
        await add(worker, change)
        await worker.current(moved_model)
        moves.append((moved_model - model, change))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OverlapSgp, "add", checked_add)
        # With the exact average no message comes meanwhile.
        slowmo = {"tau": 4, "beta": 0.6, "exact_average": True}
        problem.drive(**OSGP, cluster=UNEVEN_CLUSTER, slowmo=slowmo)

    assert np.ptp(weights) > 0.1, "the test needs unequal weights"
    for move, change in moves:
        assert np.abs(change).max() > 1e-3
        np.testing.assert_allclose(move, change, atol=1e-12)


def test_a_snapshot_is_the_mean_of_the_biased_models_and_the_distance_from_it() -> None:
    problem = LinearGradients(workers=4, steps=24, seed=2)
    recorder = StepRecorder()
    results = np.empty((4, 5))
    snapshots = []
    distances = []
    result = OverlapSgp.result

    async def snapshot_then_result(worker: OverlapSgp, out: Matrix) -> None:
        # No message is under way after `flush`, so nothing changes meanwhile.
        snapshot = np.empty(5)
        distances.append(await worker.snapshot(snapshot))
        snapshots.append(snapshot)
        await result(worker, out)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OverlapSgp, "result", snapshot_then_result)
        problem.drive(**OSGP, cluster=UNEVEN_CLUSTER, before_step=recorder, results=results)

    np.testing.assert_allclose(snapshots, results, atol=1e-12)
    biased_models = [unwrapped(worker)._biased for worker in recorder.algorithms.values()]
    models = np.array([debiased(biased) for biased in biased_models])
    weights = np.array([biased[-1] for biased in biased_models])
    assert np.ptp(weights) > 0.1, "the test needs unequal weights"
    mean_model = np.average(models, axis=0, weights=weights)
    np.testing.assert_allclose(results[0], mean_model, atol=1e-12)
    squares = np.square(models - mean_model).sum(axis=1)
    np.testing.assert_allclose(distances, np.sqrt(squares.mean()), rtol=1e-12)


def test_the_weight_does_not_gather_at_a_worker_that_has_stopped() -> None:
    problem = LinearGradients(workers=4, steps=300, seed=1)
    recorder = StepRecorder()
    stopped = CLUSTER.model_copy(update={"slow_ranks": {2: 1e4}})
    lowest_weights = []

    def note_weight(rank: int, step: int, algorithm: Algorithm) -> None:
        recorder(rank, step, algorithm)
        if rank != 2:
            lowest_weights.append(min(weights_of(recorder)))

    problem.drive(**OSGP, cluster=stopped, before_step=note_weight)

    assert min(lowest_weights) > 0.1
    for rank in (0, 1, 3):
        last_begin = recorder.began[rank][-1]
        assert last_begin == pytest.approx(0.3, rel=0.1), "nobody waits for the stopped worker"
    # Worker 2 is one ahead of worker 1, and two ahead of worker 0, at every second step.
    for rank in (0, 1):
        assert recorder.algorithms[rank].counters()["messages_returned"] > 100


def test_weights_add_up_again_after_checkpoints_of_different_times() -> None:
    def total_weight(position: tuple[int, int]) -> float:
        checkpoint = checkpoints.at(position)
        total = 0.0
        for rank in range(4):
            state = checkpoint.load(rank)["algorithm"]
            biased = state["attributes"]["_biased"][-1]
            total += float(biased[-1])
        return total

    checkpoints = MemoryCheckpoints()
    selected: dict[str, Any] = {**OSGP, "cluster": UNEVEN_CLUSTER, "train": toy_rows(320)}
    run(**selected, files=checkpoints.files)
    middle = checkpoints.at((1, 0))
    assert total_weight((1, 0)) != pytest.approx(4, abs=1e-3), "the test needs messages under way"

    resumed = run(**selected, files=checkpoints.files, resume=middle)

    assert total_weight((2, 0)) == pytest.approx(4, abs=1e-12)
    assert np.isfinite(resumed.records[0][-1]["val_loss"])


def test_fewer_workers_start_from_the_mean_by_weights() -> None:
    checkpoints = MemoryCheckpoints()
    resumed_checkpoints = MemoryCheckpoints()
    selected: dict[str, Any] = {**OSGP, "cluster": UNEVEN_CLUSTER, "train": toy_rows(320)}
    run(**selected, files=checkpoints.files)
    middle = checkpoints.at((1, 0))
    states = [middle.load(rank) for rank in range(4)]
    models = [state["current"].numpy() for state in states]
    weights = [state["algorithm"]["weight"] for state in states]

    # The learning rate leaves the models where they start.
    standing = selected | {"learning_rate": 1e-15, "workers": 2}
    run(**standing, files=resumed_checkpoints.files, resume=middle)

    expected = np.average(models, axis=0, weights=weights)
    unweighted = np.mean(models, axis=0)
    assert np.abs(expected - unweighted).max() > 1e-3, "the weights matter"
    end = resumed_checkpoints.at((2, 0))
    for rank in range(2):
        model = end.load(rank)["current"].numpy()
        np.testing.assert_allclose(model, expected, atol=1e-8)


def test_a_network_without_messages_between_hosts_of_its_own_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"network: ib0 has no effect: .* overlap: true"):
        settings(algorithm="sgp", network="ib0")
