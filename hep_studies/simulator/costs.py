"""Times of communication on a network, for a number of workers and a size of a vector.

Ranks fill one host after the other. Messages within a host go through its memory. Messages between
hosts share the network interface (NIC) of each host: those that leave it at once, or enter it at
once, follow each other.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Round trips that one pairwise average waits for, by its protocol. The vector travels twice, once
#: in each half of the messages. `memory`: lock and read, then write and unlock. `sockets`: request
#: and answer.
ROUND_TRIPS: Final = {"memory": 2, "sockets": 1}


class Link(NamedTuple):
    """A connection of two workers."""

    latency: float
    """Time of an empty message [s]."""
    bandwidth: float
    """Bytes per second."""

    def seconds(self, nbytes: float) -> float:
        """Return the time of one message [s]."""
        return self.latency + nbytes / self.bandwidth


class Network(NamedTuple):
    """Equal hosts, each with the same number of workers."""

    between: Link
    """Connection of two hosts."""
    within: Link
    """Connection of two workers of a host."""
    workers_per_host: int = 1
    ring_above: float = np.inf
    """Size of a vector above which an all-reduce takes a ring, else recursive doubling [bytes]."""


def all_reduce_seconds(network: Network, world_size: int, nbytes: int) -> float:
    """Return the time of an all-reduce after the last worker arrives [s].

    Large vectors go around a ring, which uses the bandwidth best. Small ones take recursive
    doubling, which has the fewest latencies.
    """
    if world_size == 1:
        return 0.0
    if nbytes > network.ring_above:
        return ring_seconds(network, world_size, nbytes)
    return recursive_doubling_seconds(network, world_size, nbytes)


@lru_cache(maxsize=256)
def recursive_doubling_seconds(network: Network, world_size: int, nbytes: int) -> float:
    """Return the time of an all-reduce in rounds (Thakur et al. 2005, 4.2) [s].

    In each round, pairs of workers at the distance 1, 2, 4, ... exchange the whole vector. A worker
    sends once its round before has ended, and ends the round when its partner's vector arrives.
    Workers beyond the largest power of 2 do not fit: each first gives its vector to a neighbour,
    and gets the sum from it at the end.

    Examples:
        >>> slow = Link(1e-3, 1e6)
        >>> network = Network(slow, slow)
        >>> [round(1e3 * recursive_doubling_seconds(network, size, 1000)) for size in (2, 8, 15)]
        [2, 6, 10]
    """
    num_rounds = world_size.bit_length() - 1
    num_extra = world_size - 2**num_rounds
    # Ranks 0 to 2 * num_extra - 1 form pairs. The odd rank takes part in the rounds for both.
    odd_ranks = np.arange(1, 2 * num_extra, 2)
    members = np.concatenate([odd_ranks, np.arange(2 * num_extra, world_size)])
    # `members` are the 2**num_rounds ranks that take part; rounds pair their positions.
    positions = np.arange(len(members))
    neighbour_seconds = _round_seconds(network, odd_ranks - 1, odd_ranks, nbytes)

    # Time at which each member has finished its rounds so far.
    finished = np.where(positions < num_extra, neighbour_seconds, 0.0)
    for distance in 2 ** np.arange(num_rounds):
        # Exclusive or flips one bit, so that a and a ^ distance are partners of each other.
        partners = positions ^ distance
        round_seconds = _round_seconds(network, members, members[partners], nbytes)
        finished = np.maximum(finished, finished[partners] + round_seconds)
    last_sum = finished[:num_extra].max(initial=0.0) + neighbour_seconds
    return float(max(finished.max(), last_sum))


@lru_cache(maxsize=256)
def ring_seconds(network: Network, world_size: int, nbytes: int) -> float:
    """Return the time of an all-reduce around a ring (Thakur et al. 2005, 4.4) [s].

    The vector has a part for each of the m workers. A part is passed on m - 1 times to be summed,
    and m - 1 times to be distributed. Two limits bound the time, and the larger one is returned: a
    part needs the sum of its hops, fast and slow ones; and the slowest connection carries 2 (m - 1)
    parts, one after the other.
    """
    part_bytes = nbytes / world_size
    num_hops = 2 * (world_size - 1)
    hosts = np.arange(world_size) // network.workers_per_host
    # Element i is the connection from rank i to rank i + 1, or to rank 0 from the last.
    leaves_host = hosts != np.roll(hosts, -1)
    hop_seconds = np.where(
        leaves_host, network.between.seconds(part_bytes), network.within.seconds(part_bytes)
    )
    # Sums of num_hops successive hops from any start. A part goes around less than twice, so that
    # three copies of the ring hold every path.
    paths = np.convolve(np.tile(hop_seconds, 3), np.ones(num_hops), "valid")
    slowest = network.between if leaves_host.any() else network.within
    busiest_link = slowest.latency + num_hops * part_bytes / slowest.bandwidth
    return max(float(paths.max()), busiest_link)


@lru_cache(maxsize=256)
def tree_seconds(network: Network, world_size: int, nbytes: int) -> float:
    """Return the time of a broadcast by a binomial tree, or of a barrier for 0 bytes [s].

    In the rounds of distance 1, 2, 4, ..., each rank that has the content sends it to the rank at
    that distance, so that the number of such ranks doubles.
    """
    total = 0.0
    for distance in 2 ** np.arange((world_size - 1).bit_length()):
        senders = np.arange(min(distance, world_size - distance))
        total += _round_seconds(network, senders, senders + distance, nbytes)
    return total


def average_seconds(network: Network, protocol: str, nbytes: int) -> float:
    """Return the time of one pairwise average between hosts, without waiting for locks [s].

    Each half of the average carries the vector one way. It also waits for as many latencies, of one
    way, as the protocol has round trips.
    """
    link = network.between
    return 2 * (ROUND_TRIPS[protocol] * link.latency + nbytes / link.bandwidth)


def push_seconds(network: Network, nbytes: int) -> float:
    """Return the time of the messages of a push to a shard of another host with a free lock [s].

    A shard is a part of the vector of a parameter server. The push locks and gets it, then puts and
    unlocks it: each half is a round trip of two latencies that carries `nbytes` once.

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
    """Return the time of messages that start together, until the last one arrives [s].

    `senders`, `receivers`: (num_messages,) ranks. Messages within a host do not disturb each other.
    Of those between hosts, the NIC that sends or receives most of them decides.
    """
    if not len(senders):
        return 0.0
    origins = senders // network.workers_per_host
    destinations = receivers // network.workers_per_host
    leaves_host = origins != destinations
    within = 0.0 if leaves_host.all() else network.within.seconds(nbytes)
    if not leaves_host.any():
        return within
    # The messages of the busiest NIC follow each other, like one long message.
    sent = np.bincount(origins[leaves_host]).max()
    received = np.bincount(destinations[leaves_host]).max()
    between = network.between.seconds(float(max(sent, received)) * nbytes)
    return max(within, between)


