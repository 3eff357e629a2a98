"""The virtual clock, and how long things take on it; a run is a function of its seed."""

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

LATENCY, BANDWIDTH, STEP = 1e-4, 1e6, 1e-2
#: Vectors of the tests have 5 numbers of 8 bytes.
LINK = constant_step_cluster(STEP, latency_seconds=LATENCY, bytes_per_second=BANDWIDTH)
MESSAGE = LATENCY + 40 / BANDWIDTH
#: Time of a locked average: two round trips, and the vector there and back.
LOCKED = 2 * (LATENCY + MESSAGE)


def on_workers(workers: int, work: Callable[[SimTransport], Coroutine[Any, Any, None]]) -> float:
    """Run something on each of some workers; the virtual time at the end."""
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


@pytest.mark.parametrize("kind_name", ["all_reduce_sum", "broadcast", "barrier"])
def test_a_worker_that_is_missing_in_a_collective_is_a_stall_with_the_names_of_those_who_wait(
    kind_name: str,
) -> None:
    async def meet(transport: SimTransport) -> None:
        if transport.rank != 1:
            await getattr(transport, kind_name)(*([] if kind_name == "barrier" else [np.ones(3)]))

    with pytest.raises(
        StalledError, match=r"these never ended: \['worker 0', 'worker 2', 'worker 3'\]"
    ):
        on_workers(4, meet)


def test_a_locked_average_takes_two_round_trips_and_the_next_waits_for_it() -> None:
    async def average(transport: SimTransport) -> None:
        shared = await transport.shared_vector(np.full(5, float(transport.rank)))
        started = transport.now()
        if transport.rank:
            await shared.average_with(0)
            assert transport.now() - started == pytest.approx(LOCKED * transport.rank)
            assert shared.counts.wait_seconds == pytest.approx(LOCKED * (transport.rank - 1))
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
            # Between the reading and the writing of the other.
            await clock.sleep(0.75 * seconds)
            await shared.add(np.full(5, 8.0))

    for transport in network.transports():
        clock.spawn(work(transport), f"worker {transport.rank}")
    clock.run()
    assert [network.vectors[0][rank].values[0] for rank in range(2)] == [5, 5]


def step_seconds(workers: int = 4, **selected: Any) -> float:
    """Mean length of a step of rank 0."""
    watcher = StepRecorder()
    problem = LinearGradients(workers=workers, steps=13, seed=1)
    problem.drive(cluster=LINK, before_step=watcher, optimizer="sgd", **selected)
    return (watcher.began[0][12] - watcher.began[0][0]) / 12


def test_steps_take_the_time_of_computing_and_of_what_must_be_waited_for() -> None:
    # The gradient and, behind it, the number of samples: 6 numbers. Four workers: two rounds.
    round_seconds = LATENCY + 48 / BANDWIDTH
    assert step_seconds(algorithm="ar-sgd") == pytest.approx(STEP + 2 * round_seconds)
    assert step_seconds(algorithm="ar-sgd", workers=2) == pytest.approx(STEP + round_seconds)
    assert step_seconds(algorithm="local-sgd", local_steps=3) == pytest.approx(
        STEP + 2 * round_seconds / 3
    )
    pairs = {"workers": 2, "partners": lambda rank: ListedPartners([1 if rank == 0 else None])}
    assert step_seconds(algorithm="ad-psgd", exchange="memory", **pairs) == pytest.approx(
        STEP + LOCKED
    )
    # The models travel while the gradient is computed.
    assert step_seconds(algorithm="d-psgd") == pytest.approx(STEP)
    assert step_seconds(algorithm="d-psgd", local_steps=1) == pytest.approx(STEP)
    assert step_seconds(algorithm="ad-psgd", exchange="sockets") == pytest.approx(STEP)


def test_an_epoch_takes_the_time_of_its_steps_and_of_its_end() -> None:
    cluster = ClusterSettings(
        step_seconds=1e-3, event_seconds=1e-5, latency_seconds=LATENCY, bytes_per_second=BANDWIDTH
    )
    simulated = run(algorithm="ar-sgd", workers=2, batch_size=20, cluster=cluster, epochs=1)
    size = 8 * simulated.parameters.shape[1]

    def all_reduce(nbytes: int) -> float:
        return LATENCY + nbytes / BANDWIDTH

    # 160 rows each in 8 steps of 20. At the end: a barrier; the mean model and the number of finite ones; its distance;
    # half of the 60 rows of the validation, and four sums; then all 60 for the worker's own model.
    steps = 8 * (1e-3 + 20 * 1e-5 + all_reduce(size + 8))
    end = LATENCY + all_reduce(size + 8) + all_reduce(8) + (30 + 60) * 1e-5 / 3 + all_reduce(32)
    for (record,) in simulated.records:
        assert record["seconds"] == pytest.approx(steps + end)
        assert record["seconds_by_kind"]["compute"] == pytest.approx(8 * 1.2e-3)


def test_computing_times_have_the_chosen_mean_spread_and_pauses() -> None:
    cluster = constant_step_cluster(
        1.0, jitter=0.5, slow_ranks={1: 3.0}, pause_probability=0.25, pause_seconds=2.0
    )
    drawn = []
    for rank in range(2):
        times = ComputeTimes(cluster, seed=1, rank=rank)
        drawn.append(np.array([times.draw(10) for _ in range(20_000)]))
    assert drawn[0].mean() == pytest.approx(1 + 0.25 * 2, rel=0.03)
    assert drawn[1].mean() == pytest.approx(3 + 0.25 * 2, rel=0.03)
    quiet = ComputeTimes(cluster.model_copy(update={"pause_probability": 0.0}), seed=1, rank=0)
    logarithms = np.log([quiet.draw(10) for _ in range(20_000)])
    assert (logarithms.mean(), logarithms.std()) == (
        pytest.approx(-0.125, abs=0.02),
        pytest.approx(0.5, abs=0.02),
    )
    assert abs(np.corrcoef(*drawn)[0, 1]) < 0.03


@pytest.mark.parametrize("method", PEER_METHODS)
def test_kinds_of_work_add_up_to_the_time_of_every_worker(method: str) -> None:
    simulated = run(**PEER_METHODS[method], cluster=UNEVEN_CLUSTER, epochs=3)
    for records in simulated.records:
        for record in records:
            assert sum(record["seconds_by_kind"].values()) == pytest.approx(
                record["seconds"], rel=1e-3
            )
        # The end of the run, behind the last record: the choice of the best model and the farewell.
        total = sum(record["seconds"] for record in records)
        farewell = 0 if "on a host" in method else 0.8e-3
        assert total == pytest.approx(simulated.seconds - farewell, abs=5e-4)


def test_waiting_for_a_lock_is_no_communication() -> None:
    async def one(transport: SimTransport) -> None:
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

    on_workers(2, one)
