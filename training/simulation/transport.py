"""The simulated network: collectives, neighbour exchanges and shared vectors on the virtual clock."""

from __future__ import annotations

import types
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import Any, NamedTuple

from typing_extensions import override

from training.simulation.cluster import ClusterSettings
from training.simulation.costs import all_reduce_seconds, tree_seconds
from training.simulation.shared import SimServer, SimShards, SimVector, Wires
from training.simulation.virtual_time import Register, VirtualBackground, VirtualClock, VirtualTask, suspend
from training.transports.basics import Vector
from training.transports.parameter_server import Layout, ParameterServer
from training.transports.transport import CounterName, PendingSum, SharedVector, Transport

Finish = Callable[[Sequence[Vector]], tuple[float, Vector | None]]
"""The time that a collective operation takes after the last worker arrives [s], and what it makes of all vectors."""


class Collective:
    """One collective operation; it ends some time after the last worker arrives.

    Workers continue in the order of their ranks, so that the order of their arrival does not matter.
    """

    __slots__ = ("_clock", "_finish", "_missing", "_tasks", "_vectors", "complete", "kind")

    def __init__(self, kind: str, world_size: int, clock: VirtualClock, finish: Finish) -> None:
        self.kind = kind
        self._tasks: dict[int, VirtualTask] = {}
        self._vectors: dict[int, Vector] = {}
        self._missing = world_size
        self._clock = clock
        self._finish = finish
        self.complete = 0.0
        """Time at which the last worker arrived."""

    def arrive(self, rank: int, vector: Vector | None, task: VirtualTask) -> None:
        """Let a worker wait for the end; the result replaces the content of its vector when it continues."""
        self._tasks[rank] = task
        if vector is not None:
            self._vectors[rank] = vector
        self._missing -= 1
        if self._missing:
            return
        self.complete = self._clock.now
        seconds, result = self._finish([self._vectors[rank] for rank in sorted(self._vectors)])
        self._clock.at(self._clock.now + seconds, partial(self._resume_all, result))

    def _resume_all(self, result: Vector | None) -> None:
        for rank, task in sorted(self._tasks.items()):
            if result is not None:
                self._vectors[rank][...] = result
            task.resume()


class SimSum(PendingSum):
    """A sum in the background.

    `collective`: the worker's part in it; gives the time until the last worker began it [s].
    """

    def __init__(self, clock: VirtualClock, collective: Awaitable[float], worker: Transport) -> None:
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


def added(vectors: Sequence[Vector]) -> Vector:
    """The sum of vectors, in their order."""
    total = vectors[0].copy()
    for vector in vectors[1:]:
        total += vector
    return total


class _Message(NamedTuple):
    sent: float
    arrival: float
    vector: Vector


class SimNetwork:
    """The network of all simulated workers.

    `protocol`: protocol of the averages, see `ClusterSettings.protocol`.
    """

    def __init__(
        self, clock: VirtualClock, cluster: ClusterSettings, world_size: int, *, protocol: str = "memory"
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
        self, rank: int, number: int, kind: str, vector: Vector | None, finish: Finish
    ) -> Generator[Register, None, float]:
        """Take part in the collective operation of this number; all workers take part in all, in the same order.

        The number is 0 for those that a worker waits for, of which it is in one at a time. The result is the time until
        the last worker arrived [s].
        """
        collective = self._collectives.get(number)
        if collective is None:

            def close(vectors: Sequence[Vector]) -> tuple[float, Vector | None]:
                del self._collectives[number]
                return finish(vectors)

            collective = self._collectives[number] = Collective(kind, self.world_size, self.clock, close)
        if collective.kind != kind:
            raise AssertionError(f"rank {rank} is in {kind}, others are in {collective.kind}")
        arrived = self.clock.now
        yield partial(collective.arrive, rank, vector)
        return collective.complete - arrived

    def add_up(self, vectors: Sequence[Vector]) -> tuple[float, Vector]:
        """Time and result of an all-reduce."""
        return all_reduce_seconds(self.hosts, self.world_size, vectors[0].nbytes), added(vectors)

    def add_up_in_background(self, vectors: Sequence[Vector]) -> tuple[float, Vector]:
        """Time and result of an all-reduce after all those that began before."""
        seconds, total = self.add_up(vectors)
        self.sums_until = max(self.clock.now, self.sums_until) + seconds
        return self.sums_until - self.clock.now, total

    def spread(self, vectors: Sequence[Vector]) -> tuple[float, Vector | None]:
        """Time and result of a broadcast; without vectors, of a barrier."""
        if not vectors:
            return tree_seconds(self.hosts, self.world_size, 0), None
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

    async def _take_part(self, kind: str, vector: Vector | None, finish: Finish) -> None:
        self.waited += await self._network.take_part(self.rank, 0, kind, vector, finish)

    @override
    def all_reduce_sum(self, vector: Vector) -> Coroutine[Any, Any, None]:
        return self._take_part("an all-reduce", vector, self._network.add_up)

    @override
    def broadcast(self, vector: Vector) -> Coroutine[Any, Any, None]:
        return self._take_part("a broadcast", vector, self._network.spread)

    @override
    def barrier(self) -> Coroutine[Any, Any, None]:
        return self._take_part("a barrier", None, self._network.spread)

    @override
    def begin_all_reduce(self, vector: Vector) -> PendingSum:
        """A sum begins when all workers are there and the sum before it is done."""
        network, what = self._network, "a sum in the background"
        self._sums += 1
        return SimSum(
            network.clock, network.take_part(self.rank, self._sums, what, vector, network.add_up_in_background), self
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
