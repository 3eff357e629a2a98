"""The parameter server and the shared vectors of workers on the virtual clock.

Time of a push to a shard of another rank, with a latency L and a bandwidth W of their link:

 * its lock comes at once, or from the worker before; workers queue in the order of their requests;
 * under the lock, lock and get: 2 L + bytes / W, where bytes are those of the segments (or of the
   elements at some indices, whose request takes bytes of indices / W more);
 * under the lock, put and unlock: 2 L + bytes / W; a result that is not finite is not put;
 * under the lock, an answer: L + bytes / W, where bytes are those that a server would send.

A pull locks and gets, and unlocks without a further message. The question whether a shard is
occupied takes 2 L. A push takes `push_seconds` of the processor under each lock, whatever its rule.
The owner of a shard pays only for that and the lock. Shards are independent, but messages that
leave a host, or enter it, at once follow each other through its NIC (`costs.NicQueues`), whether
they belong to its workers or to its shards. Messages without content do not use the NIC.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from hep_studies.simulator.costs import ROUND_TRIPS, Network, NicQueues
from hep_studies.simulator.virtual_time import VirtualBackground, VirtualClock, VirtualLock
from training.transports.basics import ExchangeCounts, Vector, is_finite
from training.transports.parameter_server import Answer, Layout, ParameterServer, Push, Rule
from training.transports.transport import SharedVector


class SimulatedLinks(NicQueues):
    """The links of all workers on the virtual clock."""

    def __init__(self, network: Network, world_size: int, clock: VirtualClock) -> None:
        super().__init__(network, world_size)
        self.clock = clock

    def travel(
        self, sender: int, receiver: int, nbytes: int, *, round_trips: int = 1
    ) -> Awaitable[None]:
        """Wait for a message; each round trip more than one adds an empty message."""
        now = self.clock.now
        arrival = self.arrival(now, sender, receiver, nbytes, round_trips=round_trips)
        return self.clock.sleep(arrival - now)


class SimShards(NamedTuple):
    """The shards of all workers, by number."""

    rows: dict[int, Vector]
    clocks: dict[int, Vector]
    locks: dict[int, VirtualLock]


class SimServer(ParameterServer):
    """A simulated worker's view of the server.

    `shards`: the shards of all ranks, to which this rank adds those that it owns. `push_seconds`:
    processor time of a push to a shard [s].
    """

    def __init__(
        self,
        links: SimulatedLinks,
        layout: Layout,
        content: Vector,
        *,
        rank: int,
        shards: SimShards,
        push_seconds: float,
    ) -> None:
        clock = links.clock
        background = VirtualBackground(clock, f"push of rank {rank}")
        super().__init__(layout, content, rank=rank, now=lambda: clock.now, background=background)
        self._clock = clock
        self._links = links
        self._push_seconds = push_seconds
        shards.rows.update(self._rows)
        shards.clocks.update(self._clocks)
        shards.locks.update({shard: VirtualLock(clock) for shard in self._rows})
        self._rows, self._clocks, self._locks = shards

    @override
    async def drain(self) -> Push | None:
        await super()._wait_for_own_push()
        return await super().drain()

    @override
    async def _wait_for_own_push(self) -> None:
        """Do nothing: the messages of two pushes may overlap."""

    @override
    async def _lock(self, shard: int) -> None:
        await self._locks[shard].acquire()

    @override
    async def _unlock(self, shard: int) -> None:
        self._locks[shard].release()

    @override
    async def _is_occupied(self, shard: int) -> bool:
        if self._owns(shard):
            return self._locks[shard].is_held
        latency = self._links.link(self.rank, self.layout.owners[shard]).latency
        await self._clock.sleep(latency)
        is_held = self._locks[shard].is_held
        await self._clock.sleep(latency)
        return is_held

    @override
    async def _apply_rule(
        self, shard: int, rule: Rule, indices: Vector | None, buffer: Vector
    ) -> tuple[int, int, bool]:
        if self._push_seconds:
            await self._clock.sleep(self._push_seconds)
        return await super()._apply_rule(shard, rule, indices, buffer)

    @override
    async def _read_shard(self, shard: int, out: Vector, indices: Vector | None) -> int:
        owner = self.layout.owners[shard]
        if owner != self.rank and indices is not None:
            await self._links.travel(self.rank, owner, indices.nbytes)
            await self._links.travel(owner, self.rank, out.nbytes)
        elif owner != self.rank:
            # The request is empty.
            await self._links.travel(owner, self.rank, out.nbytes, round_trips=2)
        return await super()._read_shard(shard, out, indices)

    @override
    async def _write_shard(
        self, shard: int, rows: Vector, indices: Vector | None, clock: int
    ) -> None:
        owner = self.layout.owners[shard]
        if owner != self.rank:
            await self._links.travel(self.rank, owner, rows.nbytes, round_trips=2)
        await super()._write_shard(shard, rows, indices, clock)

    @override
    async def _send_answer(self, shard: int, answer: Answer) -> None:
        """The owner of the shard sends only the bytes that the answer reads."""
        nbytes = answer(self.layout.slices[shard], self._rows[shard][0])
        owner = self.layout.owners[shard]
        if owner != self.rank:
            await self._links.travel(owner, self.rank, nbytes)
        self._count_bytes(shard, nbytes)


class SimVector(SharedVector):
    """A simulated worker's shared vector.

    An average in memory takes both locks in the order of the ranks, reads, changes both sides and
    unlocks. An average through sockets reads both sides, and adds the differences after their time
    on the network, without locks.

    `vectors`: those of all ranks, to which this one is added. `protocol`: see
    `ClusterSettings.protocol`.
    """

    def __init__(
        self,
        links: SimulatedLinks,
        vectors: dict[int, SimVector],
        rank: int,
        vector: Vector,
        *,
        protocol: str,
    ) -> None:
        super().__init__(vector)
        self._links = links
        self._clock = links.clock
        self._rank = rank
        self._vectors = vectors
        vectors[rank] = self
        self._has_locks = protocol == "memory"
        self._round_trips = ROUND_TRIPS[protocol]
        self.lock = VirtualLock(self._clock)
        self._counts = ExchangeCounts()
        self._background = VirtualBackground(self._clock, f"average of rank {rank}")

    @property
    @override
    def counts(self) -> ExchangeCounts:
        return replace(self._counts, hidden_seconds=self._background.hidden_seconds)

    @override
    async def read(self, out: Vector) -> int:
        if self._has_locks:
            await self._acquire_lock(self)
            self.lock.release()
        np.copyto(out, self.values)
        return self._counts.begun + self._counts.received

    @override
    async def add(self, change: Vector) -> int:
        if self._has_locks:
            await self._acquire_lock(self)
        self.values += change
        if self._has_locks:
            self.lock.release()
        return self._counts.begun + self._counts.received

    async def _acquire_lock(self, vector: SimVector) -> None:
        """Wait for the lock of a vector, and count the time."""
        started = self._clock.now
        is_in_background = self._background.is_under_way
        await vector.lock.acquire()
        waited = self._clock.now - started
        self._counts.wait_seconds += waited
        self._wait_seconds += waited
        if is_in_background:
            self._background.blocked_seconds += waited

    @override
    async def read_from_rank(self, rank: int, out: Vector) -> None:
        vector = self._vectors[rank]
        if self._has_locks:
            await self._acquire_lock(vector)
        if rank != self._rank:
            await self._links.travel(rank, self._rank, out.nbytes, round_trips=2)
        np.copyto(out, vector.values)
        if self._has_locks:
            vector.lock.release()

    @override
    async def average_with(self, partner: int) -> None:
        wait_seconds = self._counts.wait_seconds
        await self._average(partner)
        self._wait_seconds += self._counts.wait_seconds - wait_seconds

    async def _average(self, partner: int) -> None:
        started = self._clock.now
        partner_vector = self._vectors[partner]
        nbytes = self.values.nbytes
        # Locks in the order of the ranks cannot wait for each other in a circle.
        first, second = self, partner_vector
        if partner < self._rank:
            first, second = partner_vector, self
        if self._has_locks:
            await first.lock.acquire()
            await second.lock.acquire()
            self._counts.wait_seconds += self._clock.now - started
        await self._links.travel(partner, self._rank, nbytes, round_trips=self._round_trips)
        change = _half(partner_vector.values - self.values)
        await self._links.travel(self._rank, partner, nbytes, round_trips=self._round_trips)
        # A model that is not finite must not reach the partner.
        if is_finite(change):
            self.values += change
            partner_vector.values -= change
            self._counts.begun += 1
            partner_vector._counts.received += 1
        else:
            self._counts.refused += 1
        if self._has_locks:
            second.lock.release()
            first.lock.release()
        self._counts.exchange_seconds += self._clock.now - started

    @override
    async def begin_average_with(self, partner: int) -> bool:
        if self._has_locks:
            await self.average_with(partner)
            return True
        if self._background.is_under_way:
            self._counts.skipped += 1
            return False
        self._background.begin(self._average(partner))
        return True

    @override
    async def drain(self) -> None:
        self._wait_seconds += await self._background.drain()


def _half(difference: Vector) -> Vector:
    """Return half a difference; of integers rounded down, which keeps the sum of both sides."""
    if difference.dtype.kind in "iu":
        return difference // 2
    return difference * 0.5