class NicQueues:
    """The NICs of the hosts, each with a queue of messages to send and one of those to receive.

    Messages that leave, or enter, a host at once follow each other.
    """

    def __init__(self, network: Network, world_size: int) -> None:
        self._network = network
        # The last host may have fewer workers: this division rounds up.
        num_hosts = -(-world_size // network.workers_per_host)
        # Times until which each host's NIC is busy with the messages so far [s].
        self._sending_until = [0.0] * num_hosts
        self._receiving_until = [0.0] * num_hosts

    def link(self, sender: int, receiver: int) -> Link:
        """Return the connection of two workers: within their common host, or between hosts."""
        is_on_one_host = self.are_on_one_host(sender, receiver)
        return self._network.within if is_on_one_host else self._network.between

    def are_on_one_host(self, first: int, second: int) -> bool:
        """Return whether two workers are on the same host."""
        workers_per_host = self._network.workers_per_host
        return first // workers_per_host == second // workers_per_host

    def arrival(
        self, now: float, sender: int, receiver: int, nbytes: int, *, round_trips: int = 1
    ) -> float:
        """Return the time at which a message that starts now arrives [s], and queue it.

        A message between hosts first waits for the sender's NIC. It arrives a latency later, or
        once the receiver's NIC has received the messages before it. Both NICs are busy until then.
        `round_trips`: number of latencies, of one way, to wait for: 1 for a message alone, 2 for an
        empty message, such as a request, and this one.
        """
        between, within, workers_per_host, _ = self._network
        origin = sender // workers_per_host
        destination = receiver // workers_per_host
        if origin == destination:
            return now + round_trips * within.latency + nbytes / within.bandwidth
        duration = nbytes / between.bandwidth
        sent = max(now, self._sending_until[origin]) + duration
        received = max(sent + between.latency, self._receiving_until[destination] + duration)
        self._sending_until[origin] = sent
        self._receiving_until[destination] = received
        return received + (round_trips - 1) * between.latency
