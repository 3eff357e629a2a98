"""The transport between agents of a Spark cluster: sums are jobs of the driver, in the background.

An agent tells the driver by its connection (lines of JSON) that it has begun a sum. When all have, tasks take the
vectors from the agents, add them up in a tree, and give the broadcast total to each agent. Tasks show the token first;
they send a header of fixed size, and then exactly the bytes of the vector.
"""

from __future__ import annotations

import json
import queue
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any, Final

import numpy as np
from typing_extensions import override

from hep_core.authenticated_sockets import AuthenticatedListener
from training.errors import LaunchError
from training.transports.basics import Vector
from training.transports.parameter_server import ParameterServer
from training.transports.transport import CounterName, PendingSum, SharedVector, Transport

#: Kind of a task, and number of the sum.
_HEADER: Final = struct.Struct("!cQ")
_TAKE, _GIVE = b"t", b"g"
_YES, _NO = b"y", b"n"
_LONGEST_LINE: Final = 1 << 10
_LOOK_SECONDS: Final = 1.0
#: Time without news after which a task or an agent gives up the other [s].
_SECONDS: Final = 30.0
#: Number of work units that an agent begins while a sum is under way: about its part of an epoch.
_UNITS_AHEAD: Final = 8
#: Interval at which an agent adds its samples to the counter of all [s].
_SAMPLES_SECONDS: Final = 0.05


class SparkTransport(Transport):
    """A transport over jobs of Spark; its coroutines block and never suspend (see `basics.run_now`)."""

    def __init__(
        self,
        driver: socket.socket,
        token: bytes,
        *,
        rank: int,
        world_size: int,
        on_end: Callable[[], object],
    ) -> None:
        super().__init__()
        self.rank, self.world_size = rank, world_size
        self._driver, self._on_end = driver, on_end
        # A line must not wait until the driver has confirmed the one before.
        driver.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._number = self._units = 0
        self._sums: dict[int, _SparkSum] = {}
        self._totals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._samples, self._samples_before, self._told = 0, 0, perf_counter()
        # Whoever reaches the driver from here reaches this agent too.
        self._door = AuthenticatedListener(
            socket.create_server((driver.getsockname()[0], 0)), token
        )
        for work in (self._serve, self._listen):
            threading.Thread(target=work, daemon=True).start()
        self.say({"rank": rank, "port": self._door.address[1]})

    def say(self, content: dict[str, Any]) -> None:
        """Send the driver a line: `progress` of the run, or that this agent is `done`."""
        self._driver.sendall(json.dumps(content).encode() + b"\n")

    @override
    def begin_all_reduce(self, vector: Vector) -> PendingSum:
        self._number += 1
        begun = self._sums[self._number] = _SparkSum(self, vector, self._units)
        self.say({"sum": self._number, "type": vector.dtype.str, "size": vector.size})
        return begun

    @override
    async def all_reduce_sum(self, vector: Vector) -> None:
        await self.begin_all_reduce(vector)

    @override
    async def broadcast(self, vector: Vector) -> None:
        """Add up bytes, which are 0 on all ranks but 0."""
        content = np.frombuffer(vector.tobytes(), np.uint8) * np.uint8(self.rank == 0)
        await self.all_reduce_sum(content)
        vector[...] = content.view(vector.dtype).reshape(vector.shape)

    @override
    async def barrier(self) -> None:
        await self.all_reduce_sum(np.zeros(1))

    @override
    async def count(self, counter: CounterName, number: int) -> int:
        """Ask the driver, for the samples now and then; an agent about an epoch ahead of a sum waits for it."""
        if counter == "tickets":
            self._units += 1
            for begun in list(self._sums.values()):
                if self._units - begun.units > _UNITS_AHEAD:
                    await begun
            return self._ask(counter, number)
        self._samples += number
        if perf_counter() - self._told > _SAMPLES_SECONDS:
            self._samples_before, self._samples = self._ask(counter, self._samples), 0
            self._told = perf_counter()
        return self._samples_before + self._samples

    def _ask(self, counter: CounterName, number: int) -> int:
        self.say({"count": counter, "number": number})
        return self._totals.get()

    @override
    async def shared_vector(self, vector: Vector) -> SharedVector:
        """Refuse: only batch norm needs it here."""
        raise LaunchError(
            "agents cannot read the running means of each other's batch norm while they train. Set train.sharding: "
            "static, or train.launcher: spark"
        )

    @override
    async def parameter_server(self, content: Vector, *, shards: int = 1) -> ParameterServer:
        raise AssertionError("agents only add up: the settings refuse methods with a server")

    def _listen(self) -> None:
        with suppress(OSError), self._driver.makefile("rb") as lines:
            while line := lines.readline(_LONGEST_LINE):
                self._totals.put(json.loads(line)["total"])
        self._on_end()

    def _serve(self) -> None:
        while True:
            for task in self._door.accept(_LOOK_SECONDS):
                threading.Thread(target=self._answer, args=(task,), daemon=True).start()

    def _answer(self, task: socket.socket) -> None:
        # A task may be gone, and another one come in its place.
        with suppress(OSError), task:
            task.settimeout(_SECONDS)
            kind, number = _HEADER.unpack(_receive(task, _HEADER.size))
            begun = self._sums.get(number)
            if kind == _TAKE and begun is not None:
                task.sendall(begun.content)
            elif kind == _GIVE:
                task.sendall(_NO if begun is None else _YES)
                if begun is not None:
                    begun.finish(_receive(task, len(begun.content)))
                    self._sums.pop(number, None)
                    task.sendall(_YES)


class _SparkSum(PendingSum):
    """A sum that this agent has begun."""

    def __init__(self, worker: SparkTransport, vector: Vector, units: int) -> None:
        self._worker, self._vector, self.units = worker, vector, units
        self.content: Final = vector.tobytes()
        self._is_there = threading.Event()

    def finish(self, content: bytearray) -> None:
        """Take over the sum; a task that Spark repeats gives the same."""
        self._vector[...] = np.frombuffer(content, self._vector.dtype).reshape(self._vector.shape)
        self._is_there.set()

    @override
    def is_done(self) -> bool:
        return self._is_there.is_set()

    @override
    async def wait(self) -> None:
        started = perf_counter()
        self._is_there.wait()
        self._worker.waited += perf_counter() - started


def take(agent: tuple[str, int], token: bytes, number: int, dtype: str, size: int) -> Vector:
    """The vector (size,) of an agent, by its host and port, for the sum of a number; a task calls it."""
    with _connection(agent, token + _HEADER.pack(_TAKE, number)) as connection:
        vector: Vector = np.frombuffer(_receive(connection, size * np.dtype(dtype).itemsize), dtype)
        return vector


def give(agent: tuple[str, int], token: bytes, number: int, total: Vector) -> None:
    """Give an agent the sum, if it does not have it yet; a task calls it."""
    with _connection(agent, token + _HEADER.pack(_GIVE, number)) as connection:
        if _receive(connection, 1) == _YES:
            connection.sendall(total.tobytes())
            _receive(connection, 1)


def _connection(agent: tuple[str, int], begin: bytes) -> socket.socket:
    connection = socket.create_connection(agent, _SECONDS)
    connection.sendall(begin)
    return connection


def _receive(connection: socket.socket, size: int) -> bytearray:
    content = bytearray(size)
    left = memoryview(content)
    while left and (number := connection.recv_into(left)):
        left = left[number:]
    if left:
        raise ConnectionResetError("the connection ended early")
    return content
