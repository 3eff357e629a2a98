"""For any timing, pairs and protocol: an average loses nothing, and no worker waits forever."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from random_clusters import clusters
from simulated import LinearGradients, ListedPartners, StepRecorder

from hep_studies.simulator.cluster import ClusterSettings
from hep_studies.simulator.transport import SimNetwork, SimTransport
from hep_studies.simulator.virtual_time import VirtualClock
from training.transports.basics import run_now

RATE = 0.1
FEW = hypothesis_settings(max_examples=80)

methods = st.one_of(
    st.just({"algorithm": "ad-psgd"}),
    st.fixed_dictionaries({"algorithm": st.just("swarm-sgd"), "local_steps": st.integers(1, 4)}),
    st.fixed_dictionaries(
        {
            "algorithm": st.just("swarm-sgd"),
            "local_steps": st.integers(2, 4),
            "local_steps_law": st.just("geometric"),
        }
    ),
)
protocols = st.sampled_from(["memory", "sockets"])
topologies = st.sampled_from(["complete", "ring", "exponential"])


class RecordedGradients(LinearGradients):
    """A problem that records its gradients."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.computed: list[NDArray[np.float64]] = []

    def gradient(self, rank: int, step: int, at: NDArray[np.float64]) -> NDArray[np.float64]:
        gradient = super().gradient(rank, step, at)
        self.computed.append(gradient)
        return gradient


def mean_at_the_end(watcher: StepRecorder) -> NDArray[np.float64]:
    """Mean of the models of all workers, with the steps that SwarmSGD has not published yet."""
    ends = []
    for algorithm in watcher.algorithms.values():
        ends.append(algorithm.model.empty())
        run_now(algorithm.current(ends[-1]))
    mean: NDArray[np.float64] = np.mean(ends, axis=0)
    return mean


@FEW
@given(
    workers=st.integers(2, 8),
    seed=st.integers(0, 1000),
    cluster=clusters,
    method=methods,
    exchange=protocols,
    topology=topologies,
    # Outer steps that are none: alpha 1, beta 0.
    tau=st.integers(0, 4),
)
def test_the_mean_moves_by_the_gradients_alone(
    workers: int,
    seed: int,
    cluster: ClusterSettings,
    method: dict[str, Any],
    exchange: str,
    topology: str,
    tau: int,
) -> None:
    problem = RecordedGradients(workers=workers, steps=8, seed=seed)
    watcher = StepRecorder()
    slowmo = {"tau": tau, "beta": 0} if tau else None
    start = np.random.default_rng(seed).normal(size=(workers, 5))
    problem.drive(
        cluster=cluster,
        initial=start,
        before_step=watcher,
        exchange=exchange,
        topology=topology,
        seed=seed,
        optimizer="sgd",
        learning_rate=RATE,
        slowmo=slowmo,
        **method,
    )

    assert len(problem.computed) == 8 * workers
    move = mean_at_the_end(watcher) - start.mean(axis=0)
    sum_of_gradients = np.sum(problem.computed, axis=0)
    np.testing.assert_allclose(move, -RATE * sum_of_gradients / workers, atol=1e-12)
    counters = [algorithm.counters() for algorithm in watcher.algorithms.values()]
    averages_begun = sum(counts["averages_begun"] for counts in counters)
    averages_received = sum(counts["averages_received"] for counts in counters)
    assert averages_begun == averages_received


@FEW
@given(
    workers=st.integers(2, 6),
    cluster=clusters,
    protocol=protocols,
    beside=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_integers_are_conserved_exactly_and_no_addition_is_lost(
    workers: int, cluster: ClusterSettings, protocol: str, beside: bool, seed: int
) -> None:
    clock = VirtualClock()
    network = SimNetwork(clock, cluster, workers, protocol=protocol)
    start = np.random.default_rng(seed).integers(-1000, 1000, size=(workers, 3))

    async def work(transport: SimTransport) -> None:
        rng = np.random.default_rng([seed, transport.rank])
        shared = await transport.shared_vector(start[transport.rank])
        for _ in range(10):
            await shared.add(np.ones(3, dtype=np.int64))
            await clock.sleep(rng.choice([0.0, 1e-4, 1e-3]))
            other_ranks = [rank for rank in range(workers) if rank != transport.rank]
            partner = int(rng.choice(other_ranks))
            if beside:
                await shared.begin_average_with(partner)
            else:
                await shared.average_with(partner)
        await shared.drain()

    for transport in network.transports():
        clock.spawn(work(transport), f"worker {transport.rank}")
    clock.run()

    ends = [network.vectors[0][rank].values for rank in range(workers)]
    sum_at_end = np.sum(ends, axis=0)
    # Every worker adds 1 ten times.
    expected_sum = start.sum(axis=0) + 10 * workers
    assert sum_at_end.tolist() == expected_sum.tolist()
    assert network.vectors[0][0].values.dtype == np.int64


@FEW
@given(
    data=st.data(), workers=st.integers(3, 8), cluster=clusters, method=methods, exchange=protocols
)
def test_no_list_of_pairs_ends_in_a_deadlock(
    data: st.DataObject,
    workers: int,
    cluster: ClusterSettings,
    method: dict[str, Any],
    exchange: str,
) -> None:
    partner_lists = []
    for rank in range(workers):
        other_ranks = [partner for partner in range(workers) if partner != rank]
        partners = [None, *other_ranks]
        lists = st.lists(st.sampled_from(partners), min_size=1, max_size=5)
        partner_lists.append(data.draw(lists))
    problem = LinearGradients(workers=workers, steps=6, seed=1)

    models = problem.drive(
        cluster=cluster,
        partners=lambda rank: ListedPartners(partner_lists[rank]),
        exchange=exchange,
        slowmo={"tau": 2},
        **method,
    )

    assert np.isfinite(models).all()
