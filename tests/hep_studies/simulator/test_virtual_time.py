"""The virtual clock, and the times of messages and steps on it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from simulated import (
    PEER_METHODS,
    UNEVEN_CLUSTER,
    LinearGradients,
    ListedPartners,
    StepRecorder,
    constant_step_cluster,
    run,
)

from hep_studies.simulator.cluster import ClusterSettings, ComputeTimes
from hep_studies.simulator.costs import average_seconds
from hep_studies.simulator.transport import SimNetwork, SimTransport
from hep_studies.simulator.virtual_time import VirtualClock
from training.errors import StalledError
from training.loop.metering import Meter, MeteredTransport

LATENCY = 1e-4
BANDWIDTH = 1e6
STEP = 1e-2
#: Vectors of the tests have 5 numbers of 8 bytes.
LINK = constant_step_cluster(STEP, latency_seconds=LATENCY, bytes_per_second=BANDWIDTH)
MESSAGE = LATENCY + 40 / BANDWIDTH
#: Time of a locked average: two round trips, and the vector there and back.
LOCKED = 2 * (LATENCY + MESSAGE)


def on_workers(workers: int, work: Callable[[SimTransport], Coroutine[Any, Any, None]]) -> float:
    """Run a coroutine on each worker; the virtual time at the end."""
    clock = VirtualClock()
    for transport in SimNetwork(clock, LINK, workers).transports():
        clock.spawn(work(transport), f"worker {transport.rank}")
    clock.run()
    return clock.now


def test_an_error_says_in_which_worker_it_was() -> None:
    async def fail(transport: SimTransport) -> None:
        if transport.rank == 2:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        on_workers(3, fail)
    assert caught.value.__notes__ == ["in the simulated worker 2"]


COLLECTIVES: dict[str, Callable[[SimTransport], Coroutine[Any, Any, None]]] = {
    "all-reduce": lambda transport: transport.all_reduce_sum(np.ones(3)),
    "broadcast": lambda transport: transport.broadcast(np.ones(3)),
    "barrier": lambda transport: transport.barrier(),
}


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_collective_without_one_worker_stalls_and_names_those_that_wait(collective: str) -> None:
    async def join(transport: SimTransport) -> None:
        if transport.rank != 1:
            await COLLECTIVES[collective](transport)

    with pytest.raises(StalledError, match=r": \['worker 0', 'worker 2', 'worker 3'\]"):
        on_workers(4, join)


def test_a_locked_average_takes_two_round_trips_and_the_next_waits_for_it() -> None:
    async def average(transport: SimTransport) -> None:
        shared = await transport.shared_vector(np.full(5, float(transport.rank)))
        started = transport.now()
        if transport.rank:
            await shared.average_with(0)
            seconds = transport.now() - started
            # Rank 1 is the first, and the next ranks wait for all before them.
            num_before = transport.rank - 1
            assert seconds == pytest.approx(LOCKED * transport.rank)
            assert shared.counts.wait_seconds == pytest.approx(LOCKED * num_before)
            assert shared.counts.exchange_seconds == pytest.approx(LOCKED * transport.rank)

    on_workers(4, average)


@pytest.mark.parametrize("protocol", ["memory", "sockets"])
def test_a_change_during_an_average_is_not_lost(protocol: str) -> None:
    clock = VirtualClock()
    network = SimNetwork(clock, LINK, 2, protocol=protocol)
    seconds = average_seconds(LINK.network, protocol, 40)

    async def work(transport: SimTransport) -> None:
        shared = await transport.shared_vector(np.full(5, 2.0 * transport.rank))
        if transport.rank:
            await shared.average_with(0)
            await shared.average_with(0)
        else:
            # Between the reading and the writing of rank 1.
            await clock.sleep(0.75 * seconds)
            await shared.add(np.full(5, 8.0))

    for transport in network.transports():
        clock.spawn(work(transport), f"worker {transport.rank}")
    clock.run()

    first, second = (network.vectors[0][rank] for rank in range(2))
    assert first.values[0] == 5
    assert second.values[0] == 5


def only_rank_0_begins(rank: int) -> ListedPartners:
    partner = 1 if rank == 0 else None
    return ListedPartners([partner])


#: The gradient and, behind it, the number of samples: 6 numbers.
ROUND = LATENCY + 48 / BANDWIDTH


@pytest.mark.parametrize(
    ("method", "communication"),
    [
        # Four workers need two rounds.
        ({"algorithm": "ar-sgd"}, 2 * ROUND),
        ({"algorithm": "ar-sgd", "workers": 2}, ROUND),
        ({"algorithm": "local-sgd", "local_steps": 3}, 2 * ROUND / 3),
        (
            {
                "algorithm": "ad-psgd",
                "exchange": "memory",
                "workers": 2,
                "partners": only_rank_0_begins,
            },
            LOCKED,
        ),
        # The models travel while the gradient is computed.
        ({"algorithm": "d-psgd"}, 0.0),
        ({"algorithm": "d-psgd", "local_steps": 1}, 0.0),
        ({"algorithm": "ad-psgd", "exchange": "sockets"}, 0.0),
    ],
)
def test_steps_take_the_time_of_computing_and_of_messages_that_are_waited_for(
    method: dict[str, Any], communication: float
) -> None:
    settings = dict(method)
    workers = settings.pop("workers", 4)
    problem = LinearGradients(workers=workers, steps=13, seed=1)
    recorder = StepRecorder()

    problem.drive(cluster=LINK, before_step=recorder, optimizer="sgd", **settings)

    begins = recorder.began[0]
    mean_step = (begins[12] - begins[0]) / 12
    assert mean_step == pytest.approx(STEP + communication)


def all_reduce(nbytes: int) -> float:
    """Time of an all-reduce of two workers."""
    return LATENCY + nbytes / BANDWIDTH


def test_an_epoch_takes_the_time_of_its_steps_and_of_its_end() -> None:
    cluster = ClusterSettings(
        step_seconds=1e-3, event_seconds=1e-5, latency_seconds=LATENCY, bytes_per_second=BANDWIDTH
    )

    simulated = run(algorithm="ar-sgd", workers=2, batch_size=20, cluster=cluster, epochs=1)

    _, num_parameters = simulated.parameters.shape
    model_bytes = 8 * num_parameters
    # Each worker has 160 rows, in 8 steps of 20.
    steps = 8 * (1e-3 + 20 * 1e-5 + all_reduce(model_bytes + 8))
    # A barrier; the mean model and the number of finite ones; its distance.
    averaging = LATENCY + all_reduce(model_bytes + 8) + all_reduce(8)
    # Half of the 60 rows for the mean model and four sums, then all 60 for the worker's own model.
    validation = (30 + 60) * 1e-5 / 3 + all_reduce(32)
    end = averaging + validation
    for (record,) in simulated.records:
        assert record["seconds"] == pytest.approx(steps + end)
        assert record["seconds_by_kind"]["compute"] == pytest.approx(8 * 1.2e-3)


def draw_times(cluster: ClusterSettings, *, rank: int) -> np.ndarray[Any, Any]:
    times = ComputeTimes(cluster, seed=1, rank=rank)
    return np.array([times.draw(10) for _ in range(20_000)])


def test_computing_times_have_the_chosen_mean_spread_and_pauses() -> None:
    cluster = constant_step_cluster(
        1.0, jitter=0.5, slow_ranks={1: 3.0}, pause_probability=0.25, pause_seconds=2.0
    )
    without_pauses = cluster.model_copy(update={"pause_probability": 0.0})

    fast = draw_times(cluster, rank=0)
    slow = draw_times(cluster, rank=1)
    logarithms = np.log(draw_times(without_pauses, rank=0))

    assert fast.mean() == pytest.approx(1 + 0.25 * 2, rel=0.03)
    assert slow.mean() == pytest.approx(3 + 0.25 * 2, rel=0.03)
    assert abs(np.corrcoef(fast, slow)[0, 1]) < 0.03
    assert logarithms.mean() == pytest.approx(-0.125, abs=0.02)
    assert logarithms.std() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("method", PEER_METHODS)
def test_kinds_of_work_add_up_to_the_time_of_every_worker(method: str) -> None:
    simulated = run(**PEER_METHODS[method], cluster=UNEVEN_CLUSTER, epochs=3)

    # After the last record: the choice of the best model and the last barrier.
    end_seconds = 0 if "on a host" in method else 0.8e-3
    for records in simulated.records:
        for record in records:
            total = sum(record["seconds_by_kind"].values())
            assert total == pytest.approx(record["seconds"], rel=1e-3)
        all_epochs = sum(record["seconds"] for record in records)
        assert all_epochs == pytest.approx(simulated.seconds - end_seconds, abs=5e-4)


def test_waiting_for_a_lock_is_no_communication() -> None:
    async def work(transport: SimTransport) -> None:
        meter = Meter(transport.now)
        shared = await MeteredTransport(transport, meter).shared_vector(np.zeros(5))
        meter.restart()
        if transport.rank:
            await transport._network.clock.sleep(MESSAGE / 2)
            meter.lap("compute")
            await shared.add(np.ones(5))
            # Rank 0 holds the lock for the whole average.
            assert meter.seconds["wait"] == pytest.approx(LOCKED - MESSAGE / 2)
            assert meter.seconds["communicate"] == pytest.approx(0, abs=1e-12)
        else:
            await shared.average_with(1)
            assert meter.seconds["wait"] == 0
            assert meter.seconds["communicate"] == pytest.approx(LOCKED)

    on_workers(2, work)
