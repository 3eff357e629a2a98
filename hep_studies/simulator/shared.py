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
from training.transports.parameter_server import Layout, ParameterServer
from training.transports.pushes import Answer, Push, Rule, ShardChange
from training.transports.transport import SharedVector


class SimulatedLinks(NicQueues):
    """The links of all workers, on which messages take virtual time."""

    def __init__(self, network: Network, world_size: int, clock: VirtualClock) -> None:
        super().__init__(network, world_size)
        self.clock = clock

    def travel(
        self, sender: int, receiver: int, nbytes: int, *, round_trips: int = 1
    ) -> Awaitable[None]:
        """Send a message now, and return the wait for its arrival.

        The NICs of both hosts are busy with it from this call on. `round_trips`: number of
        latencies, of one way, to wait for: 1 for a message alone, 2 with an empty request before
        it.
        """
        now = self.clock.now
        arrival = self.arrival(now, sender, receiver, nbytes, round_trips=round_trips)
        return self.clock.sleep(arrival - now)


class SimShards(NamedTuple):
    """The shards of a parameter server's vector, by their number; all workers share these tables.

    A shard is a part of the vector with a lock; one worker owns it.
    """

    rows: dict[int, Vector]
    """Content, (1 + num_moments, shard size): the elements, then what rules store for each."""
    clocks: dict[int, Vector]
    """Number of pushes so far, (1,)."""
    locks: dict[int, VirtualLock]


class SimServer(ParameterServer):
    """A simulated worker's view of a parameter server.

    The base class has the protocol: lock a shard, read it, apply a rule, write it, unlock. This
    class reaches the shards of all workers in memory, and adds the virtual time of each step.

    Args:
        links: The network.
        layout: The division of the vector into shards, and their owners.
        content: The vector, then the moments of the rules; equal on all workers.
        rank: This worker.
        shards: The shards of all ranks. They are changed: this rank adds those that it owns.
        push_seconds: Processor time of a push to a shard [s].
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
        # The base class has made the shards that this rank owns.
        shards.rows.update(self._rows)
        shards.clocks.update(self._clocks)
        shards.locks.update({shard: VirtualLock(clock) for shard in self._rows})
        # From here on, this rank reaches all shards, also those that other ranks add later.
        self._rows, self._clocks, self._locks = shards

    @override
    def is_in_memory(self, shard: int) -> bool:
        return self._links.are_on_one_host(self.rank, self.layout.owners[shard])

    @override
    async def drain(self) -> Push | None:
        """Wait for the push in the background; return the last one, once.

        The base class waits by a method that this class replaces, so that it is called here.
        """
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
        """Return whether a worker has the lock of a shard, which takes a round trip to its owner.

        The answer is the state at the time at which the question arrives.
        """
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
    ) -> ShardChange:
        """Apply a rule to a locked shard, after the processor time of a push."""
        if self._push_seconds:
            await self._clock.sleep(self._push_seconds)
        return await super()._apply_rule(shard, rule, indices, buffer)

    @override
    async def _read_shard(self, shard: int, out: Vector, indices: Vector | None) -> int:
        """Copy a locked shard into `out` after the time of request and answer; return its clock.

        A request for some elements carries their indices; one for all elements is empty. The
        owner needs no messages.
        """
        owner = self.layout.owners[shard]
        if owner != self.rank and indices is not None:
            await self._links.travel(self.rank, owner, indices.nbytes)
            await self._links.travel(owner, self.rank, out.nbytes)
        elif owner != self.rank:
            # The empty request takes a latency, the answer another one.
            await self._links.travel(owner, self.rank, out.nbytes, round_trips=2)
        return await super()._read_shard(shard, out, indices)

    @override
    async def _write_shard(
        self, shard: int, rows: Vector, indices: Vector | None, clock: int
    ) -> None:
        """Copy rows into a locked shard and set its clock, after the time of the messages.

        They are the rows, and an empty confirmation.
        """
        owner = self.layout.owners[shard]
        if owner != self.rank:
            await self._links.travel(self.rank, owner, rows.nbytes, round_trips=2)
        await super()._write_shard(shard, rows, indices, clock)

    @override
    async def _send_answer(self, shard: int, answer: Answer) -> None:
        """Have `answer` read a locked shard after a push, in the time in which its bytes arrive.

        `answer` returns how many bytes a server would send for what it reads.
        """
        nbytes = answer(self.layout.slices[shard], self._rows[shard][0])
        owner = self.layout.owners[shard]
        if owner != self.rank:
            await self._links.travel(owner, self.rank, nbytes)
        self._count_bytes(shard, nbytes)


class SimVector(SharedVector):
    """A simulated worker's vector, which partners may average with theirs without its help.

    An average in memory takes both locks in the order of the ranks, reads, changes both sides and
    unlocks. An average through sockets reads both sides, and adds the differences after their time
    on the network, without locks. Either way one side gains what the other loses, so that the sum
    over all workers stays.

    Args:
        links: The network.
        vectors: Those of all ranks. The dictionary is changed: this vector is added to it.
        rank: This worker.
        vector: The content, which is copied.
        protocol: `memory`, for workers of one host, or `sockets`.
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
        """Held by whoever reads or changes the vector, with the protocol `memory`."""
        self._counts = ExchangeCounts()
        self._background = VirtualBackground(self._clock, f"average of rank {rank}")

    @property
    @override
    def counts(self) -> ExchangeCounts:
        return replace(self._counts, hidden_seconds=self._background.hidden_seconds)

    @override
    async def read(self, out: Vector) -> int:
        """Copy the vector into `out`; return the number of its averages so far, by either side."""
        # A partner that averages in memory holds the lock: its average ends first.
        if self._has_locks:
            await self._acquire_lock(self)
            self.lock.release()
        np.copyto(out, self.values)
        return self._counts.begun + self._counts.received

    @override
    async def add(self, change: Vector) -> int:
        """Add to the vector, under its lock; return the number of its averages so far."""
        if self._has_locks:
            await self._acquire_lock(self)
        self.values += change
        if self._has_locks:
            self.lock.release()
        return self._counts.begun + self._counts.received

    async def _acquire_lock(self, vector: SimVector) -> None:
        """Wait for the lock of a vector, and count the time as waiting of this worker.

        If an average in the background was under way at the start, the time is not hidden behind
        the computation, and counts as blocked.
        """
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
        """Copy the vector of any rank into `out`, after the time of a request and an answer."""
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
        """Replace this vector and the partner's by their average, and wait for the end."""
        # `_average` counts the wait for locks; its increase is waiting of the worker too.
        wait_seconds = self._counts.wait_seconds
        await self._average(partner)
        self._wait_seconds += self._counts.wait_seconds - wait_seconds

    async def _average(self, partner: int) -> None:
        """Average this vector with the partner's in place, in the time of the messages.

        Half the difference is added to one side and subtracted from the other. Without locks,
        other averages may change both sides meanwhile; their changes are kept. A difference that
        is not finite changes nothing, and is counted as refused.
        """
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
        # The partner's vector travels here, the change travels back. Each way waits for as many
        # latencies as the protocol has round trips.
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
        """Begin an average: in memory it is made at once, through sockets in the background.

        Returns:
            False if it is skipped, since the last one is under way.
        """
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
    """Return half a difference; of integers rounded down.

    One side adds this half and the other subtracts it, so that rounding keeps the sum of both.
    """
    if difference.dtype.kind in "iu":
        return difference // 2
    return difference * 0.5
