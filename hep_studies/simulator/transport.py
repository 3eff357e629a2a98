"""The simulated network: collectives, exchanges and shared vectors on the virtual clock."""

from __future__ import annotations

import types
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

from hep_studies.simulator.cluster import ClusterSettings
from hep_studies.simulator.costs import all_reduce_seconds, tree_seconds
from hep_studies.simulator.shared import SimServer, SimShards, SimulatedLinks, SimVector
from hep_studies.simulator.virtual_time import (
    Register,
    VirtualBackground,
    VirtualClock,
    VirtualTask,
    suspend,
)
from training.transports.basics import Vector
from training.transports.parameter_server import Layout, ParameterServer
from training.transports.transport import CounterName, PendingSum, SharedVector, Transport

Finish = Callable[[Sequence[Vector]], tuple[float, Vector]]
"""Function of the vectors of all workers, by rank: returns the time of a collective operation after
the last worker arrives [s], and its result."""


class Collective:
    """One collective operation, such as an all-reduce; it ends some time after the last arrival.

    Workers arrive at different times, each with a vector. All get the result at the same time.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.vectors: dict[int, Vector] = {}
        """The vector of each worker that has arrived, by rank."""
        self.tasks: dict[int, VirtualTask] = {}
        """The suspended task of each worker that has arrived, by rank."""
        self.last_arrival = 0.0
        """Time at which the last worker arrived."""

    def resume_all(self, result: Vector) -> None:
        """Write the result into each worker's vector and resume its task.

        The order is that of the ranks and not of arrival, so that it does not depend on the times.
        """
        for rank, task in sorted(self.tasks.items()):
            self.vectors[rank][...] = result
            task.resume()


class SimSum(PendingSum):
    """One worker's part in a sum over all workers that runs beside its computation.

    `wait` counts as waiting for others only the time until the last worker began the sum; the
    remainder is communication. `collective`: takes part in the sum; its result is the time until
    the last worker began it [s].
    """

    def __init__(
        self, clock: VirtualClock, collective: Awaitable[float], worker: Transport
    ) -> None:
        self._clock = clock
        self._worker = worker
        # Time at which this worker began the sum; at the end of the sum, that of the last worker.
        self._last_arrival = clock.now
        self._background = VirtualBackground(clock, "sum in the background")
        self._background.begin(self._await_collective(collective))

    @override
    def is_done(self) -> bool:
        return not self._background.is_under_way

    async def _await_collective(self, collective: Awaitable[float]) -> None:
        """Take part in the sum to its end, and note when the last worker began it."""
        self._last_arrival += await collective

    @override
    async def wait(self) -> None:
        """Wait for the sum; the time until the last worker began it is waiting for others."""
        started = self._clock.now
        await self._background.drain()
        self._worker.waited += max(0.0, self._last_arrival - started)


class _Message(NamedTuple):
    """The vector of a neighbour, with the times at which it is sent and arrives [s]."""

    sent: float
    arrival: float
    vector: Vector


class SimNetwork:
    """The network of all simulated workers, and all that they share.

    Workers are coroutines in one process, so that a message is a copied array. The network only
    decides at which virtual time the receiver gets it.

    `protocol`: protocol of pairwise averages: `memory` with locks, on one host, or `sockets`.
    """

    def __init__(
        self,
        clock: VirtualClock,
        cluster: ClusterSettings,
        world_size: int,
        *,
        protocol: str = "memory",
    ) -> None:
        self.clock = clock
        self.cluster = cluster
        self.hosts = cluster.network
        self.links = SimulatedLinks(self.hosts, world_size, clock)
        self.world_size = world_size
        self.protocol = protocol
        self.counters: Counter[str] = Counter()
        """The counters that all workers share, see `Transport.count`."""
        self.vectors: defaultdict[int, dict[int, SimVector]] = defaultdict(dict)
        """The shared vectors in order of creation: of each one, every worker's copy by rank."""
        self.servers: dict[int, SimShards] = {}
        """The shards of each server, in order of creation."""
        self.sums_until = 0.0
        """Time at which the last sum in the background ends; such sums follow each other."""
        # Operations that some workers have begun and others not, by `index` of `join_collective`.
        self._collectives: dict[int, Collective] = {}
        # Messages not yet fetched, by sender and receiver, in the order of sending. The receiver
        # fetches them in the same order, so that they need no number.
        self._mail: defaultdict[tuple[int, int], deque[_Message]] = defaultdict(deque)
        # Tasks that wait for a message which is not sent yet, by sender and receiver.
        self._expecting: dict[tuple[int, int], VirtualTask] = {}

    def transports(self) -> list[SimTransport]:
        """Return one transport for each worker."""
        return [SimTransport(self, rank) for rank in range(self.world_size)]

    @types.coroutine
    def join_collective(
        self, rank: int, index: int, name: str, vector: Vector, finish: Finish
    ) -> Generator[Register, None, float]:
        """Take part in a collective operation, whose result replaces the content of the vector.

        All workers take part in all operations, in the same order.

         1. The worker adds its vector to the operation.
         2. The last worker computes the result, and when all get it.
         3. Each worker suspends its task until then.

        Args:
            rank: The worker.
            index: Number of a sum in the background; 0 for operations that a worker waits for, of
                which there is one at a time.
            name: Name of the operation: all workers must take part in the same one.
            vector: The worker's vector, which is changed.
            finish: Computes time and result from the vectors of all workers.

        Returns:
            The time until the last worker arrived [s].
        """
        arrival = self.clock.now
        collective = self._collectives.setdefault(index, Collective(name))
        if collective.name != name:
            raise AssertionError(f"rank {rank} is in {name}, other ranks are in {collective.name}")
        collective.vectors[rank] = vector

        is_last = len(collective.vectors) == self.world_size
        if is_last:
            # The next operation may have the same index.
            del self._collectives[index]
            collective.last_arrival = arrival
            vectors_by_rank = [collective.vectors[peer] for peer in range(self.world_size)]
            seconds, result = finish(vectors_by_rank)
            self.clock.at(arrival + seconds, partial(collective.resume_all, result))

        def keep_task(task: VirtualTask) -> None:
            """Keep the suspended task of this worker, which the clock passes."""
            collective.tasks[rank] = task

        yield keep_task
        return collective.last_arrival - arrival

    def all_reduce(self, vectors: Sequence[Vector]) -> tuple[float, Vector]:
        """Return the time of an all-reduce [s] and the sum of the vectors, in rank order."""
        total = vectors[0].copy()
        for vector in vectors[1:]:
            total += vector
        return all_reduce_seconds(self.hosts, self.world_size, total.nbytes), total

    def all_reduce_in_background(self, vectors: Sequence[Vector]) -> tuple[float, Vector]:
        """Return the time from now to the end of an all-reduce in the background [s], and the sum.

        It begins after all earlier ones have ended; the network remembers its end in `sums_until`.
        """
        seconds, total = self.all_reduce(vectors)
        self.sums_until = max(self.clock.now, self.sums_until) + seconds
        return self.sums_until - self.clock.now, total

    def broadcast(self, vectors: Sequence[Vector]) -> tuple[float, Vector]:
        """Return the time of a broadcast [s] and rank 0's vector; a barrier's vector is empty."""
        return tree_seconds(self.hosts, self.world_size, vectors[0].nbytes), vectors[0].copy()

    def post(self, sender: int, receiver: int, vector: Vector) -> None:
        """Send a copy of a vector to a neighbour; it arrives after its time on the network.

        If the receiver waits for it in `fetch` already, its task resumes at the arrival.
        """
        arrival = self.links.arrival(self.clock.now, sender, receiver, vector.nbytes)
        pair = (sender, receiver)
        self._mail[pair].append(_Message(self.clock.now, arrival, vector.copy()))
        waiting_task = self._expecting.pop(pair, None)
        if waiting_task is not None:
            self.clock.at(arrival, waiting_task.resume)

    async def fetch(self, sender: int, receiver: int) -> tuple[Vector, float]:
        """Wait for the next message of a sender to a receiver, until it has arrived.

        Returns:
            The vector of the message, and the time from now until it was sent [s]; 0 if it was sent
            before.
        """
        pair = (sender, receiver)
        started = self.clock.now

        def resume_at_arrival(task: VirtualTask) -> None:
            # A message that is sent already has its time of arrival; else `post` resumes the task.
            if self._mail[pair]:
                arrival = max(self._mail[pair][0].arrival, self.clock.now)
                self.clock.at(arrival, task.resume)
            else:
                self._expecting[pair] = task

        await suspend(resume_at_arrival)
        message = self._mail[pair].popleft()
        return message.vector, max(0.0, message.sent - started)


