"""A vector that all workers share, in shards that pushes change one after the other: no server processes.

Each rank owns some shards. The pushing worker does the work of a server itself: it locks a shard, gets it, applies a
rule, puts the result and unlocks. So

 * a rule sees a shard that nobody else changes: the pushes to a shard have an order, even if they do not commute;
 * a shard's clock counts its pushes, but for those that a rule excludes. The difference of the clocks of a push and
   of the worker's last pull is the exact staleness of the push;
 * there is no deadlock: a push holds one lock at a time;
 * a rule's result that is not finite does not reach the shard, and is counted;
 * the state of an optimiser at the server (momentum, moments) lies behind the vector, in further rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from training.transports.basics import Background, ExchangeCounts, Vector, is_finite, run_now


@dataclass(slots=True)
class Shard:
    """A shard, or some elements of it, as a rule sees it: arrays to change in place."""

    number: int
    """Number of the shard."""
    clock: int
    """Number of its pushes before this one, but for those that do not count."""
    part: slice
    """Where its elements are in the worker's arrays: in a whole vector, or in the values at the push's indices."""
    vector: Vector
    """The shard's part of the vector, or its values at the push's indices."""
    moments: Vector
    """(num_moments, n) what the rules keep beside `vector`, element by element."""
    counts: bool = True
    """Whether the clock counts this push; a rule changes it."""


class Layout:
    """The division of a vector into shards of equal size, but for one element.

    Owners follow each other like the shards, so that few shards are on many hosts.

    Examples:
        >>> layout = Layout(8, 3, world_size=2)
        >>> layout.bounds, layout.parts[1], layout.owners
        ([0, 2, 5, 8], slice(2, 5, None), [0, 0, 1])
    """

    def __init__(self, size: int, shards: int, *, world_size: int = 1) -> None:
        self.bounds = [size * shard // shards for shard in range(shards + 1)]
        self.parts = [slice(start, stop) for start, stop in pairwise(self.bounds)]
        self.sizes = [stop - start for start, stop in pairwise(self.bounds)]
        self.owners = [shard * world_size // shards for shard in range(shards)]
        """The rank that owns each shard."""


Rule = Callable[[Shard], None]
"""Changes a shard's arrays in place, and may copy them. It sees one shard after the other."""


Answer = Callable[[slice, Vector], int]
"""Takes what it wants of a whole shard after a push; returns the bytes that a server would send for this."""


class Where(NamedTuple):
    """What a rule sees and changes, and so what travels."""

    shard: int | None = None
    """The shard; None: all."""
    indices: Vector | None = None
    """Elements of the vector, in ascending order, of type int32 or int64; None: all."""
    answer: Answer | None = None
    """Sees each shard after the rule, under the same lock. A worker without a server reads all of it for this."""


EVERYWHERE: Final = Where()


class Push(NamedTuple):
    """A push; the clocks are those of the shards that it changed, in their order."""

    before: Vector
    """Number of pushes to each shard before this one."""
    after: Vector
    """Number of pushes including this one; equal to `before` where it was refused, or does not count."""
    is_made: bool
    """Whether no shard refused it."""


