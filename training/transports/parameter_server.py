"""A vector that all workers share, in shards that pushes change one after the other: no server processes.

Each rank owns some shards. The pushing worker does the work of a server itself: it locks a shard, gets it, applies a
rule, puts the result and unlocks. So

 * a rule sees a shard that nobody else changes: the pushes to a shard have an order, even if they do not commute;
 * a shard's clock counts its pushes, but for those that a rule excludes. The difference of the clocks of a push and
   of the worker's last pull is the exact staleness of the push;
 * there is no deadlock: a push holds one lock at a time;
 * a rule's result that is not finite does not reach the shard, and is counted;
 * the state of an optimiser at the server (momentum, moments) is a further segment of the shard.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from training.transports.basics import Background, Vector, is_finite, run_now

#: Name of the segment with the shard's part of the vector; further segments hold state of the rules.
VECTOR: Final = "vector"


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
    segments: dict[str, Vector]
    """Further segments by name, element by element beside `vector`: momentum, moments, ..."""
    counts: bool = True
    """Whether the clock counts this push; a rule changes it."""

    def is_finite(self) -> bool:
        """Whether all its arrays are."""
        return all(each.dtype.kind != "f" or is_finite(each) for each in (self.vector, *self.segments.values()))


def shard_slices(size: int, shards: int) -> list[slice]:
    """Where the shards of a vector are: equal sizes, but for one element.

    Examples:
        >>> shard_slices(8, 3)
        [slice(0, 2, None), slice(2, 5, None), slice(5, 8, None)]
    """
    bounds = [size * shard // shards for shard in range(shards + 1)]
    return [slice(start, stop) for start, stop in pairwise(bounds)]


class Layout:
    """The division of a vector into shards of equal size, but for one element.

    Owners follow each other like the shards, so that few shards are on many hosts.

    `segments`: further segments of each shard by name, with their initial value.

    Examples:
        >>> layout = Layout(np.zeros(8), 3, {"momentum": 0.0}, world_size=2)
        >>> layout.bounds, [layout.owner(shard) for shard in range(3)]
        ([0, 2, 5, 8], [0, 0, 1])
    """

    def __init__(self, vector: Vector, shards: int, segments: Mapping[str, float], *, world_size: int = 1) -> None:
        if vector.ndim != 1 or shards < 1 or VECTOR in segments:
            raise AssertionError(f"no server of shape {vector.shape} in {shards} shards with segments {[*segments]}")
        self.shards = shards
        self.initial = {VECTOR: 0.0, **segments}
        self.names = tuple(self.initial)
        self.dtype = vector.dtype
        self.bounds: list[int] = [0, *(each.stop for each in shard_slices(vector.size, shards))]
        self._world_size = world_size

    def owner(self, shard: int) -> int:
        """The rank that owns a shard."""
        return shard * self._world_size // self.shards

    def content(self, shard: int, vector: Vector) -> dict[str, Vector]:
        """The initial segments of a shard."""
        own = vector[self.bounds[shard] : self.bounds[shard + 1]].copy()
        return {name: own if name == VECTOR else np.full_like(own, value) for name, value in self.initial.items()}

    def size(self, shard: int) -> int:
        """Number of elements of a shard."""
        return self.bounds[shard + 1] - self.bounds[shard]

    def part(self, shard: int, indices: Vector | None) -> slice:
        """Where a shard is in the vector, or in sorted indices of the vector.

        Examples:
            >>> Layout(np.zeros(8), 2, {}, world_size=1).part(1, np.array([1, 4, 7]))
            slice(1, 3, None)
        """
        start, stop = self.bounds[shard], self.bounds[shard + 1]
        if indices is None:
            return slice(start, stop)
        first, last = np.searchsorted(indices, (start, stop))
        return slice(int(first), int(last))

    def within(self, shard: int, indices: Vector | None) -> Vector | None:
        """Those of some indices that are in a shard, counted from its beginning; None: all elements."""
        if indices is None:
            return None
        return indices[self.part(shard, indices)] - self.bounds[shard]


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


class ServerCounts(NamedTuple):
    """Counters of one worker's pushes so far."""

    pushes: int = 0
    """Number of shards that its pushes changed, but for those that a rule excludes."""
    refused: int = 0
    """Number of shards that they did not change, because the result was not finite."""
    occupied: int = 0
    """Number of pushes not tried because another worker was at a shard."""
    skipped: int = 0
    """Number of pushes not begun because the one before was still under way."""
    wait_seconds: float = 0.0
    """Time spent waiting for locks [s]."""
    exchange_seconds: float = 0.0
    """Time of pushes and pulls, waiting included [s]; it may overlap with the computation."""
    hidden_seconds: float = 0.0
    """Part of `exchange_seconds` in the background [s]."""
    bytes: int = 0
    """Bytes that it sent to other ranks, or got from them."""


