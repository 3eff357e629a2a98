"""The transport of agents, with a driver in this process: sums, counts, tasks and ends."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from ranks import wait_until

from training.transports.basics import run_now
from training.transports.spark import _UNITS_AHEAD, SparkTransport, deliver_sum, fetch_vector

TOKEN = b"0123456789abcdef"
WORLD_SIZE = 3


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        return client, accepted


class Driver:
    """Agents in this process, and a thread for each, which does the driver's work."""

    def __init__(self) -> None:
        self.ended = Counter[int]()
        self.agents: list[SparkTransport] = []
        self.connections: list[socket.socket] = []
        self.addresses = [("", 0)] * WORLD_SIZE
        self.messages: list[dict[str, Any]] = []
        self._counters = Counter[str]()
        self._sum_requests: dict[int, list[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._jobs = ThreadPoolExecutor(1)
        for rank in range(WORLD_SIZE):
            agent_end, driver_end = socket_pair()
            self.connections.append(driver_end)
            agent = SparkTransport(
                agent_end,
                TOKEN,
                rank=rank,
                world_size=WORLD_SIZE,
                on_end=lambda rank=rank: self.ended.update([rank]),
            )
            self.agents.append(agent)
            threading.Thread(target=self._serve, args=(driver_end,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as lines:
            start = json.loads(next(lines))
            self.addresses[start["rank"]] = ("127.0.0.1", start["port"])
            for line in lines:
                message = json.loads(line)
                with self._lock:
                    if "count" in message:
                        self._counters[message["count"]] += message["number"]
                        answer = {"total": self._counters[message["count"]]}
                        connection.sendall(json.dumps(answer).encode() + b"\n")
                    elif "sum" in message:
                        requests = self._sum_requests.setdefault(message["sum"], [])
                        requests.append(message)
                        if len(requests) == WORLD_SIZE:
                            self._jobs.submit(self._add_up, message)
                    else:
                        self.messages.append(message)

    def _add_up(self, request: dict[str, Any]) -> None:
        """Do each task twice, as when Spark repeats it."""
        sum_id = request["sum"]
        dtype = request["type"]
        size = request["size"]
        for _ in range(2):
            vectors = [
                fetch_vector(address, TOKEN, sum_id, dtype, size) for address in self.addresses
            ]
        total = np.sum(vectors, axis=0, dtype=dtype)
        for _ in range(2):
            for address in self.addresses:
                deliver_sum(address, TOKEN, sum_id, total)

    def run_on_all(self, work: Any) -> list[Any]:
        """Results of a coroutine for all agents, each in a thread."""
        with ThreadPoolExecutor(WORLD_SIZE) as pool:
            futures = [pool.submit(run_now, work(agent)) for agent in self.agents]
            return [future.result(30) for future in futures]


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    wait_until(lambda: all(port for _, port in driver.addresses), label="all agents are there")
    yield driver
    for connection in driver.connections:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_sums_under_way_at_once_are_exact(driver: Driver, dtype: str) -> None:
    async def add_up(agent: SparkTransport) -> list[Any]:
        vectors = []
        for power in range(3):
            numbers = np.arange(6) * 10**power + agent.rank
            vectors.append(numbers.astype(dtype).reshape(2, 3))
        sums = [agent.begin_all_reduce(vector) for vector in vectors]
        for pending in reversed(sums):
            await pending
            assert pending.is_done()
        return vectors

    for vectors in driver.run_on_all(add_up):
        for power, vector in enumerate(vectors):
            # Three agents, whose ranks add up to 3.
            expected = 3 * np.arange(6) * 10**power + 3
            np.testing.assert_array_equal(vector, expected.reshape(2, 3))


@pytest.mark.parametrize(
    "sent",
    [np.array([[-0.0, np.nan], [np.inf, 1e-310]]), np.array([[-1, 0], [2**40, 7]])],
    ids=["floats", "integers"],
)
def test_a_broadcast_is_exact_to_the_bit(driver: Driver, sent: Any) -> None:
    async def broadcast(agent: SparkTransport) -> bytes:
        vector = np.full_like(sent, 5)
        if agent.rank == 0:
            vector[:] = sent
        await agent.broadcast(vector)
        await agent.barrier()
        return vector.tobytes()

    assert driver.run_on_all(broadcast) == [sent.tobytes()] * WORLD_SIZE


def test_every_ticket_is_drawn_once(driver: Driver) -> None:
    async def draw(agent: SparkTransport) -> list[int]:
        return [await agent.count("tickets", 1) for _ in range(50)]

    tickets = np.concatenate(driver.run_on_all(draw))

    assert sorted(tickets) == list(range(1, 151))


def test_samples_of_all_agents_add_up(driver: Driver) -> None:
    async def count(agent: SparkTransport) -> int:
        total = 0
        for _ in range(20):
            agent._asked_for_samples = -np.inf
            new_total = await agent.count("samples", 7)
            assert new_total >= total + 7
            total = new_total
        # Between two questions it adds its own.
        agent._asked_for_samples = np.inf
        assert await agent.count("samples", 1) == total + 1
        return total

    assert max(driver.run_on_all(count)) == WORLD_SIZE * 20 * 7


def test_an_agent_waits_where_it_is_an_epoch_ahead_of_a_sum_and_not_before(driver: Driver) -> None:
    first, *other_agents = driver.agents
    vector = np.ones(3)
    pending = first.begin_all_reduce(vector)
    for _ in range(_UNITS_AHEAD):
        run_now(first.count("tickets", 1))
    assert not pending.is_done()

    with ThreadPoolExecutor(1) as pool:
        ticket = pool.submit(run_now, first.count("tickets", 1))
        assert not ticket.done()
        for agent in other_agents:
            agent.begin_all_reduce(np.ones(3))

        assert ticket.result(30) == _UNITS_AHEAD + 1

    assert vector.tolist() == [3, 3, 3]
    assert first.waited > 0


def test_a_task_that_comes_too_late_gets_nothing_and_changes_nothing(driver: Driver) -> None:
    vectors = [np.ones(2) for _ in driver.agents]

    async def add_up(agent: SparkTransport) -> None:
        await agent.all_reduce_sum(vectors[agent.rank])

    driver.run_on_all(add_up)
    wait_until(lambda: not driver.agents[0]._sums, label="the sum has arrived")

    deliver_sum(driver.addresses[0], TOKEN, 1, np.full(2, 9.0))
    assert vectors[0].tolist() == [3, 3]
    with pytest.raises(ConnectionError):
        fetch_vector(driver.addresses[0], TOKEN, 1, "<f8", 2)


def test_agents_send_their_progress_and_notice_the_end_of_the_driver(driver: Driver) -> None:
    driver.agents[1].send({"progress": {"step": 3}})
    driver.agents[1].send({"done": True})
    wait_until(lambda: len(driver.messages) == 2, label="the driver has received both")
    assert driver.messages == [{"progress": {"step": 3}}, {"done": True}]

    driver.connections[2].shutdown(socket.SHUT_RDWR)
    wait_until(lambda: driver.ended == {2: 1}, label="the agent notices it")