class ParameterServer:
    """A vector that all workers share; see this module. In this class, its shards lie in the memory of one worker.

    `content`: (1 + num_moments, n), or (n,): the vector first. `background`: makes the pushes that `begin_push` begins.

    Examples:
        >>> import time
        >>> server = ParameterServer(Layout(3, 2), np.zeros(3), now=time.perf_counter)
        >>> def add(shard: Shard) -> None:
        ...     shard.vector += np.array([1.0, 2.0, 3.0])[shard.part]
        >>> run_now(server.push(add)).after.tolist()
        [1, 1]
        >>> out = np.empty(3)
        >>> run_now(server.pull(out)).tolist(), out.tolist()
        ([1, 1], [1.0, 2.0, 3.0])
    """

    waited: float = 0.0
    """Time that this worker has waited in its calls, for locks or for its own push in the background [s]."""

    def __init__(
        self,
        layout: Layout,
        content: Vector,
        *,
        rank: int = 0,
        now: Callable[[], float],
        background: Background | None = None,
    ) -> None:
        self.layout = layout
        self.rank = rank
        self._now = now
        self._background = background
        rows = np.atleast_2d(content)
        #: Rows and clock of each shard that this worker reaches in memory.
        self._rows = {
            shard: rows[:, part].copy()
            for shard, part in enumerate(layout.parts)
            if self._owns(shard)
        }
        self._clocks = {shard: np.zeros(1, np.int64) for shard in self._rows}
        self._counts = ExchangeCounts()
        #: The last push that ended in the background.
        self._ended: Push | None = None
        #: Arrays for a rule, which fit the largest shard: one more where a push is under way.
        self._room = np.empty((len(rows), max(layout.sizes)), content.dtype)
        self._spare = [self._room]

    @property
    def counts(self) -> ExchangeCounts:
        """Counters so far."""
        beside = self._background
        return replace(
            self._counts, hidden_seconds=0.0 if beside is None else beside.hidden_seconds
        )

    @property
    def is_under_way(self) -> bool:
        """Whether a push that this worker began is under way."""
        return self._background is not None and self._background.is_under_way

    async def pull(self, out: Vector) -> Vector:
        """Copy the vector, (n,), or all rows into `out`; each shard as it was between two pushes.

        Returns:
            The clocks of all shards.
        """
        await self._wait_for_own_push()
        rows, started = np.atleast_2d(out), self._now()
        clocks = np.zeros(len(self.layout.parts), np.int64)
        for shard, part in enumerate(self.layout.parts):
            self.waited += await self._locked(shard)
            try:
                clocks[shard] = await self._get(shard, rows[:, part], None)
            finally:
                await self._unlock(shard)
            self._count_bytes(shard, rows[:, part].nbytes)
        self._counts.exchange_seconds += self._now() - started
        return clocks

    async def push(self, rule: Rule, where: Where = EVERYWHERE) -> Push:
        """Change shards by a rule, one after the other, each under its lock."""
        await self._wait_for_own_push()
        made, waited = await self._push_all(rule, where)
        self.waited += waited
        return made

    async def try_push(self, rule: Rule, where: Where = EVERYWHERE) -> Push | None:
        """See whether other workers are at the shards: if they are, count it and return None, else push."""
        await self._wait_for_own_push()
        for each in self._chosen(where.shard):
            if await self._is_occupied(each):
                self._counts.occupied += 1
                return None
        return await self.push(rule, where)

    def begin_push(self, rule: Rule, where: Where = EVERYWHERE) -> bool:
        """Begin a push in the background; False: the one before is under way, so it is skipped and counted.

        Without a background it is made at once. The arrays of the rule must not change before its end, which
        `is_under_way` or `drain` shows.
        """
        if self.is_under_way:
            self._counts.skipped += 1
            return False
        if self._background is None:
            self._ended = run_now(self.push(rule, where))
        else:
            self._background.begin(self._push_in_background(rule, where))
        return True

    async def drain(self) -> Push | None:
        """Wait for the push that `begin_push` began; returns the last one, once."""
        await self._wait_for_own_push()
        ended, self._ended = self._ended, None
        return ended

    async def close(self) -> None:
        """Free the server; all workers together, after the last push."""

    async def _push_all(self, rule: Rule, where: Where) -> tuple[Push, float]:
        """Push to the shards; returns the clocks, and the time spent waiting for locks [s]."""
        started, waited = self._now(), 0.0
        changes = []
        room = self._spare.pop() if self._spare else np.empty_like(self._room)
        for each in self._chosen(where.shard):
            waited += await self._locked(each)
            try:
                changes.append(await self._change(each, rule, where.indices, room))
                if where.answer is not None:
                    await self._tell(each, where.answer)
            finally:
                await self._unlock(each)
        self._spare.append(room)
        self._counts.exchange_seconds += self._now() - started
        before, after, made = np.array(changes, np.int64).T
        return Push(before, after, bool(made.all())), waited

    async def _change(
        self, number: int, rule: Rule, indices: Vector | None, room: Vector
    ) -> tuple[int, int, bool]:
        """Apply the rule to a locked shard; returns its clock before and after, and whether it is made."""
        part, within, named = self.layout.parts[number], None, 0
        if indices is not None:
            first, last = np.searchsorted(indices, (part.start, part.stop)).tolist()
            within, part = indices[first:last] - part.start, slice(first, last)
            named = within.nbytes
        rows = room[:, : part.stop - part.start]
        clock = await self._get(number, rows, within)
        shard = Shard(number, clock, part, rows[0], rows[1:])
        rule(shard)
        if not all(map(is_finite, rows)):
            self._counts.refused += 1
            self._count_bytes(number, rows.nbytes + named)
            return clock, clock, False
        after = clock + shard.counts
        await self._put(number, rows, within, after)
        self._count_bytes(number, 2 * rows.nbytes + named)
        self._counts.pushes += shard.counts
        return clock, after, True

    async def _tell(self, number: int, answer: Answer) -> None:
        part = self.layout.parts[number]
        values = np.empty_like(self._room[:1, : part.stop - part.start])
        await self._get(number, values, None)
        answer(part, values[0])
        self._count_bytes(number, values.nbytes)

    async def _push_in_background(self, rule: Rule, where: Where) -> None:
        self._ended, _ = await self._push_all(rule, where)

    async def _wait_for_own_push(self) -> None:
        """Wait for the push in the background, since one of both may use the connections."""
        if self._background is not None:
            self.waited += await self._background.drain()

    def _owns(self, shard: int) -> bool:
        return self.layout.owners[shard] == self.rank

    def _count_bytes(self, shard: int, nbytes: int) -> None:
        if not self._owns(shard):
            self._counts.bytes += nbytes

    def _chosen(self, shard: int | None) -> Sequence[int]:
        return range(len(self.layout.parts)) if shard is None else (shard,)

    async def _locked(self, shard: int) -> float:
        """Lock a shard; returns the time spent waiting [s]."""
        started = self._now()
        await self._lock(shard)
        waited = self._now() - started
        self._counts.wait_seconds += waited
        return waited

    async def _lock(self, shard: int) -> None:
        """Wait for the lock of a shard."""

    async def _unlock(self, shard: int) -> None:
        """Give the lock back."""

    async def _is_occupied(self, shard: int) -> bool:  # noqa: ARG002 - there is no other worker
        """Whether a worker has the lock of a shard."""
        return False

    async def _get(self, shard: int, out: Vector, within: Vector | None) -> int:
        """Copy as many rows of a locked shard as `out` has, or some elements of them; returns the shard's clock."""
        out[:] = self._rows[shard][: len(out), slice(None) if within is None else within]
        return int(self._clocks[shard][0])

    async def _put(self, shard: int, rows: Vector, within: Vector | None, clock: int) -> None:
        """Copy all rows into a locked shard, or some elements of them, and set its clock."""
        self._rows[shard][:, slice(None) if within is None else within] = rows
        self._clocks[shard][0] = clock
