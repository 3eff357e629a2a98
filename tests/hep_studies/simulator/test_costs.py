"""Times of collectives and averages against a reference that carries every message from event to event."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict

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


def finished(programs: list[Program], *, per_host: int = 1) -> float:
    """When the last of some ranks is done; a card sends, and receives, one message after the other."""
    host = [rank // per_host for rank in range(len(programs))]
    sends, receives = defaultdict(float), defaultdict(float)
    arrived: dict[tuple[int, int], list[float]] = defaultdict(list)
    ready = [(0.0, rank) for rank in range(len(programs))]
    waiting: dict[tuple[int, int], float] = {}
    end = 0.0
    while ready:
        now, rank = heapq.heappop(ready)
        end = max(end, now)
        for description, second, nbytes in programs[rank]:
            if description == "send":
                if host[rank] == host[second]:
                    reference = now + FAST.latency + nbytes / FAST.bandwidth
                else:
                    out = sends[host[rank]] = max(sends[host[rank]], now) + nbytes / SLOW.bandwidth
                    last = receives[host[second]] + nbytes / SLOW.bandwidth
                    reference = receives[host[second]] = max(out + SLOW.latency, last)
                if (second, rank) in waiting:
                    heapq.heappush(ready, (max(waiting.pop((second, rank)), reference), second))
                else:
                    arrived[second, rank].append(reference)
            else:
                if arrived[rank, second]:
                    heapq.heappush(ready, (max(now, arrived[rank, second].pop(0)), rank))
                else:
                    waiting[rank, second] = now
                break
    assert not waiting
    return end


def tree(rank: int, size: int) -> Program:
    """A broadcast from rank 0: who has the vector sends it on, to twice as many in every round."""
    if rank:
        yield "wait", rank - (1 << (rank.bit_length() - 1)), 0
    distance = 1
    while distance < size:
        if rank < distance and rank + distance < size:
            yield "send", rank + distance, NBYTES
        distance *= 2


CLOSED = {"doubling": recursive_doubling_seconds, "ring": ring_seconds}


@pytest.mark.parametrize("algorithm", CLOSED)
@pytest.mark.parametrize("size", [2, 3, 4, 6, 7, 8, 12, 16, 33])
@pytest.mark.parametrize("per_host", [1, 2, 4])
def test_an_all_reduce_takes_as_long_as_its_messages(
    algorithm: str, size: int, per_host: int
) -> None:
    expected = finished(
        [PROGRAMS[algorithm](rank, size, NBYTES) for rank in range(size)], per_host=per_host
    )
    actual = CLOSED[algorithm](Network(SLOW, FAST, per_host), size, NBYTES)
    # Otherwise messages of a card or to a member overlap in part.
    is_exact = per_host == 1 and (algorithm == "ring" or size & (size - 1) == 0)
    assert actual == pytest.approx(expected, rel=1e-9 if is_exact else 0.3)


@pytest.mark.parametrize("size", [2, 3, 8, 11])
def test_a_broadcast_takes_as_long_as_the_longest_branch(size: int) -> None:
    # Here a rank sends at once to all its children, so that the reference overlaps their latencies.
    bound = tree_seconds(Network(SLOW, FAST), size, NBYTES)
    assert finished([tree(rank, size) for rank in range(size)]) <= bound + 1e-12
    assert bound == pytest.approx(math.ceil(math.log2(size)) * SLOW.seconds(NBYTES))
    assert tree_seconds(Network(SLOW, FAST, size), size, 0) == pytest.approx(
        math.ceil(math.log2(size)) * FAST.latency
    )


def exchange(rank: int, steps: list[tuple[int, float]]) -> Program:
    """Messages of two workers, one after the other: who sends, and how much."""
    for sender, nbytes in steps:
        yield ("send" if rank == sender else "wait"), 1 - rank, nbytes


@pytest.mark.parametrize(
    ("protocol", "steps"),
    [
        # The request for the lock brings the vector; the change is answered when the lock is free.
        ("memory", [(0, 0), (1, NBYTES), (0, NBYTES), (1, 0)]),
        ("sockets", [(0, NBYTES), (1, NBYTES)]),
    ],
)
def test_an_average_takes_as_long_as_its_messages(
    protocol: str, steps: list[tuple[int, float]]
) -> None:
    expected = finished([exchange(rank, steps) for rank in range(2)])
    assert average_seconds(Network(SLOW, FAST), protocol, NBYTES) == pytest.approx(expected)


def test_workers_of_a_host_share_its_card() -> None:
    byte = NBYTES / SLOW.bandwidth
    nics = NicQueues(Network(SLOW, FAST, 2), 6)
    alone, second = (nics.arrival(0.0, rank, 2 + rank, NBYTES) for rank in (0, 1))
    assert (alone, second) == (
        pytest.approx(SLOW.latency + byte),
        pytest.approx(SLOW.latency + 2 * byte),
    )
    # Two hosts send to one: the second message enters behind the first.
    nics = NicQueues(Network(SLOW, FAST, 2), 6)
    first, second = (nics.arrival(0.0, sender, 4, NBYTES) for sender in (0, 2))
    assert second - first == pytest.approx(byte)
    # Within a host nothing passes the card.
    assert nics.arrival(0.0, 0, 1, NBYTES) == pytest.approx(FAST.seconds(NBYTES))


def test_averages_are_in_memory_on_one_host_and_go_through_sockets_between_hosts() -> None:
    cluster = ClusterSettings(workers_per_host=8)
    assert [cluster.protocol(workers) for workers in (8, 9)] == ["memory", "sockets"]