class ParameterServer:
    """A vector that all workers share; see this module. In this class, its shards lie in the memory of one worker.

    `background`: makes the pushes that `begin_push` begins.

    Examples:
        >>> import time
        >>> server = ParameterServer(Layout(np.zeros(3), 2, {}), np.zeros(3), now=time.perf_counter)
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
        vector: Vector,
        *,
        rank: int = 0,
        now: Callable[[], float],
        background: Background | None = None,
    ) -> None:
        self.layout = layout
        self.rank = rank
        self._now = now
        self._background = background
        own = [shard for shard in range(layout.shards) if layout.owner(shard) == rank]
        #: Segments and clock of each shard that this worker reaches in memory.
        self._content = {shard: layout.content(shard, vector) for shard in own}
        self._clocks = {shard: np.zeros(1, np.int64) for shard in own}
        #: Fields of `ServerCounts`.
        self._counted: defaultdict[str, Any] = defaultdict(int)
        #: The last push that ended in the background.
        self._ended: Push | None = None
        self._spare: list[Vector] = []
        self._row = max(layout.size(shard) for shard in range(layout.shards))

    @property
    def counts(self) -> ServerCounts:
        """Counters so far."""
        beside = self._background
        hidden = 0.0 if beside is None else max(0.0, beside.seconds - beside.blocked_seconds)
        return ServerCounts(**self._counted, hidden_seconds=hidden)

    @property
    def is_under_way(self) -> bool:
        """Whether a push that this worker began is under way."""
        return self._background is not None and self._background.is_under_way

    async def pull(self, out: Vector, *, segment: str = VECTOR) -> Vector:
        """Copy the vector, or another segment, into `out`; each shard as it was between two pushes.

        Returns:
            The clocks of all shards.
        """
        await self._wait_for_own_push()
        layout, started = self.layout, self._now()
        clocks = np.zeros(layout.shards, np.int64)
        for shard in range(layout.shards):
            part = layout.part(shard, None)
            self.waited += await self._locked(shard)
            try:
                clocks[shard] = await self._get(shard, {segment: out[part]}, None)
            finally:
                await self._unlock(shard)
            self._count_bytes(shard, out[part].nbytes, None, part)
        self._counted["exchange_seconds"] += self._now() - started
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
                self._counted["occupied"] += 1
                return None
        return await self.push(rule, where)

    def begin_push(self, rule: Rule, where: Where = EVERYWHERE) -> bool:
        """Begin a push in the background; False: the one before is under way, so it is skipped and counted.

        Without a background it is made at once. The arrays of the rule must not change before its end, which
        `is_under_way` or `drain` shows.
        """
        if self.is_under_way:
            self._counted["skipped"] += 1
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
        buffer = self._spare.pop() if self._spare else np.empty((len(self.layout.names), self._row), self.layout.dtype)
        for each in self._chosen(where.shard):
            waited += await self._locked(each)
            try:
                changes.append(await self._change(each, rule, where.indices, buffer))
                if where.answer is not None:
                    await self._tell(each, where.answer)
            finally:
                await self._unlock(each)
        self._spare.append(buffer)
        self._counted["exchange_seconds"] += self._now() - started
        before, after, made = np.array(changes, np.int64).T
        return Push(before, after, bool(made.all())), waited

    async def _change(self, number: int, rule: Rule, indices: Vector | None, buffer: Vector) -> tuple[int, int, bool]:
        """Apply the rule to a locked shard; returns its clock before and after, and whether it is made."""
        part, within = self.layout.part(number, indices), self.layout.within(number, indices)
        pairs = zip(self.layout.names, buffer, strict=True)
        arrays = {name: row[: part.stop - part.start] for name, row in pairs}
        clock = await self._get(number, arrays, within)
        vector = arrays.pop(VECTOR)
        shard = Shard(number, clock, part, vector, arrays)
        rule(shard)
        nbytes = len(buffer) * vector.nbytes
        if not shard.is_finite():
            self._counted["refused"] += 1
            self._count_bytes(number, nbytes, indices, part)
            return clock, clock, False
        after = clock + shard.counts
        await self._put(number, {VECTOR: shard.vector, **shard.segments}, within, after)
        self._count_bytes(number, 2 * nbytes, indices, part)
        self._counted["pushes"] += shard.counts
        return clock, after, True

    async def _tell(self, number: int, answer: Answer) -> None:
        values = np.empty(self.layout.size(number), self.layout.dtype)
        await self._get(number, {VECTOR: values}, None)
        part = self.layout.part(number, None)
        answer(part, values)
        self._count_bytes(number, values.nbytes, None, part)

    async def _push_in_background(self, rule: Rule, where: Where) -> None:
        self._ended, _ = await self._push_all(rule, where)

    async def _wait_for_own_push(self) -> None:
        """Wait for the push in the background, since one of both may use the connections."""
        if self._background is not None:
            self.waited += await self._background.drain()

    def _count_bytes(self, shard: int, nbytes: int, indices: Vector | None, part: slice) -> None:
        if self.layout.owner(shard) != self.rank:
            self._counted["bytes"] += nbytes + (0 if indices is None else indices[part].nbytes)

    def _chosen(self, shard: int | None) -> Sequence[int]:
        return range(self.layout.shards) if shard is None else (shard,)

    async def _locked(self, shard: int) -> float:
        """Lock a shard; returns the time spent waiting [s]."""
        started = self._now()
        await self._lock(shard)
        waited = self._now() - started
        self._counted["wait_seconds"] += waited
        return waited

    async def _lock(self, shard: int) -> None:
        """Wait for the lock of a shard."""

    async def _unlock(self, shard: int) -> None:
        """Give the lock back."""

    async def _is_occupied(self, shard: int) -> bool:  # noqa: ARG002 - there is no other worker
        """Whether a worker has the lock of a shard."""
        return False

    async def _get(self, shard: int, arrays: Mapping[str, Vector], within: Vector | None) -> int:
        """Copy segments of a locked shard, or some elements of them, into arrays; returns the shard's clock."""
        for name, array in arrays.items():
            array[...] = self._content[shard][name][... if within is None else within]
        return int(self._clocks[shard][0])

    async def _put(self, shard: int, arrays: Mapping[str, Vector], within: Vector | None, clock: int) -> None:
        """Copy arrays into segments of a locked shard, or some elements of them, and set its clock."""
        for name, array in arrays.items():
            self._content[shard][name][... if within is None else within] = array
        self._clocks[shard][0] = clock
