"""The parameter server and the shared vectors of workers on the virtual clock.

Time of a push to a shard of another rank, with a latency L and a bandwidth W of the link between them:

 * its lock comes at once, or from the worker before; workers queue in the order of their requests;
 * under the lock, lock and get: 2 L + bytes / W, where bytes are those of the segments (or of the elements at some
   indices, whose request takes bytes of indices / W more);
 * under the lock, put and unlock: 2 L + bytes / W; nothing is put where the result is not finite;
 * under the lock, an answer: L + bytes / W, where bytes are those that a server would send.

A pull locks and gets, and unlocks without a further message. The question whether a shard is occupied takes 2 L. A
push takes `push_seconds` of the processor under each lock, whatever its rule. The owner of a shard pays for nothing
but that and the lock. Shards are independent, but what leaves a host, or enters it, at once goes one after the other
through its NIC (`costs.Nics`), whether it belongs to one of its workers or to a shard that one of them owns; messages
without content do not use the card.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from typing_extensions import override

from training.simulation.costs import Nics
from training.simulation.virtual_time import VirtualBackground, VirtualClock, VirtualLock
from training.transports.basics import Vector, is_finite
from training.transports.parameter_server import VECTOR, Answer, Layout, ParameterServer, Push, Rule
from training.transports.transport import AverageCounts, SharedVector


class SimShards(NamedTuple):
    """The shards of all workers, by number."""

    content: dict[int, dict[str, Vector]]
    """The segments of each."""
    clocks: dict[int, Vector]
    locks: dict[int, VirtualLock]


class SimServer(ParameterServer):
    """A simulated worker's view of the server.

    `shards`: the shards of all ranks; gets those that this one owns. `push_seconds`: processor time of a push to a
    shard [s].
    """

    def __init__(
        self,
        clock: VirtualClock,
        nics: Nics,
        layout: Layout,
        vector: Vector,
        *,
        rank: int,
        shards: SimShards,
        push_seconds: float,
    ) -> None:
        background = VirtualBackground(clock, f"push of rank {rank}")
        super().__init__(layout, vector, rank=rank, now=lambda: clock.now, background=background)
        self._clock, self._nics = clock, nics
        self._push_seconds = push_seconds
        shards.content.update(self._content)
        shards.clocks.update(self._clocks)
        shards.locks.update({shard: VirtualLock(clock) for shard in self._content})
        self._content, self._clocks, self._locks = shards

    @override
    async def drain(self) -> Push | None:
        await super()._wait_for_own_push()
        return await super().drain()

    @override
    async def _wait_for_own_push(self) -> None:
        """Messages share no connections."""

    @override
    async def _lock(self, shard: int) -> None:
        await self._locks[shard].acquire()

    @override
    async def _unlock(self, shard: int) -> None:
        self._locks[shard].release()

    @override
    async def _is_occupied(self, shard: int) -> bool:
        is_far = self.layout.owner(shard) != self.rank
        if is_far:
            await self._clock.sleep(self._latency(shard))
        is_held = self._locks[shard].is_held
        if is_far:
            await self._clock.sleep(self._latency(shard))
        return is_held

    @override
    async def _change(self, number: int, rule: Rule, indices: Vector | None, buffer: Vector) -> tuple[int, int, bool]:
        if self._push_seconds:
            await self._clock.sleep(self._push_seconds)
        return await super()._change(number, rule, indices, buffer)

    @override
    async def _get(self, shard: int, arrays: Mapping[str, Vector], within: Vector | None) -> int:
        owner, nbytes = self.layout.owner(shard), sum(each.nbytes for each in arrays.values())
        if within is not None:
            await self._travel(self.rank, owner, within.nbytes)
        await self._travel(owner, self.rank, nbytes, messages=2 if within is None else 1)
        return await super()._get(shard, arrays, within)

    @override
    async def _put(self, shard: int, arrays: Mapping[str, Vector], within: Vector | None, clock: int) -> None:
        nbytes = sum(each.nbytes for each in arrays.values())
        await self._travel(self.rank, self.layout.owner(shard), nbytes, messages=2)
        await super()._put(shard, arrays, within, clock)

    def _latency(self, shard: int) -> float:
        return self._nics.link(self.rank, self.layout.owner(shard)).latency

    @override
    async def _tell(self, number: int, answer: Answer) -> None:
        """The owner of the shard sends no more than what is taken."""
        part = self.layout.part(number, None)
        nbytes = answer(part, self._content[number][VECTOR])
        await self._travel(self.layout.owner(number), self.rank, nbytes)
        self._count_bytes(number, nbytes, None, part)

    async def _travel(self, sender: int, receiver: int, nbytes: int, *, messages: int = 1) -> None:
        """Wait for a message, or for an empty one and one with all bytes."""
        if sender != receiver:
            now = self._clock.now
            await self._clock.sleep(self._nics.arrival(now, sender, receiver, nbytes, round_trips=messages) - now)


class AveragingNetwork(Protocol):
    """What a shared vector needs of `training.simulation.transport.SimNetwork`."""

    clock: VirtualClock
    has_locks: bool
    vectors: dict[int, list[SimVector]]

    def travel(self, sender: int, receiver: int, nbytes: int) -> Awaitable[None]: ...  # noqa: D102

    def answer(self, sender: int, receiver: int, nbytes: int) -> Awaitable[None]: ...  # noqa: D102


class SimVector(SharedVector):
    """A simulated worker's shared vector.

    An average in memory takes both locks in the order of the ranks, reads, changes both sides and unlocks. One through
    sockets reads both sides, and adds the differences after their time on the network, without locks.
    """

    def __init__(self, network: AveragingNetwork, rank: int, vector: Vector, *, which: int) -> None:
        super().__init__(vector)
        self._network = network
        self._rank = rank
        self._which = which
        self.lock = VirtualLock(network.clock)
        #: Fields of `AverageCounts`.
        self._counted: defaultdict[str, Any] = defaultdict(int)
        self._background = VirtualBackground(network.clock, f"average of rank {rank}")

    @property
    @override
    def counts(self) -> AverageCounts:
        hidden = max(0.0, self._background.seconds - self._background.blocked_seconds)
        return AverageCounts(**self._counted, hidden_seconds=hidden)

    @override
    async def read(self, out: Vector) -> int:
        if self._network.has_locks:
            await self._locked()
            self.lock.release()
        np.copyto(out, self.values)
        return self._num_averages

    @override
    async def add(self, change: Vector) -> int:
        if self._network.has_locks:
            await self._locked()
        self.values += change
        if self._network.has_locks:
            self.lock.release()
        return self._num_averages

    @property
    def _num_averages(self) -> int:
        return int(self._counted["begun"] + self._counted["received"])

    async def _locked(self, vector: SimVector | None = None) -> None:
        started, is_in_background = self._network.clock.now, self._background.is_under_way
        await (vector or self).lock.acquire()
        waited = self._network.clock.now - started
        self._counted["wait_seconds"] += waited
        self.waited += waited
        self._background.blocked_seconds += waited if is_in_background else 0.0

    @override
    async def read_of(self, rank: int, out: Vector) -> None:
        network = self._network
        theirs = network.vectors[rank][self._which]
        if network.has_locks:
            await self._locked(theirs)
        if rank != self._rank:
            await network.answer(rank, self._rank, out.nbytes)
        np.copyto(out, theirs.values)
        if network.has_locks:
            theirs.lock.release()

    @override
    async def average_with(self, partner: int) -> None:
        waited = self._counted["wait_seconds"]
        await self._average(partner)
        self.waited += self._counted["wait_seconds"] - waited

    async def _average(self, partner: int) -> None:
        network = self._network
        clock = network.clock
        started = clock.now
        theirs = network.vectors[partner][self._which]
        first, second = (self, theirs) if self._rank < theirs._rank else (theirs, self)
        if network.has_locks:
            await first.lock.acquire()
            await second.lock.acquire()
            self._counted["wait_seconds"] += clock.now - started
        await network.travel(theirs._rank, self._rank, self.values.nbytes)
        difference = theirs.values - self.values
        # Rounded down for integers, which keeps the sum.
        difference = difference // 2 if difference.dtype.kind in "iu" else difference * 0.5
        await network.travel(self._rank, theirs._rank, self.values.nbytes)
        # What is not finite must not reach the other.
        is_made = difference.dtype.kind != "f" or is_finite(difference)
        if is_made:
            self.values += difference
            theirs.values -= difference
        if network.has_locks:
            second.lock.release()
            first.lock.release()
        if is_made:
            self._counted["begun"] += 1
            theirs._counted["received"] += 1
        else:
            self._counted["refused"] += 1
        self._counted["exchange_seconds"] += clock.now - started

    @override
    async def begin_average_with(self, partner: int) -> bool:
        if self._network.has_locks:
            await self.average_with(partner)
            return True
        if self._background.is_under_way:
            self._counted["skipped"] += 1
            return False
        self._background.begin(self._average(partner))
        return True

    @override
    async def drain(self) -> None:
        self.waited += await self._background.drain()
