"""A parameter server whose shards lie in the memory of their owners.

Ranks of the owner's host lock a shard, read, apply the rule and write, without the owner's help. For ranks of other
hosts, the compiled thread of the owner does this: lock (answered at once: whether it has the lock), get (answered by
the clock and the elements), put and unlock, which need no answer: the next holder's get comes after them. So a push
waits for two round trips. A put is taken when all of it is there; if its rank is lost before, the shard stays as it
is, and its lock is given back.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Final

import numpy as np
from typing_extensions import override

from training.transports import serving
from training.transports.background import BackgroundThread
from training.transports.backoff import Backoff
from training.transports.basics import Vector, run_now
from training.transports.mpi_process import MpiProcess
from training.transports.mutexes import CLOCK, counters_of, lock, try_lock, unlock
from training.transports.parameter_server import EVERYWHERE, ParameterServer, Rule, Where
from training.transports.served_memory import ServedMemory
from training.transports.shards import Layout

#: Longest nap of a worker that waits for the lock of a shard of another host [s].
_LONGEST_NAP: Final = 1e-3


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
        shards = range(layout.shards)
        owners, sizes = [*map(layout.owner, shards)], [*map(layout.size, shards)]
        self._memory = ServedMemory(process, owners, sizes, layout.dtype, num_rows=len(layout.names))
        for shard, content in self._content.items():
            for row, values in zip(self._memory.rows[shard], content.values(), strict=True):
                row[:] = values
        self._content = {shard: dict(zip(layout.names, rows, strict=True)) for shard, rows in self._memory.rows.items()}
        self._clocks = {shard: counters_of(head)[CLOCK:] for shard, head in self._memory.heads.items()}
        self._memory.open(network=network)
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
        self._memory.process.wait_for_all()
        self.waited += time.perf_counter() - started
        self._content, self._clocks = {}, {}
        with self._memory.process.turn:
            self._memory.free()
        self._wait_for_own_push()

    @override
    async def _lock(self, shard: int) -> None:
        if shard in self._content:
            lock(self._memory.heads[shard])
            return
        backoff = Backoff(longest=_LONGEST_NAP)
        while not self._try_lock(shard):
            backoff.pause()

    def _try_lock(self, shard: int) -> bool:
        if shard in self._content:
            return try_lock(self._memory.heads[shard])
        return bool(self._memory.request(shard, serving.LOCK)[serving.KIND] != serving.BUSY)

    @override
    async def _unlock(self, shard: int) -> None:
        if shard in self._content:
            unlock(self._memory.heads[shard])
        else:
            self._memory.request(shard, serving.UNLOCK, is_answered=False)

    @override
    async def _is_occupied(self, shard: int) -> bool:
        is_free = self._try_lock(shard)
        if is_free:
            await self._unlock(shard)
        return not is_free

    @override
    async def _get(self, shard: int, arrays: Mapping[str, Vector], within: Vector | None) -> int:
        if shard in self._content:
            return await super()._get(shard, arrays, within)
        named = () if within is None else (within.astype(np.int64),)
        number = -1 if within is None else within.size
        answer = self._memory.request(shard, serving.GET, place=self._bits(arrays), number=number, body=named)
        clock: int = answer.item(serving.NUMBER)
        values, end = self._memory.body(self.layout.dtype), 0
        for array in self._in_order(arrays):
            array[...] = values[end : end + array.size]
            end += array.size
        return clock

    @override
    async def _put(self, shard: int, arrays: Mapping[str, Vector], within: Vector | None, clock: int) -> None:
        """Put the elements of the last `_get`."""
        if shard in self._content:
            await super()._put(shard, arrays, within, clock)
            return
        body = self._in_order(arrays)
        bits = self._bits(arrays)
        self._memory.request(shard, serving.PUT, place=bits, number=clock, body=body, is_answered=False)

    def _bits(self, arrays: Mapping[str, Vector]) -> int:
        return sum(1 << number for number, name in enumerate(self.layout.names) if name in arrays)

    def _in_order(self, arrays: Mapping[str, Vector]) -> list[Vector]:
        return [arrays[name] for name in self.layout.names if name in arrays]
