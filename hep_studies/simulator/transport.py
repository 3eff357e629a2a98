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
"""Return the time of a collective operation after the last worker arrives [s], and its result."""


class Collective:
    """One collective operation; it ends some time after the last worker arrives."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.vectors: dict[int, Vector] = {}
        self.tasks: dict[int, VirtualTask] = {}
        self.last_arrival = 0.0
        """Time at which the last worker arrived."""

    def resume_all(self, result: Vector) -> None:
        """Give all workers the result, in the order of their ranks and not of their arrival."""
        for rank, task in sorted(self.tasks.items()):
            self.vectors[rank][...] = result
            task.resume()


class SimSum(PendingSum):
    """A sum in the background.

    `collective`: the worker's part in it; returns the time until the last worker began it [s].
    """

    def __init__(
        self, clock: VirtualClock, collective: Awaitable[float], worker: Transport
    ) -> None:
        self._clock = clock
        self._worker = worker
        self._last_arrival = clock.now
        self._background = VirtualBackground(clock, "sum in the background")
        self._background.begin(self._await_collective(collective))

    @override
    def is_done(self) -> bool:
        return not self._background.is_under_way

    async def _await_collective(self, collective: Awaitable[float]) -> None:
        self._last_arrival += await collective

    @override
    async def wait(self) -> None:
        started = self._clock.now
        await self._background.drain()
        self._worker.waited += max(0.0, self._last_arrival - started)


class _Message(NamedTuple):
    sent: float
    arrival: float
    vector: Vector


class SimNetwork:
    """The network of all simulated workers.

    `protocol`: protocol of the averages, see `ClusterSettings.protocol`.
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
        self.vectors: defaultdict[int, dict[int, SimVector]] = defaultdict(dict)
        """The shared vectors in order of creation, by rank."""
        self.servers: dict[int, SimShards] = {}
        """The shards of each server, in order of creation."""
        self.sums_until = 0.0
        """Time at which the last sum in the background ends; such sums follow each other."""
        self._collectives: dict[int, Collective] = {}
        # By sender and receiver. Both begin and end their exchanges in the same order.
        self._mail: defaultdict[tuple[int, int], deque[_Message]] = defaultdict(deque)
        self._expecting: dict[tuple[int, int], VirtualTask] = {}

    def transports(self) -> list[SimTransport]:
        """Return one transport for each worker."""
        return [SimTransport(self, rank) for rank in range(self.world_size)]

    @types.coroutine
    def join_collective(
        self, rank: int, index: int, name: str, vector: Vector, finish: Finish
    ) -> Generator[Register, None, float]:
        """Take part in a collective operation, whose result replaces the content of the vector.

        All workers take part in all operations, in the same order. `index`: of sums in the
        background; 0 for operations that a worker waits for, one at a time.

        Returns:
            The time until the last worker arrived [s].
        """
        if index not in self._collectives:
            self._collectives[index] = Collective(name)
        collective = self._collectives[index]
        if collective.name != name:
            raise AssertionError(f"rank {rank} is in {name}, other ranks are in {collective.name}")
        arrival = self.clock.now
        collective.vectors[rank] = vector
        if len(collective.vectors) == self.world_size:
            del self._collectives[index]
            collective.last_arrival = arrival
            seconds, result = finish([collective.vectors[peer] for peer in range(self.world_size)])
            self.clock.at(arrival + seconds, partial(collective.resume_all, result))
        yield partial(collective.tasks.__setitem__, rank)
        return collective.last_arrival - arrival

    def all_reduce(self, vectors: Sequence[Vector]) -> tuple[float, Vector]:
        """Return the time and the result of an all-reduce."""
        total = vectors[0].copy()
        for vector in vectors[1:]:
            total += vector
        return all_reduce_seconds(self.hosts, self.world_size, total.nbytes), total

    def all_reduce_in_background(self, vectors: Sequence[Vector]) -> tuple[float, Vector]:
        """Return the time and the result of an all-reduce that begins after all earlier ones."""
        seconds, total = self.all_reduce(vectors)
        self.sums_until = max(self.clock.now, self.sums_until) + seconds
        return self.sums_until - self.clock.now, total

    def broadcast(self, vectors: Sequence[Vector]) -> tuple[float, Vector]:
        """Return the time and the result of a broadcast, or of a barrier of empty vectors."""
        return tree_seconds(self.hosts, self.world_size, vectors[0].nbytes), vectors[0].copy()

    def post(self, sender: int, receiver: int, vector: Vector) -> None:
        """Send the message of an exchange; it arrives after its time on the network."""
        arrival = self.links.arrival(self.clock.now, sender, receiver, vector.nbytes)
        pair = (sender, receiver)
        self._mail[pair].append(_Message(self.clock.now, arrival, vector.copy()))
        waiting_task = self._expecting.pop(pair, None)
        if waiting_task is not None:
            self.clock.at(arrival, waiting_task.resume)

    async def fetch(self, sender: int, receiver: int) -> tuple[Vector, float]:
        """Wait for the message of the next exchange.

        Returns:
            The message, and the time until it was sent [s].
        """
        pair = (sender, receiver)
        started = self.clock.now

        def resume_at_arrival(task: VirtualTask) -> None:
            if self._mail[pair]:
                arrival = max(self._mail[pair][0].arrival, self.clock.now)
                self.clock.at(arrival, task.resume)
            else:
                self._expecting[pair] = task

        await suspend(resume_at_arrival)
        message = self._mail[pair].popleft()
        return message.vector, max(0.0, message.sent - started)


class SimTransport(Transport):
    """One simulated worker's view of the network; see `training.transports.transport.Transport`."""

    def __init__(self, network: SimNetwork, rank: int) -> None:
        super().__init__()
        self._network = network
        self.rank = rank
        self.world_size = network.world_size
        self._num_sums = 0
        self._num_vectors = 0
        self._num_servers = 0

    async def _join(self, name: str, vector: Vector, finish: Finish) -> None:
        """Take part in a collective operation, and count the waiting."""
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
        """Begin a sum when all workers have arrived and the sum before it has ended."""
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
    def begin_exchange(self, vector: Vector, neighbours: Sequence[int]) -> Awaitable[list[Vector]]:
        for neighbour in neighbours:
            self._network.post(self.rank, neighbour, vector)
        return self._receive(neighbours)

    async def _receive(self, neighbours: Sequence[int]) -> list[Vector]:
        vectors = []
        for neighbour in neighbours:
            vector, waited = await self._network.fetch(neighbour, self.rank)
            self.waited += waited
            vectors.append(vector)
        return vectors

    @override
    async def shared_vector(self, vector: Vector) -> SharedVector:
        network = self._network
        vectors = network.vectors[self._num_vectors]
        self._num_vectors += 1
        shared = SimVector(network.links, vectors, self.rank, vector, protocol=network.protocol)
        await self.barrier()
        return shared

    @override
    async def parameter_server(self, content: Vector, *, shards: int = 1) -> ParameterServer:
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
        """Add to a counter; a ticket takes a round trip, samples are counted in the background."""
        network = self._network
        network.counters[counter] += amount
        total = network.counters[counter]
        if counter == "tickets":
            await network.links.travel(0, self.rank, 8, round_trips=2)
        return total

    def now(self) -> float:
        """Return the time on the virtual clock [s]."""
        return self._network.clock.now
