"""The simulated network: collectives, neighbour exchanges and shared vectors on the virtual clock."""

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
from hep_studies.simulator.shared import SimServer, SimShards, SimVector, Wires
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
"""The time that a collective operation takes after the last worker arrives [s], and what it makes of all vectors."""


class Collective:
    """One collective operation; it ends some time after the last worker arrives."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.vectors: dict[int, Vector] = {}
        self.tasks: dict[int, VirtualTask] = {}
        self.complete = 0.0
        """Time at which the last worker arrived."""

    def resume_all(self, result: Vector) -> None:
        """Give all workers the result, in the order of their ranks, so that that of their arrival does not matter."""
        for rank, task in sorted(self.tasks.items()):
            self.vectors[rank][...] = result
            task.resume()


class SimSum(PendingSum):
    """A sum in the background.

    `collective`: the worker's part in it; gives the time until the last worker began it [s].
    """

    def __init__(
        self, clock: VirtualClock, collective: Awaitable[float], worker: Transport
    ) -> None:
        self._clock = clock
        self._worker = worker
        self._complete = clock.now
        self._background = VirtualBackground(clock, "sum in the background")
        self._background.begin(self._take_part(collective))

    @override
    def is_done(self) -> bool:
        return not self._background.is_under_way

    async def _take_part(self, collective: Awaitable[float]) -> None:
        self._complete += await collective

    @override
    async def wait(self) -> None:
        started = self._clock.now
        await self._background.drain()
        self._worker.waited += max(0.0, self._complete - started)


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
        self.wires = Wires(self.hosts, world_size, clock)
        self.world_size = world_size
        self.protocol = protocol
        self.counters: Counter[str] = Counter()
        self.vectors: defaultdict[int, dict[int, SimVector]] = defaultdict(dict)
        """The shared vectors in order of creation, by rank."""
        self.servers: dict[int, SimShards] = {}
        """The shards of each server, in order of creation."""
        self.sums_until = 0.0
        """Time at which the last sum in the background ends; they follow each other."""
        self._collectives: dict[int, Collective] = {}
        #: By sender and receiver, which begin and end their exchanges in the same order.
        self._mail: defaultdict[tuple[int, int], deque[_Message]] = defaultdict(deque)
        self._expecting: dict[tuple[int, int], VirtualTask] = {}

    def transports(self) -> list[SimTransport]:
        """One transport for each worker."""
        return [SimTransport(self, rank) for rank in range(self.world_size)]

    @types.coroutine
    def take_part(
        self, rank: int, number: int, kind: str, vector: Vector, finish: Finish
    ) -> Generator[Register, None, float]:
        """Take part in the collective operation of this number; all workers take part in all, in the same order.

        The number is 0 for those that a worker waits for, of which it is in one at a time. The result replaces the
        content of the vector. Returns the time until the last worker arrived [s].
        """
        if number not in self._collectives:
            self._collectives[number] = Collective(kind)
        found, arrived = self._collectives[number], self.clock.now
        if found.kind != kind:
            raise AssertionError(f"rank {rank} is in {kind}, others are in {found.kind}")
        found.vectors[rank] = vector
        if len(found.vectors) == self.world_size:
            del self._collectives[number]
            found.complete = arrived
            seconds, result = finish([found.vectors[each] for each in range(self.world_size)])
            self.clock.at(arrived + seconds, partial(found.resume_all, result))
        yield partial(found.tasks.__setitem__, rank)
        return found.complete - arrived

    def add_up(self, vectors: Sequence[Vector]) -> tuple[float, Vector]:
        """Time and result of an all-reduce."""
        total = vectors[0].copy()
        for vector in vectors[1:]:
            total += vector
        return all_reduce_seconds(self.hosts, self.world_size, total.nbytes), total

    def add_up_in_background(self, vectors: Sequence[Vector]) -> tuple[float, Vector]:
        """Time and result of an all-reduce after all those that began before."""
        seconds, total = self.add_up(vectors)
        self.sums_until = max(self.clock.now, self.sums_until) + seconds
        return self.sums_until - self.clock.now, total

    def spread(self, vectors: Sequence[Vector]) -> tuple[float, Vector]:
        """Time and result of a broadcast; of empty vectors, of a barrier."""
        return tree_seconds(self.hosts, self.world_size, vectors[0].nbytes), vectors[0].copy()

    def post(self, sender: int, receiver: int, vector: Vector) -> None:
        """Send the message of an exchange; it arrives after its time on the network."""
        arrival = self.wires.arrival(self.clock.now, sender, receiver, vector.nbytes)
        key = (sender, receiver)
        self._mail[key].append(_Message(self.clock.now, arrival, vector.copy()))
        waiting = self._expecting.pop(key, None)
        if waiting is not None:
            self.clock.at(arrival, waiting.resume)

    async def fetch(self, sender: int, receiver: int) -> tuple[Vector, float]:
        """Wait for the message of the next exchange; returns it, and the time until it was sent [s]."""
        key = (sender, receiver)
        started = self.clock.now

        def expect(task: VirtualTask) -> None:
            if self._mail[key]:
                self.clock.at(max(self._mail[key][0].arrival, self.clock.now), task.resume)
            else:
                self._expecting[key] = task

        await suspend(expect)
        message = self._mail[key].popleft()
        return message.vector, max(0.0, message.sent - started)


class SimTransport(Transport):
    """One simulated worker's view of the network; see `training.transports.transport.Transport`."""

    def __init__(self, network: SimNetwork, rank: int) -> None:
        super().__init__()
        self._network = network
        self.rank = rank
        self.world_size = network.world_size
        self._sums = self._vectors = self._servers = 0

    async def _take_part(self, kind: str, vector: Vector, finish: Finish) -> None:
        self.waited += await self._network.take_part(self.rank, 0, kind, vector, finish)

    @override
    def all_reduce_sum(self, vector: Vector) -> Coroutine[Any, Any, None]:
        return self._take_part("an all-reduce", vector, self._network.add_up)

    @override
    def broadcast(self, vector: Vector) -> Coroutine[Any, Any, None]:
        return self._take_part("a broadcast", vector, self._network.spread)

    @override
    def barrier(self) -> Coroutine[Any, Any, None]:
        return self._take_part("a barrier", np.empty(0), self._network.spread)

    @override
    def begin_all_reduce(self, vector: Vector) -> PendingSum:
        """A sum begins when all workers are there and the sum before it is done."""
        network, what = self._network, "a sum in the background"
        self._sums += 1
        return SimSum(
            network.clock,
            network.take_part(self.rank, self._sums, what, vector, network.add_up_in_background),
            self,
        )

    @override
    def begin_exchange(self, vector: Vector, neighbours: Sequence[int]) -> Awaitable[list[Vector]]:
        for neighbour in neighbours:
            self._network.post(self.rank, neighbour, vector)
        return self._receive(neighbours)

    async def _receive(self, neighbours: Sequence[int]) -> list[Vector]:
        found = []
        for neighbour in neighbours:
            vector, waited = await self._network.fetch(neighbour, self.rank)
            self.waited += waited
            found.append(vector)
        return found

    @override
    async def shared_vector(self, vector: Vector) -> SharedVector:
        network = self._network
        vectors = network.vectors[self._vectors]
        self._vectors += 1
        mine = SimVector(network.wires, vectors, self.rank, vector, protocol=network.protocol)
        await self.barrier()
        return mine

    @override
    async def parameter_server(self, content: Vector, *, shards: int = 1) -> ParameterServer:
        network, cluster = self._network, self._network.cluster
        layout = Layout(content.shape[-1], shards, world_size=self.world_size)
        mine = SimServer(
            network.wires,
            layout,
            content,
            rank=self.rank,
            shards=network.servers.setdefault(self._servers, SimShards({}, {}, {})),
            push_seconds=cluster.push_seconds * cluster.slow_ranks.get(self.rank, 1.0),
        )
        self._servers += 1
        await self.barrier()
        return mine

    @override
    async def count(self, counter: CounterName, number: int) -> int:
        """A ticket takes a message there and back; the samples are counted in the background."""
        network = self._network
        network.counters[counter] += number
        found = network.counters[counter]
        if counter == "tickets":
            await network.wires.travel(0, self.rank, 8, round_trips=2)
        return found

    def now(self) -> float:
        """Seconds on the virtual clock."""
        return self._network.clock.now
