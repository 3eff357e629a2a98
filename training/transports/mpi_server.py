"""A server whose shards lie in the memory of their owners.

Ranks of the owner's host lock a shard, read, apply the rule and write, without the owner's help. For ranks of other
hosts, threads of the owner do this. A connection carries the requests of one rank in their order: lock (answered when
it has the lock), get (answered by the clock and the elements), put and unlock, which need no answer: the next holder's
get comes after them. So a push waits for two round trips. A put is taken when all of it is there; if its rank is lost
before, the shard stays as it is, and its lock passes on.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, NoReturn

import numpy as np
from typing_extensions import override

from training.transports import kernels
from training.transports.background import BackgroundThread
from training.transports.basics import Vector, run_now
from training.transports.host_memory import HostMemory, aligned, refuse_different
from training.transports.loading import load_mpi
from training.transports.mpi_process import MpiProcess
from training.transports.parameter_server import EVERYWHERE, ParameterServer, Rule, Where
from training.transports.peers import Peers, connect
from training.transports.shards import Layout

#: A request: its kind, the shard, a bit for each segment, and a number: of indices that follow (-1: all elements), or
#: the new clock.
_REQUEST: Final = struct.Struct("=qqqq")
_LOCK, _GET, _PUT, _UNLOCK, _ASK = range(5)
#: An answer: the clock, or whether a shard is occupied.
_ANSWER: Final = struct.Struct("=q")


class MpiServer(ParameterServer):
    """One rank's view of the server.

    Args:
        process: This rank.
        layout: The shards.
        vector: Initial content.
        network: See `peers.connect`.
        with_thread: Whether a thread makes the pushes that `begin_push` begins; else they are made at once.
    """

    def __init__(
        self, process: MpiProcess, layout: Layout, vector: Vector, *, network: str | None, with_thread: bool
    ) -> None:
        super().__init__(layout, vector, rank=process.comm.rank, now=time.perf_counter)
        refuse_different(process.comm, vector)
        self._process = process
        self._memory = _Memory(process, layout, self._content)
        self._content, self._clocks = self._memory.content, self._memory.clocks
        self._peers = Peers([{}], [])
        if not process.is_one_host:
            owners = sorted({layout.owner(shard) for shard in range(layout.shards)})
            self._peers = connect(process, servers=owners, lanes=1, network=network)
        for each in self._peers.all():
            each.setblocking(True)
        # Daemons, since nothing stops the threads after a failed training.
        self._threads = [
            threading.Thread(target=_serve, args=(each, self._memory, layout), name="shards", daemon=True)
            for each in self._peers.serving
        ]
        for thread in self._threads:
            thread.start()
        self._thread = BackgroundThread("pushes") if with_thread else None
        self._own_push: Future[None] | None = None

    @property
    @override
    def is_under_way(self) -> bool:
        return self._own_push is not None and not self._own_push.done()

    @override
    def begin_push(self, rule: Rule, where: Where = EVERYWHERE) -> bool:
        if self._thread is None:
            self._ended = run_now(self.push(rule, where))
            return True
        if self.is_under_way:
            self._counted["skipped"] += 1
            return False
        self._wait_for_own_push()
        self._own_push = self._thread.begin(lambda: run_now(self._push_in_background(rule, where)))
        return True

    @override
    def _wait_for_own_push(self) -> None:
        if self._own_push is not None:
            own_push, started, self._own_push = self._own_push, time.perf_counter(), None
            try:
                own_push.result()
            finally:
                blocked = time.perf_counter() - started
                self.waited += blocked
                self._blocked_seconds += blocked

    @override
    async def close(self) -> None:
        """Close the server; ranks that come early serve the others until all are here."""
        if self._thread is not None:
            self._thread.close()
        started = time.perf_counter()
        self._process.wait_for_all()
        self.waited += time.perf_counter() - started
        for connections in self._peers.asking:
            for each in connections.values():
                each.shutdown(socket.SHUT_WR)
        for thread in self._threads:
            thread.join()
        self._peers.close()
        with self._process.turn:
            self._memory.free()
        self._wait_for_own_push()

    @override
    async def _lock(self, shard: int) -> None:
        if shard in self._memory.heads:
            kernels.lock(self._memory.heads[shard])
        else:
            self._send(_LOCK, shard)
            self._answer(shard)

    @override
    async def _unlock(self, shard: int) -> None:
        if shard in self._memory.heads:
            kernels.unlock(self._memory.heads[shard])
        else:
            self._send(_UNLOCK, shard)

    @override
    async def _is_occupied(self, shard: int) -> bool:
        if shard in self._memory.heads:
            return kernels.is_locked(self._memory.heads[shard])
        self._send(_ASK, shard)
        return bool(self._answer(shard))

    @override
    async def _get(self, shard: int, arrays: Mapping[str, Vector], within: Vector | None) -> int:
        if shard in self._memory.heads:
            return await super()._get(shard, arrays, within)
        bits = sum(1 << number for number, name in enumerate(self.layout.names) if name in arrays)
        if within is None:
            self._send(_GET, shard, bits, -1)
        else:
            self._send(_GET, shard, bits, within.size, within.astype(np.int64))
        clock = self._answer(shard)
        try:
            for name in self.layout.names:
                if name in arrays:
                    _receive(self._connection(shard), arrays[name])
        except OSError as error:
            _raise_lost(error)
        return clock

    @override
    async def _put(self, shard: int, arrays: Mapping[str, Vector], within: Vector | None, clock: int) -> None:
        """Put the segments and elements of the last `_get`."""
        if shard in self._memory.heads:
            await super()._put(shard, arrays, within, clock)
        else:
            self._send(_PUT, shard, 0, clock, *(arrays[name] for name in self.layout.names if name in arrays))

    def _connection(self, shard: int) -> socket.socket:
        return self._peers.asking[0][self.layout.owner(shard)]

    def _send(self, kind: int, shard: int, bits: int = 0, number: int = 0, *content: Vector) -> None:
        try:
            self._connection(shard).sendall(_REQUEST.pack(kind, shard, bits, number))
            for each in content:
                self._connection(shard).sendall(_bytes(np.ascontiguousarray(each)))
        except OSError as error:
            _raise_lost(error)

    def _answer(self, shard: int) -> int:
        answer = np.empty(_ANSWER.size, np.uint8)
        try:
            _receive(self._connection(shard), answer)
        except OSError as error:
            _raise_lost(error)
        number: int = _ANSWER.unpack(_bytes(answer))[0]
        return number


class _Memory:
    """The shards whose owners are on this host: of each the head, with a mutex and the clock, and the segments."""

    def __init__(self, process: MpiProcess, layout: Layout, own: Mapping[int, Mapping[str, Vector]]) -> None:
        lengths = [aligned(layout.size(shard) * layout.dtype.itemsize) for shard in range(layout.shards)]
        of_rank: dict[int, list[int]] = {rank: [] for rank in process.on_host}
        for shard in range(layout.shards):
            of_rank.get(layout.owner(shard), []).append(shard)

        def size(shard: int) -> int:
            return kernels.HEAD_BYTES + len(layout.names) * lengths[shard]

        self._memory = HostMemory(process.host, max(1, sum(map(size, own))))
        self.heads: dict[int, Vector] = {}
        self.content: dict[int, dict[str, Vector]] = {}
        self.clocks: dict[int, Vector] = {}
        for number, shards in enumerate(of_rank.values()):
            rest: Vector = self._memory.region(number)
            for shard in shards:
                record, rest = rest[: size(shard)], rest[size(shard) :]
                self.heads[shard], segments = record[: kernels.HEAD_BYTES], record[kernels.HEAD_BYTES :]
                self.clocks[shard] = kernels.counters_of(self.heads[shard])[:1]
                rows = segments.view(layout.dtype).reshape(len(layout.names), -1)
                self.content[shard] = {
                    name: row[: layout.size(shard)] for name, row in zip(layout.names, rows, strict=True)
                }
        for shard, content in own.items():
            kernels.init_head(self.heads[shard])
            for name, values in content.items():
                self.content[shard][name][...] = values
        process.host.Barrier()

    def free(self) -> None:
        """Free the memory, all ranks together."""
        self.heads.clear()
        self.content.clear()
        self.clocks.clear()
        self._memory.free()


def _serve(connection: socket.socket, memory: _Memory, layout: Layout) -> None:
    """Main loop of a thread: answer the requests of one connection until its end."""
    held: Vector | None = None
    request = np.empty(_REQUEST.size, np.uint8)
    arrays: dict[str, Vector] = {}
    within: Vector | None = None
    # The other side ends the connection, or is lost.
    with suppress(OSError):
        while True:
            _receive(connection, request)
            kind, shard, bits, more = _REQUEST.unpack(_bytes(request))
            head = memory.heads[shard]
            if kind == _LOCK:
                kernels.lock(head)
                held = head
                connection.sendall(_ANSWER.pack(memory.clocks[shard][0]))
            elif kind == _UNLOCK:
                kernels.unlock(head)
                held = None
            elif kind == _ASK:
                connection.sendall(_ANSWER.pack(kernels.is_locked(head)))
            elif kind == _GET:
                within = None if more < 0 else np.empty(more, np.int64)
                if within is not None:
                    _receive(connection, within)
                names = [name for place, name in enumerate(layout.names) if bits >> place & 1]
                size = layout.size(shard) if within is None else within.size
                arrays = {name: np.empty(size, layout.dtype) for name in names}
                for name, each in arrays.items():
                    each[...] = memory.content[shard][name][... if within is None else within]
                connection.sendall(_ANSWER.pack(memory.clocks[shard][0]))
                for each in arrays.values():
                    connection.sendall(_bytes(each))
            else:
                for each in arrays.values():
                    _receive(connection, each)
                for name, each in arrays.items():
                    memory.content[shard][name][... if within is None else within] = each
                memory.clocks[shard][0] = more
    if held is not None:
        kernels.unlock(held)
    connection.close()


def _raise_lost(error: OSError) -> NoReturn:
    mpi = load_mpi()
    raise mpi.Exception(mpi.ERR_PROC_FAILED) from error


def _bytes(array: Vector) -> memoryview:
    """The bytes of an array."""
    # Arrays are buffers, but the type stubs do not say so for all types of elements.
    content: Any = array.view(np.uint8)
    return memoryview(content)


def _receive(connection: socket.socket, out: Vector) -> None:
    """Fill an array.

    Raises:
        ConnectionError: The other side has closed the connection.
    """
    view, done = _bytes(out), 0
    while done < len(view):
        received = connection.recv_into(view[done:])
        if not received:
            raise ConnectionResetError("closed by the other side")
        done += received
