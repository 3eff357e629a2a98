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
from typing import Final

import numpy as np
from typing_extensions import override

from training.transports import serving
from training.transports.basics import BackgroundThread, Backoff, Vector
from training.transports.kernels import CLOCK, counters_of, lock, try_lock, unlock
from training.transports.memory import Memory
from training.transports.parameter_server import Layout, ParameterServer
from training.transports.process import MpiProcess

#: Longest nap of a worker that waits for the lock of a shard of another host [s].
_LONGEST_NAP: Final = 1e-3


class MpiServer(ParameterServer):
    """One rank's view of the server.

    `network`: see `peers.connect`. `with_thread`: whether a thread makes the pushes that `begin_push` begins; else they
    are made at once.
    """

    def __init__(
        self, process: MpiProcess, layout: Layout, vector: Vector, *, network: str | None, with_thread: bool
    ) -> None:
        self._thread = BackgroundThread("pushes") if with_thread else None
        super().__init__(layout, vector, rank=process.comm.rank, now=time.perf_counter, background=self._thread)
        shards = range(layout.shards)
        owners, sizes = [*map(layout.owner, shards)], [*map(layout.size, shards)]
        self._memory = Memory(process, owners, sizes, layout.dtype, num_rows=len(layout.names))
        for shard, content in self._content.items():
            for row, values in zip(self._memory.rows[shard], content.values(), strict=True):
                row[:] = values
        self._content = {shard: dict(zip(layout.names, rows, strict=True)) for shard, rows in self._memory.rows.items()}
        self._clocks = {shard: counters_of(head)[CLOCK:] for shard, head in self._memory.heads.items()}
        self._memory.open(network=network)

    @override
    async def close(self) -> None:
        """Close the server; ranks that come early serve the others until all are here."""
        if self._thread is not None:
            self._thread.close()
        self.waited += self._memory.process.wait_for_all()
        self._content, self._clocks = {}, {}
        with self._memory.process.turn:
            self._memory.free()
        await self._wait_for_own_push()

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
