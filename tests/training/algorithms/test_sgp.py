"""SGP by hand, and what no interleaving of its messages changes.

Source: Assran et al. 2019, Algorithms 1 and 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from numpy.typing import NDArray
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
    toy_network,
    toy_rows,
)

from hep_studies.simulator.cluster import ClusterSettings
from hep_studies.simulator.transport import SimNetwork
from hep_studies.simulator.virtual_time import VirtualClock
from training.algorithms.base import Algorithm
from training.algorithms.sgp import Sgp
from training.algorithms.wrapper import Wrapper
from training.errors import IdleSettingError
from training.loop.factories import make_algorithm

RATE = 0.1
SGD: dict[str, Any] = {"optimizer": "sgd", "learning_rate": RATE}
SGP: dict[str, Any] = {"algorithm": "sgp", **SGD}
OSGP: dict[str, Any] = SGP | {"overlap": True}
Matrix = NDArray[np.float64]

clusters = st.builds(
    ClusterSettings,
    step_seconds=st.sampled_from([0.0, 1e-3]),
    jitter=st.sampled_from([0.0, 0.3, 1.0]),
    slow_ranks=st.dictionaries(st.integers(0, 7), st.sampled_from([0.5, 2.0, 10.0]), max_size=3),
    pause_probability=st.sampled_from([0.0, 0.2]),
    pause_seconds=st.just(5e-3),
    latency_seconds=st.sampled_from([0.0, 1e-6, 5e-4, 2e-3]),
)


def peers_of(rank: int, step: int, *, workers: int, peers: int) -> list[int]:
    """The next peers on the directed exponential graph."""
    hops = [hop for hop in (1, 2, 4, 8) if hop < workers]
    return [(rank + hops[(step * peers + index) % len(hops)]) % workers for index in range(peers)]


def push_matrix(step: int, *, workers: int, peers: int) -> Matrix:
    """P of a step: column j has the shares that worker j sends, and the one that it keeps."""
    matrix = np.eye(workers)
    for sender in range(workers):
        for receiver in peers_of(sender, step, workers=workers, peers=peers):
            matrix[receiver, sender] += 1
    return matrix / (peers + 1)


def unwrapped(algorithm: Algorithm) -> Sgp:
    while isinstance(algorithm, Wrapper):
        algorithm = algorithm.base
    assert isinstance(algorithm, Sgp)
    return algorithm


def weights_of(recorder: StepRecorder) -> list[float]:
    return [float(unwrapped(worker)._biased[-1]) for worker in recorder.algorithms.values()]


@pytest.mark.parametrize(("workers", "peers"), [(2, 1), (5, 1), (8, 1), (3, 2), (6, 2), (9, 2)])
def test_it_is_algorithm_1(workers: int, peers: int) -> None:
    problem = LinearGradients(workers=workers, steps=12, seed=2)
    biased = np.tile(problem.initial, (workers, 1))
    weights = np.ones((workers, 1))
    momentum = np.zeros_like(biased)

    trained = problem.drive(**SGP, peers=peers, momentum=0.5)

    for step in range(12):
        momentum = 0.5 * momentum + problem.gradients(step, biased / weights)
        matrix = push_matrix(step, workers=workers, peers=peers)
        biased = matrix @ (biased - RATE * momentum)
        weights = matrix @ weights
        np.testing.assert_allclose(trained[step], biased / weights, atol=1e-12)


def test_slowmo_goes_around_it_as_in_its_paper() -> None:
    """Wang et al. 2019, Algorithm 1, with its exact average of the de-biased models."""
    problem = LinearGradients(workers=4, steps=12, seed=2)
    outer_model, slow_momentum = problem.initial, np.zeros(5)
    models = np.tile(outer_model, (4, 1))

    slowmo = {"tau": 3, "alpha": 0.9, "beta": 0.6, "exact_average": True}
    trained = problem.drive(**SGP, slowmo=slowmo)

    for step in range(12):
        matrix = push_matrix(step, workers=4, peers=1)
        models = matrix @ (models - RATE * problem.gradients(step, models))
        if step % 3 == 2:
            slow_momentum = 0.6 * slow_momentum + (outer_model - models.mean(axis=0)) / RATE
            outer_model = outer_model - 0.9 * RATE * slow_momentum
            models = np.tile(outer_model, (4, 1))
        np.testing.assert_allclose(trained[step], models, atol=1e-12)


def osgp_in_order(problem: LinearGradients, order: list[int], *, peers: int) -> Matrix:
    """The models of the workers that step in an order, after each step, (steps, parameters).

    A message has arrived before the next step of any worker. A worker that has not stepped since
    `peers` messages came takes no further one: the share returns to its sender. A worker with less
    than 0.75 of the mean weight sends none.
    """
    workers = problem.workers
    state = np.hstack([np.tile(problem.initial, (workers, 1)), np.ones((workers, 1))])
    returned = np.zeros_like(state)
    num_unread = [0] * workers
    num_steps = [0] * workers
    seen = state.copy()
    models = []
    for rank in order:
        step = num_steps[rank]
        change = -RATE * problem.gradient(rank, step, seen[rank, :-1] / seen[rank, -1])
        state[rank, :-1] += seen[rank, -1] * change
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
        models.append(seen[rank, :-1] / seen[rank, -1])
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
    algorithms = [
        make_algorithm(row, train, transport)
        for row, transport in zip(rows, network.transports(), strict=True)
    ]
    actual = []

    async def step_in_order() -> None:
        # The workers start together, in the tasks below.
        await clock.sleep(1)
        num_steps = [0] * workers
        for rank in order:

            async def compute(rank: int = rank) -> None:
                at = rows[rank].parameters.copy()
                rows[rank].write_gradient(problem.gradient(rank, num_steps[rank], at))

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


@pytest.mark.parametrize("workers", [2, 4, 8, 16])
def test_a_power_of_2_of_workers_has_the_mean_after_its_logarithm_of_steps(workers: int) -> None:
    num_steps = workers.bit_length() - 1
    problem = LinearGradients(workers=workers, steps=num_steps, seed=1, hessian=0, noise=0)
    start = np.random.default_rng(3).normal(size=(workers, 5))

    trained = problem.drive(**SGP, initial=start)

    mean = start.mean(axis=0)
    np.testing.assert_allclose(trained[-1], np.tile(mean, (workers, 1)), atol=1e-14)
    assert abs(trained[:-1] - mean).max(initial=1.0) > 0.1


@hypothesis_settings(max_examples=60)
@given(
    workers=st.integers(3, 8),
    peers=st.integers(1, 2),
    overlap=st.booleans(),
    seed=st.integers(0, 1000),
    cluster=clusters,
    # Outer steps that are none: alpha 1, beta 0.
    tau=st.integers(0, 4),
)
def test_the_sums_of_models_and_weights_change_by_the_gradients_alone(
    workers: int, peers: int, overlap: bool, seed: int, cluster: ClusterSettings, tau: int
) -> None:
    # Gradients that do not depend on the models.
    problem = LinearGradients(workers=workers, steps=8, seed=seed, hessian=0)
    recorder = StepRecorder()
    start = np.random.default_rng(seed).normal(size=(workers, 5))
    results = np.empty((workers, 5))
    weights = np.empty((workers, 8))

    def note_weight(rank: int, step: int, algorithm: Algorithm) -> None:
        recorder(rank, step, algorithm)
        weights[rank, step] = unwrapped(algorithm)._biased[-1]

    problem.drive(
        **SGP,
        peers=peers,
        overlap=overlap,
        cluster=cluster,
        initial=start,
        before_step=note_weight,
        results=results,
        slowmo={"tau": tau, "beta": 0} if tau else None,
    )

    assert sum(weights_of(recorder)) == pytest.approx(workers, abs=1e-12)
    changes = RATE * weights[:, :, np.newaxis] * problem.pulls
    expected = start.mean(axis=0) + changes.sum(axis=(0, 1)) / workers
    np.testing.assert_allclose(results, np.tile(expected, (workers, 1)), atol=1e-12)


def test_with_overlap_workers_of_unequal_speed_agree_on_the_mean() -> None:
    problem = LinearGradients(workers=6, steps=80, seed=1, hessian=0, noise=0)
    start = np.random.default_rng(3).normal(size=(6, 5))

    trained = problem.drive(**OSGP, initial=start, cluster=UNEVEN_CLUSTER)

    np.testing.assert_allclose(trained[-1], np.tile(start.mean(axis=0), (6, 1)), atol=1e-3)


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
    of_pairs = problem.drive(algorithm="ad-psgd", **fast)

    assert min(lowest_weights) > 0.15
    assert np.sqrt(np.mean(trained**2)) < 1.5 * np.sqrt(np.mean(of_pairs**2))


def test_an_outer_step_of_slowmo_moves_models_of_any_weight_by_its_change() -> None:
    problem = LinearGradients(workers=4, steps=24, seed=2)
    moves: list[tuple[Matrix, Matrix]] = []
    weights = []
    add = Sgp.add

    async def checked_add(worker: Sgp, change: Matrix) -> None:
        model, moved_model = np.empty(5), np.empty(5)
        await worker.current(model)
        weights.append(float(worker._biased[-1]))
        await add(worker, change)
        await worker.current(moved_model)
        moves.append((moved_model - model, change))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sgp, "add", checked_add)
        # With the exact average no message comes meanwhile.
        slowmo = {"tau": 4, "beta": 0.6, "exact_average": True}
        problem.drive(**OSGP, cluster=UNEVEN_CLUSTER, slowmo=slowmo)

    assert max(weights) - min(weights) > 0.1, "the test needs unequal weights"
    for move, change in moves:
        assert np.abs(change).max() > 1e-3
        np.testing.assert_allclose(move, change, atol=1e-12)


def test_a_snapshot_is_the_mean_of_the_biased_models_and_the_distance_from_it() -> None:
    problem, recorder = LinearGradients(workers=4, steps=24, seed=2), StepRecorder()
    results, snapshots, distances = np.empty((4, 5)), [], []
    result = Sgp.result

    async def snapshot_then_result(worker: Sgp, out: Matrix) -> None:
        # No message is under way after `flush`, so nothing changes meanwhile.
        snapshot = np.empty(5)
        distances.append(await worker.snapshot(snapshot))
        snapshots.append(snapshot)
        await result(worker, out)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sgp, "result", snapshot_then_result)
        problem.drive(**OSGP, cluster=UNEVEN_CLUSTER, before_step=recorder, results=results)

    np.testing.assert_allclose(snapshots, results, atol=1e-12)
    biased = np.array([unwrapped(worker)._biased for worker in recorder.algorithms.values()])
    models, weights = biased[:, :-1] / biased[:, -1:], biased[:, -1]
    assert np.ptp(weights) > 0.1, "the test needs unequal weights"
    np.testing.assert_allclose(results[0], np.average(models, axis=0, weights=weights), atol=1e-12)
    squares = np.square(models - results[0]).sum(axis=1)
    np.testing.assert_allclose(distances, np.sqrt(squares.mean()), rtol=1e-12)


def test_the_weight_does_not_gather_at_a_worker_that_has_stopped() -> None:
    problem, recorder = LinearGradients(workers=4, steps=300, seed=1), StepRecorder()
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


@pytest.mark.parametrize("method", [SGP, OSGP], ids=["waiting", "overlap"])
def test_a_biased_model_that_is_not_finite_reaches_nobody_and_is_given_up(
    method: dict[str, Any],
) -> None:
    problem = LinearGradients(workers=4, steps=12, seed=1)

    def spoil(rank: int, step: int, algorithm: Algorithm) -> None:
        if (rank, step) == (1, 4):
            worker = unwrapped(algorithm)
            spoilt = worker._unshared if method is OSGP else worker._biased
            spoilt[0] = np.inf

    trained = problem.drive(**method, before_step=spoil)

    assert np.isfinite(trained).all()


def test_messages_go_one_way() -> None:
    train = toy_rows(320)
    to_one = run(**SGP, train=train, epochs=1).records[0][0]
    to_two = run(**SGP, peers=2, train=train, epochs=1).records[0][0]

    message_bytes = 8 * (sum(weights.numel() for weights in toy_network().parameters()) + 1)
    assert to_two["bytes_sent"] - to_one["bytes_sent"] == to_one["steps"] * message_bytes
    assert (to_one["messages"], to_two["messages"]) == (to_one["steps"], 2 * to_one["steps"])


def test_weights_add_up_again_after_checkpoints_of_different_times() -> None:
    def total_weight(position: tuple[int, int]) -> float:
        states = [checkpoints.at(position).load(rank)["algorithm"] for rank in range(4)]
        return sum(float(state["attributes"]["_biased"][-1][-1]) for state in states)

    checkpoints = MemoryCheckpoints()
    selected: dict[str, Any] = {**OSGP, "cluster": UNEVEN_CLUSTER, "train": toy_rows(320)}
    run(**selected, files=checkpoints.files)
    middle = checkpoints.at((1, 0))
    assert total_weight((1, 0)) != pytest.approx(4, abs=1e-3), "the test needs messages under way"

    resumed = run(**selected, files=checkpoints.files, resume=middle)

    assert total_weight((2, 0)) == pytest.approx(4, abs=1e-12)
    assert np.isfinite(resumed.records[0][-1]["val_loss"])


def test_fewer_workers_start_from_the_mean_by_weights() -> None:
    checkpoints, resumed_checkpoints = MemoryCheckpoints(), MemoryCheckpoints()
    selected: dict[str, Any] = {**OSGP, "cluster": UNEVEN_CLUSTER, "train": toy_rows(320)}
    run(**selected, files=checkpoints.files)
    states = [checkpoints.at((1, 0)).load(rank) for rank in range(4)]
    models = [state["current"].numpy() for state in states]
    weights = [state["algorithm"]["weight"] for state in states]

    # The learning rate leaves the models where they start.
    standing = selected | {"learning_rate": 1e-15, "workers": 2}
    run(**standing, files=resumed_checkpoints.files, resume=checkpoints.at((1, 0)))

    expected = np.average(models, axis=0, weights=weights)
    assert np.abs(expected - np.mean(models, axis=0)).max() > 1e-3, "the weights matter"
    for rank in range(2):
        started = resumed_checkpoints.at((2, 0)).load(rank)["current"].numpy()
        np.testing.assert_allclose(started, expected, atol=1e-8)


def test_two_peers_of_two_workers_are_refused() -> None:
    two_peers = {"algorithm": "sgp", "peers": 2}
    with pytest.raises(
        IdleSettingError,
        match=r"train\.algorithm\.peers: 2 has no effect: it needs at least 3 workers, and "
        r"train\.workers is 2\. Raise that, or leave it out",
    ):
        settings(**two_peers, workers=2).check_one_worker()
    settings(**two_peers, workers=3).check_one_worker()


def test_a_network_without_messages_between_hosts_of_its_own_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"network: ib0 has no effect: .* overlap: true"):
        settings(algorithm="sgp", network="ib0")
