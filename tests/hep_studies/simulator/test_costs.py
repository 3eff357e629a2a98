"""Times of collectives and averages against a reference that carries every message by itself."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque

import pytest
from message_programs import PROGRAMS, Program

from hep_studies.simulator.cluster import ClusterSettings
from hep_studies.simulator.costs import (
    Link,
    Network,
    NicQueues,
    average_seconds,
    recursive_doubling_seconds,
    ring_seconds,
    tree_seconds,
)

SLOW, FAST = Link(1e-3, 1e6), Link(1e-5, 1e9)
NBYTES = 4000
#: Time of the bytes of a message on a NIC [s].
TRANSFER = NBYTES / SLOW.bandwidth


Arrivals = defaultdict[tuple[int, int], deque[float]]


class MessageSimulation:
    """Runs the programs of ranks, message by message: a NIC sends, and receives, one at a time."""

    def __init__(self, programs: list[Program], workers_per_host: int) -> None:
        ranks = range(len(programs))
        self._programs = programs
        self._hosts = [rank // workers_per_host for rank in ranks]
        # Times until which the NIC of a host is busy.
        self._sending_until = [0.0 for _ in ranks]
        self._receiving_until = [0.0 for _ in ranks]
        # Messages that nobody waits for yet, and receivers, by receiver and sender.
        self._arrivals: Arrivals = defaultdict(deque)
        self._waiting_since: dict[tuple[int, int], float] = {}
        self._ready = [(0.0, rank) for rank in ranks]

    def run(self) -> float:
        """The time at which the last rank has finished [s]."""
        end = 0.0
        while self._ready:
            now, rank = heapq.heappop(self._ready)
            end = max(end, now)
            self._continue(rank, now)
        assert not self._waiting_since
        return end

    def _continue(self, rank: int, now: float) -> None:
        """Run a rank until it waits for a message."""
        for action, peer, nbytes in self._programs[rank]:
            if action == "send":
                arrival = self._arrival(rank, peer, nbytes, now)
                self._deliver(rank, peer, arrival)
            elif self._arrivals[rank, peer]:
                arrival = self._arrivals[rank, peer].popleft()
                heapq.heappush(self._ready, (max(now, arrival), rank))
                return
            else:
                self._waiting_since[rank, peer] = now
                return

    def _deliver(self, sender: int, receiver: int, arrival: float) -> None:
        if (receiver, sender) in self._waiting_since:
            since = self._waiting_since.pop((receiver, sender))
            heapq.heappush(self._ready, (max(since, arrival), receiver))
        else:
            self._arrivals[receiver, sender].append(arrival)

    def _arrival(self, sender: int, receiver: int, nbytes: float, now: float) -> float:
        origin, destination = self._hosts[sender], self._hosts[receiver]
        if origin == destination:
            return now + FAST.seconds(nbytes)
        duration = nbytes / SLOW.bandwidth
        sent = max(self._sending_until[origin], now) + duration
        received = max(sent + SLOW.latency, self._receiving_until[destination] + duration)
        self._sending_until[origin] = sent
        self._receiving_until[destination] = received
        return received


def simulated_seconds(programs: list[Program], *, workers_per_host: int = 1) -> float:
    return MessageSimulation(programs, workers_per_host).run()


ALL_REDUCES = {"doubling": recursive_doubling_seconds, "ring": ring_seconds}


@pytest.mark.parametrize("algorithm", ALL_REDUCES)
@pytest.mark.parametrize("size", [2, 3, 4, 6, 7, 8, 12, 16, 33])
@pytest.mark.parametrize("workers_per_host", [1, 2, 4])
def test_an_all_reduce_takes_as_long_as_its_messages(
    algorithm: str, size: int, workers_per_host: int
) -> None:
    make_program = PROGRAMS[algorithm]
    programs = [make_program(rank, size, NBYTES) for rank in range(size)]
    all_reduce_seconds = ALL_REDUCES[algorithm]
    network = Network(SLOW, FAST, workers_per_host)

    seconds = all_reduce_seconds(network, size, NBYTES)

    # Otherwise messages of a NIC or to a member overlap in part.
    is_power_of_two = size.bit_count() == 1
    is_exact = workers_per_host == 1 and (algorithm == "ring" or is_power_of_two)
    tolerance = 1e-9 if is_exact else 0.3
    expected = simulated_seconds(programs, workers_per_host=workers_per_host)
    assert seconds == pytest.approx(expected, rel=tolerance)


def broadcast_program(rank: int, size: int) -> Program:
    """A broadcast from rank 0: in every round, each rank with the vector sends it on."""
    if rank:
        highest_bit = 1 << (rank.bit_length() - 1)
        yield "wait", rank - highest_bit, 0
    distance = 1
    while distance < size:
        if rank < distance and rank + distance < size:
            yield "send", rank + distance, NBYTES
        distance *= 2


@pytest.mark.parametrize("size", [2, 3, 8, 11])
def test_a_broadcast_takes_as_long_as_the_longest_branch(size: int) -> None:
    num_rounds = math.ceil(math.log2(size))
    many_hosts = Network(SLOW, FAST)
    one_host = Network(SLOW, FAST, size)

    broadcast = tree_seconds(many_hosts, size, NBYTES)
    barrier_on_a_host = tree_seconds(one_host, size, 0)

    assert broadcast == pytest.approx(num_rounds * SLOW.seconds(NBYTES))
    assert barrier_on_a_host == pytest.approx(num_rounds * FAST.latency)
    # In the reference a rank sends to all its children at once, so that latencies overlap.
    programs = [broadcast_program(rank, size) for rank in range(size)]
    assert simulated_seconds(programs) <= broadcast + 1e-12


def exchange_program(rank: int, messages: list[tuple[int, float]]) -> Program:
    """Messages of two workers, one after the other: the sender and the size of each."""
    peer = 1 - rank
    for sender, nbytes in messages:
        if rank == sender:
            yield "send", peer, nbytes
        else:
            yield "wait", peer, nbytes


@pytest.mark.parametrize(
    ("protocol", "messages"),
    [
        # The request for the lock brings the vector; the change is answered when the lock is free.
        ("memory", [(0, 0), (1, NBYTES), (0, NBYTES), (1, 0)]),
        ("sockets", [(0, NBYTES), (1, NBYTES)]),
    ],
)
def test_an_average_takes_as_long_as_its_messages(
    protocol: str, messages: list[tuple[int, float]]
) -> None:
    programs = [exchange_program(rank, messages) for rank in range(2)]

    seconds = average_seconds(Network(SLOW, FAST), protocol, NBYTES)

    assert seconds == pytest.approx(simulated_seconds(programs))


@pytest.fixture
def nics() -> NicQueues:
    """The NICs of three hosts of two workers."""
    network = Network(SLOW, FAST, workers_per_host=2)
    return NicQueues(network, 6)


def test_messages_that_leave_a_host_at_once_follow_each_other(nics: NicQueues) -> None:
    first_arrival = nics.arrival(0.0, 0, 2, NBYTES)
    second_arrival = nics.arrival(0.0, 1, 3, NBYTES)

    assert first_arrival == pytest.approx(SLOW.latency + TRANSFER)
    assert second_arrival == pytest.approx(SLOW.latency + 2 * TRANSFER)


def test_messages_that_enter_a_host_at_once_follow_each_other(nics: NicQueues) -> None:
    first_arrival = nics.arrival(0.0, 0, 4, NBYTES)
    second_arrival = nics.arrival(0.0, 2, 4, NBYTES)

    assert second_arrival - first_arrival == pytest.approx(TRANSFER)


def test_messages_within_a_host_do_not_use_its_nic(nics: NicQueues) -> None:
    nics.arrival(0.0, 0, 2, NBYTES)

    arrival_on_host = nics.arrival(0.0, 0, 1, NBYTES)

    assert arrival_on_host == pytest.approx(FAST.seconds(NBYTES))


def test_averages_are_in_memory_on_one_host_and_go_through_sockets_between_hosts() -> None:
    cluster = ClusterSettings(workers_per_host=8)

    assert cluster.protocol(8) == "memory"
    assert cluster.protocol(9) == "sockets"
