"""Times of communication: pure functions of a network, the number of workers and the size of a vector.

Ranks fill one host after the other. Messages within a host go through its memory. Messages between hosts share the
network interface (NIC) of each host: those that leave it at once, or enter it at once, follow each other.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Round trips that one pairwise average waits for; each half of them carries the vector once. `memory`: lock and read;
#: write and unlock. `sockets`: request and answer.
ROUND_TRIPS: Final = {"memory": 2, "sockets": 1}


class Link(NamedTuple):
    """A connection of two workers."""

    latency: float
    """Time of an empty message [s]."""
    bandwidth: float
    """Bytes per second."""

    def seconds(self, nbytes: float) -> float:
        """Time of one message."""
        return self.latency + nbytes / self.bandwidth


class Network(NamedTuple):
    """Equal hosts, each with the same number of workers."""

    between: Link
    """From host to host."""
    within: Link
    """Within a host."""
    workers_per_host: int = 1
    ring_above: float = np.inf
    """Size above which an all-reduce goes around a ring [bytes]."""


def all_reduce_seconds(network: Network, world_size: int, nbytes: int) -> float:
    """Time of an all-reduce after the last worker arrives."""
    if world_size == 1:
        return 0.0
    if nbytes > network.ring_above:
        return ring_seconds(network, world_size, nbytes)
    return recursive_doubling_seconds(network, world_size, nbytes)


@lru_cache(maxsize=256)
def recursive_doubling_seconds(network: Network, world_size: int, nbytes: int) -> float:
    """All-reduce in rounds: pairs at the distance 1, 2, 4, ... exchange the whole vector (Thakur et al. 2005, 4.2).

    Beyond the largest power of 2, each further worker first gives its vector to a neighbour, and gets the sum last.

    Examples:
        >>> slow = Link(1e-3, 1e6)
        >>> [round(1e3 * recursive_doubling_seconds(Network(slow, slow), size, 1000)) for size in (2, 8, 15)]
        [2, 6, 10]
    """
    rounds = world_size.bit_length() - 1
    extra = world_size - 2**rounds
    # Of the first pairs, the odd ranks take part.
    members = np.concatenate([np.arange(1, 2 * extra, 2), np.arange(2 * extra, world_size)])
    neighbours = _round_seconds(network, members[:extra] - 1, members[:extra], nbytes)
    done = np.where(np.arange(len(members)) < extra, neighbours, 0.0)
    for distance in 2 ** np.arange(rounds):
        partners = np.arange(len(members)) ^ distance
        done = np.maximum(
            done, done[partners] + _round_seconds(network, members, members[partners], nbytes)
        )
    return float(max(done.max(), done[:extra].max(initial=0.0) + neighbours))


@lru_cache(maxsize=256)
def ring_seconds(network: Network, world_size: int, nbytes: int) -> float:
    """All-reduce around a ring: each of m parts takes 2 (m - 1) messages (Thakur et al. 2005, 4.4).

    A part passes slow and fast connections in turn; each connection carries every part, one after the other.
    """
    part, hops = nbytes / world_size, 2 * (world_size - 1)
    hosts = np.arange(world_size) // network.workers_per_host
    leaves = hosts != np.roll(hosts, -1)
    seconds = np.where(leaves, network.between.seconds(part), network.within.seconds(part))
    path = float(np.convolve(np.tile(seconds, 3), np.ones(hops), "valid").max())
    slowest = network.between if leaves.any() else network.within
    return max(path, slowest.latency + hops * part / slowest.bandwidth)


@lru_cache(maxsize=256)
def tree_seconds(network: Network, world_size: int, nbytes: int) -> float:
    """Broadcast by a binomial tree, or a barrier for 0 bytes: a round of messages for each binary digit."""
    total = 0.0
    for distance in 2 ** np.arange((world_size - 1).bit_length()):
        senders = np.arange(min(distance, world_size - distance))
        total += _round_seconds(network, senders, senders + distance, nbytes)
    return total


def average_seconds(network: Network, protocol: str, nbytes: int) -> float:
    """Time of one pairwise average between hosts, without waiting for locks."""
    link = network.between
    return 2 * (ROUND_TRIPS[protocol] * link.latency + nbytes / link.bandwidth)


def push_seconds(network: Network, nbytes: int) -> float:
    """Time of the messages of a push to one shard of another host, which has its lock at once.

    Examples:
        >>> link = Link(1e-3, 1e6)
        >>> round(1e3 * push_seconds(Network(link, link), 1000))
        6
    """
    link = network.between
    return 4 * link.latency + 2 * nbytes / link.bandwidth


def _round_seconds(
    network: Network, senders: NDArray[Any], receivers: NDArray[Any], nbytes: float
) -> float:
    """Time of messages that start together."""
    if not len(senders):
        return 0.0
    origins, goals = senders // network.workers_per_host, receivers // network.workers_per_host
    leaves = origins != goals
    inside = 0.0 if leaves.all() else network.within.seconds(nbytes)
    if not leaves.any():
        return inside
    most = max(np.bincount(hosts[leaves]).max() for hosts in (origins, goals))
    return max(inside, network.between.seconds(float(most) * nbytes))


class Nics:
    """The NICs of the hosts: what leaves, and what enters, a host at once goes one after the other."""

    def __init__(self, network: Network, world_size: int) -> None:
        self._network = network
        hosts = -(-world_size // network.workers_per_host)
        self._sending_until, self._receiving_until = [0.0] * hosts, [0.0] * hosts

    def link(self, sender: int, receiver: int) -> Link:
        """The connection of two workers."""
        per_host = self._network.workers_per_host
        return (
            self._network.within
            if sender // per_host == receiver // per_host
            else self._network.between
        )

    def arrival(
        self, now: float, sender: int, receiver: int, nbytes: int, *, round_trips: int = 1
    ) -> float:
        """Time at which a message that starts now arrives; each round trip more than one adds a latency."""
        (link, within, per_host, _), sending, receiving = (
            self._network,
            self._sending_until,
            self._receiving_until,
        )
        origin, goal = sender // per_host, receiver // per_host
        if origin == goal:
            return now + round_trips * within.latency + nbytes / within.bandwidth
        duration = nbytes / link.bandwidth
        sending[origin] = max(now, sending[origin]) + duration
        receiving[goal] = max(sending[origin] + link.latency, receiving[goal] + duration)
        return receiving[goal] + (round_trips - 1) * link.latency
