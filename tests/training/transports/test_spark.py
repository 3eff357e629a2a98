"""The transport between agents of Spark: without Spark, whose jobs a thread does here."""

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


class Driver:
    """Agents in this process, and a thread for what the driver does for each."""

    def __init__(self) -> None:
        pairs = [self._connected() for _ in range(WORLD_SIZE)]
        self.ended = Counter[int]()
        self.agents = [
            SparkTransport(
                agent,
                TOKEN,
                rank=rank,
                world_size=WORLD_SIZE,
                on_end=lambda rank=rank: self.ended.update([rank]),
            )
            for rank, (agent, _) in enumerate(pairs)
        ]
        self.connections = [driver for _, driver in pairs]
        self.ports = [("", 0)] * WORLD_SIZE
        self.said: list[dict[str, Any]] = []
        self._counters = Counter[str]()
        self._begun: dict[int, list[tuple[str, int]]] = {}
        self._lock = threading.Lock()
        self.sums = ThreadPoolExecutor(1)
        for connection in self.connections:
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    @staticmethod
    def _connected() -> tuple[socket.socket, socket.socket]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            agent = socket.create_connection(server.getsockname())
            return agent, server.accept()[0]

    def _serve(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as lines:
            first = json.loads(lines.readline())
            self.ports[first["rank"]] = ("127.0.0.1", first["port"])
            for line in lines:
                document = json.loads(line)
                with self._lock:
                    if "count" in document:
                        self._counters[document["count"]] += document["number"]
                        connection.sendall(
                            json.dumps({"total": self._counters[document["count"]]}).encode()
                            + b"\n"
                        )
                    elif "sum" in document:
                        begun = self._begun.setdefault(document["sum"], [])
                        begun.append((document["type"], document["size"]))
                        if len(begun) == WORLD_SIZE:
                            self.sums.submit(self.add_up, document["sum"], *begun[0])
                    else:
                        self.said.append(document)

    def add_up(self, index: int, dtype: str, size: int) -> None:
        """Each task comes twice, as when Spark repeats it."""
        for _ in range(2):
            taken = [fetch_vector(port, TOKEN, index, dtype, size) for port in self.ports]
        for _ in range(2):
            for port in self.ports:
                deliver_sum(port, TOKEN, index, sum(taken[1:], taken[0]))

    def together(self, work: Any) -> list[Any]:
        """What a coroutine gives for all agents, each in a thread."""
        with ThreadPoolExecutor(WORLD_SIZE) as pool:
            return [
                future.result(30)
                for future in [pool.submit(run_now, work(agent)) for agent in self.agents]
            ]


@pytest.fixture
def driver() -> Iterator[Driver]:
    created = Driver()
    wait_until(lambda: all(port for _, port in created.ports), label="all agents are there")
    yield created
    for connection in created.connections:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_sums_and_what_rank_0_spreads_are_exact_of_any_shape(driver: Driver, dtype: str) -> None:
    async def sums(agent: SparkTransport) -> list[Any]:
        vectors = [
            (np.arange(6) * 10**power + agent.rank).astype(dtype).reshape(2, 3)
            for power in range(3)
        ]
        begun = [agent.begin_all_reduce(vector) for vector in vectors]
        for each in reversed(begun):
            await each
            assert each.is_done()
        return vectors

    for actual in driver.together(sums):
        for power, vector in enumerate(actual):
            np.testing.assert_array_equal(vector, 3 * np.arange(6).reshape(2, 3) * 10**power + 3)
    options = (
        np.array([[-0.0, np.nan], [np.inf, 1e-310]])
        if "float" in dtype
        else np.array([[-1, 0], [2**40, 7]])
    )
    options = options.astype(dtype)

    async def spread(agent: SparkTransport) -> Any:
        vector = options.copy() if agent.rank == 0 else np.full_like(options, 5)
        await agent.broadcast(vector)
        await agent.barrier()
        return vector

    assert {each.tobytes() for each in driver.together(spread)} == {options.tobytes()}


def test_tickets_are_dealt_once_and_samples_add_up(driver: Driver) -> None:
    async def draw(agent: SparkTransport) -> list[int]:
        return [await agent.count("tickets", 1) for _ in range(50)]

    assert sorted(ticket for tickets in driver.together(draw) for ticket in tickets) == list(
        range(1, 151)
    )

    async def count(agent: SparkTransport) -> int:
        actual = 0
        for _ in range(20):
            agent._asked_for_samples = -np.inf
            state_before, actual = actual, await agent.count("samples", 7)
            assert actual >= state_before + 7
        # Between two questions it adds its own.
        agent._asked_for_samples = np.inf
        assert await agent.count("samples", 1) == actual + 1
        return actual

    assert max(driver.together(count)) == WORLD_SIZE * 20 * 7


def test_an_agent_waits_where_it_is_an_epoch_ahead_of_a_sum_and_not_before(driver: Driver) -> None:
    first, *remaining = driver.agents
    vectors = [np.ones(3) for _ in driver.agents]
    begun = first.begin_all_reduce(vectors[0])
    for _ in range(_UNITS_AHEAD):
        run_now(first.count("tickets", 1))
    assert not begun.is_done()
    with ThreadPoolExecutor(1) as pool:
        ticket = pool.submit(run_now, first.count("tickets", 1))
        assert not ticket.done()
        for agent, vector in zip(remaining, vectors[1:], strict=True):
            agent.begin_all_reduce(vector)
        assert ticket.result(30) == _UNITS_AHEAD + 1
    assert vectors[0].tolist() == [3, 3, 3]
    assert first.waited > 0


def test_a_task_that_comes_too_late_gets_nothing_and_changes_nothing(driver: Driver) -> None:
    vectors = [np.ones(2) for _ in driver.agents]

    async def add_up(agent: SparkTransport) -> None:
        await agent.all_reduce_sum(vectors[agent.rank])

    driver.together(add_up)
    wait_until(lambda: not driver.agents[0]._sums, label="the sum is there")
    deliver_sum(driver.ports[0], TOKEN, 1, np.full(2, 9.0))
    assert vectors[0].tolist() == [3, 3]
    with pytest.raises(ConnectionError):
        fetch_vector(driver.ports[0], TOKEN, 1, "<f8", 2)


def test_agents_tell_their_progress_and_notice_the_end_of_the_driver(driver: Driver) -> None:
    driver.agents[1].send({"progress": {"step": 3}})
    driver.agents[1].send({"done": True})
    wait_until(lambda: len(driver.said) == 2, label="the driver has heard it")
    assert driver.said == [{"progress": {"step": 3}}, {"done": True}]
    driver.connections[2].shutdown(socket.SHUT_RDWR)
    wait_until(lambda: driver.ended == {2: 1}, label="the agent notices it")
