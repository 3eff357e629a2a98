"""A centre behind sockets: threads of the owner serve its shards, while it computes.

A connection carries the requests of one rank in their order: lock (answered when it is this rank's turn), get
(answered by the clock and the elements), put and unlock, which need no answer: the next holder's get comes after them.
So a commit waits for two round trips. A put is taken when all of it is there; if its rank is lost before, the shard
stays as it is, and its lock passes on.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NoReturn

import numpy as np
from typing_extensions import override

from training.transports.basics import Vector
from training.transports.centre import copy_in, copy_out
from training.transports.loading import load_mpi
from training.transports.mpi_process import MpiProcess
from training.transports.peers import connect
from training.transports.shards import Layout
from training.transports.threaded_centre import ThreadedCentre

#: A request: its kind, the shard, a bit for each segment, and a number: of indices that follow (-1: all elements), or
#: the new clock.
_REQUEST: Final = struct.Struct("=qqqq")
_LOCK, _GET, _PUT, _UNLOCK, _ASK = range(5)
#: An answer: the clock, or whether a shard is occupied.
_ANSWER: Final = struct.Struct("=q")


class SocketCentre(ThreadedCentre):
    """One rank's view of the centre.

    Args:
        process: This rank.
        layout: The shards.
        vector: Initial content.
        network: See `peers.connect`.
        with_thread: Whether a thread makes commits beside the computation.
    """

    def __init__(
        self, process: MpiProcess, layout: Layout, vector: Vector, *, network: str | None, with_thread: bool
    ) -> None:
        super().__init__(process, layout, with_thread=with_thread, poke=False)
        owners = sorted({layout.owner(shard) for shard in range(layout.shards)})
        self._peers = connect(process.comm, servers=owners, lanes=1, network=network)
        self._own = socket.socketpair()
        self._connections = {**self._peers.asking[0], self.rank: self._own[0]}
        served = [*self._peers.serving, self._own[1]]
        for each in (*self._connections.values(), *served):
            each.setblocking(True)
        shards = {
            shard: _ServedShard(layout.content(shard, vector))
            for shard in range(layout.shards)
            if layout.owner(shard) == self.rank
        }
        # Daemons, since nothing stops the threads after a failed training.
        self._threads = [
            threading.Thread(target=_serve, args=(each, shards, layout), name="shards", daemon=True) for each in served
        ]
        for thread in self._threads:
            thread.start()

    @override
    def _free(self) -> None:
        for each in self._connections.values():
            each.shutdown(socket.SHUT_WR)
        for thread in self._threads:
            thread.join()
        self._peers.close()
        for each in self._own:
            each.close()

    @override
    async def _lock(self, shard: int) -> None:
        self._send(_LOCK, shard)
        self._answer(shard)

    @override
    async def _unlock(self, shard: int) -> None:
        self._send(_UNLOCK, shard)

    @override
    async def _is_occupied(self, shard: int) -> bool:
        self._send(_ASK, shard)
        return bool(self._answer(shard))

    @override
    async def _get(self, shard: int, arrays: Mapping[str, Vector], within: Vector | None) -> int:
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
            self._raise_lost(error)
        return clock

    @override
    async def _put(self, shard: int, arrays: Mapping[str, Vector], within: Vector | None, clock: int) -> None:
        """Put the segments and elements of the last `_get`."""
        self._send(_PUT, shard, 0, clock, *(arrays[name] for name in self.layout.names if name in arrays))

    def _connection(self, shard: int) -> socket.socket:
        return self._connections[self.layout.owner(shard)]

    def _send(self, kind: int, shard: int, bits: int = 0, number: int = 0, *content: Vector) -> None:
        try:
            self._connection(shard).sendall(_REQUEST.pack(kind, shard, bits, number))
            for each in content:
                self._connection(shard).sendall(_bytes(np.ascontiguousarray(each)))
        except OSError as error:
            self._raise_lost(error)

    def _answer(self, shard: int) -> int:
        answer = np.empty(_ANSWER.size, np.uint8)
        try:
            _receive(self._connection(shard), answer)
        except OSError as error:
            self._raise_lost(error)
        number: int = _ANSWER.unpack(_bytes(answer))[0]
        return number

    @staticmethod
    def _raise_lost(error: OSError) -> NoReturn:
        mpi = load_mpi()
        raise mpi.Exception(mpi.ERR_PROC_FAILED) from error


class _ServedShard:
    """A shard of this rank, with a lock that passes on in the order of the requests."""

    def __init__(self, content: dict[str, Vector]) -> None:
        self.content = content
        self.clock = 0
        self.is_held = False
        self._mutex = threading.Lock()
        self._waiting: deque[threading.Event] = deque()

    def acquire(self) -> None:
        """Wait for the lock."""
        with self._mutex:
            if not self.is_held:
                self.is_held = True
                return
            mine = threading.Event()
            self._waiting.append(mine)
        mine.wait()

    def release(self) -> None:
        """Pass the lock on."""
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self.is_held = False


def _serve(connection: socket.socket, shards: Mapping[int, _ServedShard], layout: Layout) -> None:
    """Main loop of a thread: answer the requests of one connection until its end."""
    held: _ServedShard | None = None
    request = np.empty(_REQUEST.size, np.uint8)
    arrays: dict[str, Vector] = {}
    within: Vector | None = None
    # The other side ends the connection, or is lost.
    with suppress(OSError):
        while True:
            _receive(connection, request)
            kind, number, bits, more = _REQUEST.unpack(_bytes(request))
            shard = shards[number]
            if kind == _LOCK:
                shard.acquire()
                held = shard
                connection.sendall(_ANSWER.pack(shard.clock))
            elif kind == _UNLOCK:
                shard.release()
                held = None
            elif kind == _ASK:
                connection.sendall(_ANSWER.pack(shard.is_held))
            elif kind == _GET:
                within = None if more < 0 else np.empty(more, np.int64)
                if within is not None:
                    _receive(connection, within)
                names = [name for place, name in enumerate(layout.names) if bits >> place & 1]
                size = layout.size(number) if within is None else within.size
                arrays = {name: np.empty(size, layout.dtype) for name in names}
                copy_out(shard.content, arrays, within)
                connection.sendall(_ANSWER.pack(shard.clock))
                for each in arrays.values():
                    connection.sendall(_bytes(each))
            else:
                for each in arrays.values():
                    _receive(connection, each)
                copy_in(shard.content, arrays, within)
                shard.clock = more
    if held is not None:
        held.release()
    connection.close()


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
