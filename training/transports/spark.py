"""The transport between agents of a Spark cluster: sums are jobs of the driver, in the background.

An agent tells the driver by its connection (lines of JSON) that it has begun a sum. When all have,
tasks fetch the vectors from the agents, add them up in a tree, and deliver the broadcast total to
each agent. Tasks show the token first; they send a header of fixed size, and then exactly the bytes
of the vector.
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

#: Header of a task's message: the request, one byte, and the number of the sum, eight bytes.
_HEADER: Final = struct.Struct("!cQ")
#: Requests: to send the agent's vector, or to take the total.
_FETCH, _DELIVER = b"f", b"d"
#: Answers of an agent to a delivery: whether it needs the total; and that it has got it.
_YES, _NO = b"y", b"n"
_MAX_LINE_BYTES: Final = 1 << 10
#: Time for which one call waits for connections of tasks [s].
_ACCEPT_SECONDS: Final = 1.0
#: Time without news after which a task or an agent gives up the other [s].
_TIMEOUT_SECONDS: Final = 30.0
#: Number of work units that an agent begins while a sum is under way: about its part of an epoch.
_UNITS_AHEAD: Final = 8
#: Interval at which an agent adds its samples to the counter of all [s].
_SAMPLES_INTERVAL_SECONDS: Final = 0.05


class SparkTransport(Transport):
    """A transport over jobs of Spark, for one agent: a worker of the training in an executor.

    The agent sends the driver lines of JSON, and gets counts back. Tasks of Spark fetch its vectors
    and deliver their sums. The coroutines block and never suspend (see `basics.run_now`).

    Args:
        driver: Connection to the driver.
        token: Random bytes that a task must show first.
        rank: Number of this agent.
        world_size: Number of agents.
        on_end: Called when the driver has closed the connection.
    """

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
        self.rank = rank
        self.world_size = world_size
        self._driver = driver
        self._on_end = on_end
        # A line must not wait until the driver has confirmed the one before.
        driver.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        #: Number of sums that this agent has begun.
        self._num_sums = 0
        #: Number of work units (parts of an epoch) that this agent has begun.
        self._num_units = 0
        #: Sums under way, by their numbers.
        self._sums: dict[int, _SparkSum] = {}
        #: Answers of the driver: counts of all agents.
        self._answers: queue.SimpleQueue[int] = queue.SimpleQueue()
        #: Samples of this agent since it last asked the driver.
        self._new_samples = 0
        #: Samples of all agents when it last asked.
        self._samples_of_all = 0
        #: Time when it last asked [s].
        self._asked_for_samples = perf_counter()
        # Whoever reaches the driver from here reaches this agent too.
        host = driver.getsockname()[0]
        self._listener = AuthenticatedListener(socket.create_server((host, 0)), token)
        for loop in (self._serve_tasks, self._listen_to_driver):
            threading.Thread(target=loop, daemon=True).start()
        self.send({"rank": rank, "port": self._listener.address[1]})

    def send(self, message: dict[str, Any]) -> None:
        """Send the driver a message as a line of JSON.

        The first one has rank and port. The others begin a sum, ask for a count, tell the
        `progress` of the run, or that this agent is `done`.
        """
        self._driver.sendall(json.dumps(message).encode() + b"\n")

    @override
    def begin_all_reduce(self, vector: Vector) -> PendingSum:
        """Note the vector as this agent's part of the next sum, and tell the driver."""
        self._num_sums += 1
        pending = _SparkSum(self, vector, num_units=self._num_units)
        self._sums[self._num_sums] = pending
        self.send({"sum": self._num_sums, "type": vector.dtype.str, "size": vector.size})
        return pending

    @override
    async def all_reduce_sum(self, vector: Vector) -> None:
        await self.begin_all_reduce(vector)

    @override
    async def broadcast(self, vector: Vector) -> None:
        """Replace the vector by that of rank 0: a sum of its bytes, with 0 from all other ranks."""
        raw = np.frombuffer(vector.tobytes(), np.uint8).copy()
        if self.rank != 0:
            raw.fill(0)
        await self.all_reduce_sum(raw)
        vector[...] = raw.view(vector.dtype).reshape(vector.shape)

    @override
    async def barrier(self) -> None:
        await self.all_reduce_sum(np.zeros(1))

    @override
    async def count(self, counter: CounterName, amount: int) -> int:
        """Add to a counter of all agents, and return its value after that.

        A ticket for a work unit asks the driver each time; an agent about an epoch ahead of a sum
        waits for it first. Samples are sent every 50 milliseconds, so their count is a little old.
        """
        if counter == "tickets":
            await self._wait_for_old_sums()
            return self._ask_driver(counter, amount)
        self._new_samples += amount
        if perf_counter() - self._asked_for_samples > _SAMPLES_INTERVAL_SECONDS:
            self._samples_of_all = self._ask_driver(counter, self._new_samples)
            self._new_samples = 0
            self._asked_for_samples = perf_counter()
        return self._samples_of_all + self._new_samples

    async def _wait_for_old_sums(self) -> None:
        """Count a new work unit, and wait for the sums begun more than 8 units before it."""
        self._num_units += 1
        for pending in list(self._sums.values()):
            if self._num_units - pending.num_units > _UNITS_AHEAD:
                await pending

    def _ask_driver(self, counter: CounterName, amount: int) -> int:
        """Let the driver add to a counter; return its value after that."""
        self.send({"count": counter, "number": amount})
        return self._answers.get()

    @override
    async def shared_vector(self, vector: Vector) -> SharedVector:
        """Raise LaunchError: only batch norm needs a shared vector here, for its running means."""
        raise LaunchError(
            "agents cannot read the running means of each other's batch norm while they train. Set "
            "train.sharding: static, or train.launcher: spark"
        )

    @override
    async def parameter_server(self, content: Vector, *, shards: int = 1) -> ParameterServer:
        raise AssertionError("agents only add up: the settings refuse methods with a server")

    def _listen_to_driver(self) -> None:
        """Queue the driver's answers until it closes the connection; then call `on_end`."""
        with suppress(OSError), self._driver.makefile("rb") as lines:
            while line := lines.readline(_MAX_LINE_BYTES):
                self._answers.put(json.loads(line)["total"])
        self._on_end()

    def _serve_tasks(self) -> None:
        """Accept the connections of tasks forever, each with a thread of its own."""
        while True:
            for task in self._listener.accept(_ACCEPT_SECONDS):
                threading.Thread(target=self._answer_task, args=(task,), daemon=True).start()

    def _answer_task(self, task: socket.socket) -> None:
        """Answer one request of a task: send this agent's vector, or take the total of a sum.

        A delivery is answered by whether the sum is still open. Only then the total follows, and is
        confirmed.
        """
        # A task may be gone, and Spark repeats it.
        with suppress(OSError), task:
            task.settimeout(_TIMEOUT_SECONDS)
            request, sum_number = _HEADER.unpack(_receive(task, _HEADER.size))
            pending = self._sums.get(sum_number)
            if request == _FETCH and pending is not None:
                task.sendall(pending.contribution)
            elif request == _DELIVER:
                task.sendall(_NO if pending is None else _YES)
                if pending is not None:
                    pending.finish(_receive(task, len(pending.contribution)))
                    self._sums.pop(sum_number, None)
                    task.sendall(_YES)