class SimTransport(Transport):
    """One simulated worker's connection to the others, with the interface of a real `Transport`.

    `waited` sums the time in which the worker waits for others; the time of messages is not part of
    it.
    """

    def __init__(self, network: SimNetwork, rank: int) -> None:
        super().__init__()
        self._network = network
        self.rank = rank
        self.world_size = network.world_size
        # Workers make sums, shared vectors and servers in the same order: the numbers so far tell
        # which of them belong together.
        self._num_sums = 0
        self._num_vectors = 0
        self._num_servers = 0

    async def _join(self, name: str, vector: Vector, finish: Finish) -> None:
        """Take part in a collective operation; the time until the last arrival is waiting."""
        self.waited += await self._network.join_collective(self.rank, 0, name, vector, finish)

    @override
    def all_reduce_sum(self, vector: Vector) -> Coroutine[Any, Any, None]:
        return self._join("an all-reduce", vector, self._network.all_reduce)

    @override
    def broadcast(self, vector: Vector) -> Coroutine[Any, Any, None]:
        return self._join("a broadcast", vector, self._network.broadcast)

    @override
    def barrier(self) -> Coroutine[Any, Any, None]:
        return self._join("a barrier", np.empty(0), self._network.broadcast)

    @override
    def begin_all_reduce(self, vector: Vector) -> PendingSum:
        """Return a sum of the vectors of all workers that runs beside the computation.

        It begins on the network when all workers have called this, and the sum before it has ended.
        """
        network = self._network
        self._num_sums += 1
        collective = network.join_collective(
            self.rank,
            self._num_sums,
            "a sum in the background",
            vector,
            network.all_reduce_in_background,
        )
        return SimSum(network.clock, collective, self)

    @override
    def begin_exchange(
        self, vector: Vector, neighbours: Sequence[int], *, senders: Sequence[int] | None = None
    ) -> Awaitable[list[Vector]]:
        # The vectors leave now; the returned coroutine waits for those of the senders.
        for neighbour in neighbours:
            self._network.post(self.rank, neighbour, vector)
        if senders is None:
            senders = neighbours
        return self._receive(senders)

    async def _receive(self, senders: Sequence[int]) -> list[Vector]:
        """Return the vectors of the senders, in their order, once all have arrived."""
        vectors = []
        for sender in senders:
            vector, waited = await self._network.fetch(sender, self.rank)
            self.waited += waited
            vectors.append(vector)
        return vectors

    @override
    async def shared_vector(self, vector: Vector) -> SharedVector:
        """Make this worker's copy of a shared vector, and wait until all workers have theirs."""
        network = self._network
        vectors = network.vectors[self._num_vectors]
        self._num_vectors += 1
        shared = SimVector(network.links, vectors, self.rank, vector, protocol=network.protocol)
        await self.barrier()
        return shared

    @override
    async def parameter_server(self, content: Vector, *, shards: int = 1) -> ParameterServer:
        """Make this worker's view of a parameter server, and wait until all workers have theirs.

        The first worker makes the table of all shards, to which each adds those that it owns. A
        slow worker also takes longer for the processor time of its pushes.
        """
        network = self._network
        slowness = network.cluster.slow_ranks.get(self.rank, 1.0)
        server = SimServer(
            network.links,
            Layout(content.shape[-1], shards, world_size=self.world_size),
            content,
            rank=self.rank,
            shards=network.servers.setdefault(self._num_servers, SimShards({}, {}, {})),
            push_seconds=network.cluster.push_seconds * slowness,
        )
        self._num_servers += 1
        await self.barrier()
        return server

    @override
    async def count(self, counter: CounterName, amount: int) -> int:
        """Add to a counter that all workers share, and return its value.

        A worker waits for its ticket, the number of its next piece of work: a request to rank 0 and
        an answer of 8 bytes. Samples are counted in the background and take no time.
        """
        network = self._network
        network.counters[counter] += amount
        total = network.counters[counter]
        if counter == "tickets":
            await network.links.travel(0, self.rank, 8, round_trips=2)
        return total

    def now(self) -> float:
        """Return the time on the virtual clock [s]."""
        return self._network.clock.now
