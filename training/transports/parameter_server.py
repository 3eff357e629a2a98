"""A vector that all workers share, in shards that pushes change in turn, without server processes.

Each rank owns some shards. The pushing worker does the work of a server itself: it locks a shard,
reads it, applies a rule, writes the result and unlocks. So

 * a rule sees a shard that nobody else changes: the pushes to a shard have an order, even if they
   do not commute;
 * a shard's clock counts its pushes, but for those that a rule excludes. The difference of the
   clocks of a push and of the worker's last pull is the exact staleness of the push;
 * there is no deadlock: a push holds one lock at a time;
 * a rule's result that is not finite does not reach the shard, and is counted;
 * the state of an optimiser at the server (momentum, moments) lies behind the vector, in further
   rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from training.transports.basics import Background, ExchangeCounts, Vector, is_finite, run_now
from training.transports.pushes import (
    ALL_SHARDS,
    INDEX,
    Answer,
    Push,
    Rule,
    Shard,
    ShardChange,
    ShardSelection,
    copy_if_replaced,
)


class Layout:
    """The division of a vector into shards whose sizes differ by one element at most.

    Owners follow each other like the shards, so that few shards are on many hosts.

    Examples:
        >>> layout = Layout(8, 3, world_size=2)
        >>> layout.bounds, layout.slices[1], layout.owners
        ([0, 2, 5, 8], slice(2, 5, None), [0, 0, 1])
    """

    def __init__(self, size: int, shards: int, *, world_size: int = 1) -> None:
        self.bounds = [size * shard // shards for shard in range(shards + 1)]
        """(shards + 1): where each shard begins, then the size of the vector."""
        self.slices = [slice(start, stop) for start, stop in pairwise(self.bounds)]
        """The elements of each shard in the vector."""
        self.sizes = [stop - start for start, stop in pairwise(self.bounds)]
        """Number of elements of each shard."""
        self.owners = [shard * world_size // shards for shard in range(shards)]
        """The rank that owns each shard."""


class ParameterServer:
    """A vector that all workers share; see this module.

    In this class, its shards lie in the memory of one worker.

    Args:
        layout: The division of the vector into shards, with their owners.
        content: (1 + num_moments, n), or (n,): the vector first, then the moments: what the rules
            store for each element.
        rank: Number of this worker.
        now: Returns the time of a clock [s].
        background: Makes the pushes that `begin_push` begins; None: they are made at once.

    Examples:
        >>> import time
        >>> server = ParameterServer(Layout(3, 2), np.zeros(3), now=time.perf_counter)
        >>> def add(shard: Shard) -> None:
        ...     shard.vector += np.array([1.0, 2.0, 3.0])[shard.elements]
        >>> run_now(server.push(add)).clocks_after.tolist()
        [1, 1]
        >>> out = np.empty(3)
        >>> run_now(server.pull(out)).tolist(), out.tolist()
        ([1, 1], [1.0, 2.0, 3.0])
    """

    waited: float = 0.0
    """Time that this worker has waited in its calls, for locks or for its own push in the
    background [s]."""

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
        #: (1 + num_moments, size of the shard) of each shard that this worker reaches in memory.
        self._rows = {
            shard: rows[:, elements].copy()
            for shard, elements in enumerate(layout.slices)
            if self._owns(shard)
        }
        #: (1,) the clock of each of these shards.
        self._clocks = {shard: np.zeros(1, np.int64) for shard in self._rows}
        self._counts = ExchangeCounts()
        #: The last push that `begin_push` began and that has ended; None after `drain`.
        self._last_push: Push | None = None
        #: Arrays for a rule, which fit the largest shard: one more where a push is under way.
        self._buffer = np.empty((len(rows), max(layout.sizes)), content.dtype)
        self._free_buffers = [self._buffer]

    @property
    def counts(self) -> ExchangeCounts:
        """Counters so far."""
        if self._background is None:
            return replace(self._counts)
        return replace(self._counts, hidden_seconds=self._background.hidden_seconds)

    @property
    def is_under_way(self) -> bool:
        """Whether a push that this worker began is under way."""
        return self._background is not None and self._background.is_under_way

    def is_in_memory(self, shard: int) -> bool:
        """Return whether this worker reaches a shard in memory, and not by messages."""
        return shard in self._rows

    async def pull(self, out: Vector) -> Vector:
        """Copy the vector into `out`, (n,), or all rows into `out`, (1 + num_moments, n).

        Each shard is copied under its lock, so as it was between two pushes. Different shards may
        be from different times.

        Returns:
            (num_shards,) the clocks of all shards.
        """
        await self._wait_for_own_push()
        started = self._now()
        rows = np.atleast_2d(out)
        clocks = np.zeros(len(self.layout.slices), np.int64)
        for shard, elements in enumerate(self.layout.slices):
            self.waited += await self._acquire(shard)
            try:
                clocks[shard] = await self._read_shard(shard, rows[:, elements], None)
            finally:
                await self._unlock(shard)
            self._count_bytes(shard, rows[:, elements].nbytes)
        self._counts.exchange_seconds += self._now() - started
        return clocks

    async def push(self, rule: Rule, selection: ShardSelection = ALL_SHARDS) -> Push:
        """Change the selected shards by a rule, one after the other, each under its lock."""
        await self._wait_for_own_push()
        push, wait_seconds = await self._push_to_shards(rule, selection)
        self.waited += wait_seconds
        return push

    async def try_push(self, rule: Rule, selection: ShardSelection = ALL_SHARDS) -> Push | None:
        """Push if no other worker has the lock of a selected shard; else count it, and return None.

        A worker that comes between the check and the push makes the push wait.
        """
        await self._wait_for_own_push()
        for shard in self._selected_shards(selection):
            if await self._is_occupied(shard):
                self._counts.occupied += 1
                return None
        return await self.push(rule, selection)

    def begin_push(self, rule: Rule, selection: ShardSelection = ALL_SHARDS) -> bool:
        """Begin a push in the background; without a background, make it at once.

        The arrays of the rule must not change before the push has ended: `is_under_way` is then
        False, or `drain` has returned.

        Returns:
            Whether the push was begun. It is skipped, and counted, while the one before is under
            way.
        """
        if self.is_under_way:
            self._counts.skipped += 1
            return False
        if self._background is None:
            self._last_push = run_now(self.push(rule, selection))
        else:
            self._background.begin(self._push_in_background(rule, selection))
        return True

    async def drain(self) -> Push | None:
        """Wait for the push that `begin_push` began, and return it.

        None: there was none since the last `drain`.
        """
        await self._wait_for_own_push()
        push = self._last_push
        self._last_push = None
        return push

    async def close(self) -> None:
        """Free the server; all workers together, after the last push."""

    async def _push_in_background(self, rule: Rule, selection: ShardSelection) -> None:
        self._last_push, _ = await self._push_to_shards(rule, selection)

    async def _push_to_shards(self, rule: Rule, selection: ShardSelection) -> tuple[Push, float]:
        """Lock each selected shard in turn, apply the rule, and unlock it.

        If the selection has an `answer`, it sees the whole shard before the unlock.

        Returns:
            The push, and the time spent waiting for locks [s].
        """
        started = self._now()
        wait_seconds = 0.0
        changes: list[ShardChange] = []
        buffer = self._free_buffers.pop() if self._free_buffers else np.empty_like(self._buffer)
        for shard in self._selected_shards(selection):
            wait_seconds += await self._acquire(shard)
            try:
                change = await self._apply_rule(shard, rule, selection.indices, buffer)
                changes.append(change)
                if selection.answer is not None:
                    await self._send_answer(shard, selection.answer)
            finally:
                await self._unlock(shard)
        self._free_buffers.append(buffer)
        self._counts.exchange_seconds += self._now() - started
        clocks_before = np.array([change.clock_before for change in changes], np.int64)
        clocks_after = np.array([change.clock_after for change in changes], np.int64)
        is_accepted = all(change.is_accepted for change in changes)
        return Push(clocks_before, clocks_after, is_accepted), wait_seconds

    async def _apply_rule(
        self, shard: int, rule: Rule, indices: Vector | None, buffer: Vector
    ) -> ShardChange:
        """Read a locked shard, apply the rule, and write the result if it is finite.

        Args:
            shard: Number of the shard.
            rule: Changes the values that were read.
            indices: Ascending elements of the whole vector to read and write; None: all.
            buffer: (1 + num_moments, size of the largest shard) overwritten by the values.
        """
        shard_elements = self.layout.slices[shard]
        elements, indices_in_shard, index_bytes = shard_elements, None, 0
        if indices is not None:
            # The indices in `elements` are those inside this shard.
            bounds = (shard_elements.start, shard_elements.stop)
            elements = slice(*np.searchsorted(indices, bounds).tolist())
            indices_in_shard = (indices[elements] - shard_elements.start).astype(INDEX)
            index_bytes = indices_in_shard.nbytes

        rows = buffer[:, : elements.stop - elements.start]
        clock = await self._read_shard(shard, rows, indices_in_shard)
        vector, moments = rows[0], rows[1:]
        view = Shard(shard, clock, elements, vector, moments)
        rule(view)
        # A rule may also replace an array instead of changing it in place.
        copy_if_replaced(view.vector, vector, shard)
        copy_if_replaced(view.moments, moments, shard)

        if not all(is_finite(row) for row in rows):
            self._counts.refused += 1
            self._count_bytes(shard, rows.nbytes + index_bytes)
            return ShardChange(clock, clock, is_accepted=False)
        clock_after = clock
        if view.counts:
            clock_after += 1
        await self._write_shard(shard, rows, indices_in_shard, clock_after)
        # The values travel twice: to this worker, and back.
        self._count_bytes(shard, 2 * rows.nbytes + index_bytes)
        self._counts.pushes += clock_after - clock
        return ShardChange(clock, clock_after, is_accepted=True)

    async def _send_answer(self, shard: int, answer: Answer) -> None:
        """Read all elements of a locked shard, and give them to `answer`."""
        elements = self.layout.slices[shard]
        row = np.empty_like(self._buffer[:1, : elements.stop - elements.start])
        await self._read_shard(shard, row, None)
        answer(elements, row[0])
        self._count_bytes(shard, row.nbytes)

    async def _wait_for_own_push(self) -> None:
        """Wait for the push in the background, which uses the same connections as this thread."""
        if self._background is not None:
            self.waited += await self._background.drain()

    def _owns(self, shard: int) -> bool:
        return self.layout.owners[shard] == self.rank

    def _count_bytes(self, shard: int, nbytes: int) -> None:
        """Count bytes as sent, unless the shard is in this worker's own memory."""
        if not self._owns(shard):
            self._counts.bytes += nbytes

    def _selected_shards(self, selection: ShardSelection) -> Sequence[int]:
        if selection.shard is None:
            return range(len(self.layout.slices))
        if isinstance(selection.shard, int):
            return (selection.shard,)
        return selection.shard

    async def _acquire(self, shard: int) -> float:
        """Lock a shard; count and return the time spent waiting [s]."""
        started = self._now()
        await self._lock(shard)
        wait_seconds = self._now() - started
        self._counts.wait_seconds += wait_seconds
        return wait_seconds

    async def _lock(self, shard: int) -> None:
        """Wait for the lock of a shard."""

    async def _unlock(self, shard: int) -> None:
        """Give the lock back."""

    async def _is_occupied(self, shard: int) -> bool:  # noqa: ARG002 - there is no other worker
        """Return whether a worker has the lock of a shard."""
        return False

    async def _read_shard(self, shard: int, out: Vector, indices: Vector | None) -> int:
        """Copy the first rows of a locked shard, as many as `out` has; return the shard's clock.

        `indices`: elements of the shard to copy; None: all.
        """
        columns = slice(None) if indices is None else indices
        out[:] = self._rows[shard][: len(out), columns]
        return int(self._clocks[shard][0])

    async def _write_shard(
        self, shard: int, rows: Vector, indices: Vector | None, clock: int
    ) -> None:
        """Copy all rows into a locked shard, and set its clock.

        `indices`: elements of the shard to change; None: all.
        """
        columns = slice(None) if indices is None else indices
        self._rows[shard][:, columns] = rows
        self._clocks[shard][0] = clock