class _SparkSum(PendingSum):
    """A sum that this agent has begun.

    `worker`: the agent's transport, whose `waited` grows by the time of `wait`. `vector`: gets the
    sum. `num_units`: number of work units that the agent had begun then.
    """

    def __init__(self, worker: SparkTransport, vector: Vector, *, num_units: int) -> None:
        self._worker = worker
        self._vector = vector
        self.num_units = num_units
        self.contribution: Final = vector.tobytes()
        """The agent's vector as it was at the beginning, for tasks that fetch it."""
        self._has_arrived = threading.Event()

    def finish(self, total: bytearray) -> None:
        """Write the total, as bytes, into the vector, and wake who waits for it.

        A second call changes nothing, since a task that Spark repeats delivers the same.
        """
        self._vector[...] = np.frombuffer(total, self._vector.dtype).reshape(self._vector.shape)
        self._has_arrived.set()

    @override
    def is_done(self) -> bool:
        return self._has_arrived.is_set()

    @override
    async def wait(self) -> None:
        started = perf_counter()
        self._has_arrived.wait()
        self._worker.waited += perf_counter() - started


def fetch_vector(
    agent: tuple[str, int], token: bytes, sum_number: int, dtype: str, size: int
) -> Vector:
    """Return an agent's vector, (size,), for a sum; a task calls this.

    `agent`: its host and port. `token`: the random bytes of the job. `sum_number`: number of the
    sum, from 1. `dtype`: type of the elements, as numpy writes it.
    """
    with _connect_to(agent, token, _FETCH, sum_number) as connection:
        raw = _receive(connection, size * np.dtype(dtype).itemsize)
        vector: Vector = np.frombuffer(raw, dtype)
        return vector


def deliver_sum(agent: tuple[str, int], token: bytes, sum_number: int, total: Vector) -> None:
    """Deliver the total of a sum to an agent, if it does not have it yet; a task calls this.

    `agent`: its host and port. `token`: the random bytes of the job. `sum_number`: number of the
    sum, from 1.
    """
    with _connect_to(agent, token, _DELIVER, sum_number) as connection:
        if _receive(connection, 1) == _YES:
            connection.sendall(total.tobytes())
            # The agent confirms that it has the total.
            _receive(connection, 1)


def _connect_to(
    agent: tuple[str, int], token: bytes, request: bytes, sum_number: int
) -> socket.socket:
    """Connect to an agent, and send token and header; return the open connection."""
    connection = socket.create_connection(agent, _TIMEOUT_SECONDS)
    connection.sendall(token + _HEADER.pack(request, sum_number))
    return connection


def _receive(connection: socket.socket, size: int) -> bytearray:
    """Return exactly this number of bytes from a connection.

    Raises:
        ConnectionResetError: The connection ended before.
    """
    received = bytearray(size)
    # A view of the part that is not filled yet.
    missing = memoryview(received)
    while missing:
        num_bytes = connection.recv_into(missing)
        if not num_bytes:
            raise ConnectionResetError("the connection ended early")
        missing = missing[num_bytes:]
    return received
