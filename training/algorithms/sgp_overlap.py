"""OSGP: stochastic gradient push beside the gradient, by workers that wait for nobody.

Source: Assran et al. 2019, Algorithm 2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np
from typing_extensions import override

from training.algorithms.base import Counters, Worker
from training.algorithms.push_sum import PushSum, PushSumSettings
from training.transports.basics import Vector, is_finite
from training.transports.parameter_server import ParameterServer
from training.transports.pushes import Push, Rule, Shard, ShardSelection

#: Weight below which a worker that waits for nobody sends nothing; that of all is 1 on average.
_LEAST_WEIGHT: Final = 0.75
#: Largest deviation of the mean weight from 1 that rounding causes.
_WEIGHT_ROUNDING: Final = 1e-3


class OverlapSgp(PushSum):
    """SGP in which x_i and w_i lie in the memory of worker i, and others add their shares there.

    Shard i of a server holds x_i, w_i, and the number of messages that worker i has not read. A
    worker adds its changes to its own shard and takes shares for its peers from it, in one push. It
    then adds the shares to the shards of the peers: at once on its host, else in the background.
    """

    SCRATCH: ClassVar[Sequence[str]] = ("_shards", "_unshared", "_returned", "_share")
    """Attributes that checkpoints leave out: `state` leaves nothing in them."""
    _shards: ParameterServer
    """From `start` on."""

    def __init__(self, settings: PushSumSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        #: Changes of x_i that its shard does not have yet.
        self._unshared = np.zeros_like(self._change)
        #: Share that went last to each peer, and the shares that came back since.
        self._share = np.zeros_like(self._biased)
        self._returned = np.zeros_like(self._biased)
        self._num_unread: Counter[int] = Counter()
        """Number of updates by the messages that came since the last one."""
        self.actions["messages_returned"] = 0

    @override
    async def start(self) -> None:
        """Make the shards, with the model and weight 1; each worker fills in its own shard."""
        await super().start()
        world_size = self.transport.world_size
        shards = np.zeros((world_size, self._biased.size + 1), self._biased.dtype)
        # The last element stays 0: no message waits.
        shards[self.transport.rank, :-1] = self._biased
        self._shards = await self.transport.parameter_server(shards.ravel(), shards=world_size)

    @override
    def _add_change(self) -> bool:
        is_added = super()._add_change()
        if is_added:
            self._unshared += self._change
        return is_added

    @override
    async def _exchange(self) -> None:
        """Read the messages that are here, and begin to send shares to the peers.

        The worker continues without an exchange while its last messages are under way, or another
        worker is at its shard.
        """
        if self._shards.is_under_way:
            return
        await self._finish_sending()
        receivers = self._receivers()
        num_shares = len(receivers) + 1
        push = await self._shards.try_push(self._rule_to_update(num_shares), self._own_shard())
        if push is None:
            return
        self._num_exchanges += 1
        self._end_update(push)
        if push.is_accepted and receivers and self._has_weight_to_share():
            self._share = self._biased / num_shares
            await self._send(receivers)

    def _own_shard(self) -> ShardSelection:
        return ShardSelection(shard=self.transport.rank)

    def _has_weight_to_share(self) -> bool:
        return bool(self._weight >= _LEAST_WEIGHT)

    async def _send(self, receivers: Sequence[int]) -> None:
        """Add a share to the shards of some ranks: at once on this host, else in the background."""
        selection = ShardSelection(shard=receivers)
        if all(self._shards.is_in_memory(rank) for rank in receivers):
            push = await self._shards.try_push(self._deliver, selection)
            self._count_messages(push, num_sent=len(receivers))
        else:
            self._shards.begin_push(self._deliver, selection)

    def _rule_to_update(self, num_shares: int) -> Rule:
        """Return the rule by which this worker updates its shard and takes shares from it.

        It adds the changes since the last update and the shares that came back. It copies the sum,
        with all messages, into `_biased`. It leaves one of `num_shares` equal shares in the shard,
        or all if the weight is little.
        """

        def update(shard: Shard) -> None:
            biased, num_messages = _biased_and_messages(shard)
            biased += self._returned
            self._biased[:] = biased
            biased[:-1] += self._unshared
            # The shard will refuse this, and the worker continues without its changes.
            if not is_finite(biased):
                return
            self._biased[:] = biased
            self._num_unread[int(num_messages[0])] += 1
            num_messages[:] = 0
            if self._has_weight_to_share():
                # As in `Sgp`, so that the shares add up to what was here.
                share = biased / num_shares
                biased -= (num_shares - 1) * share
            shard.counts = False

        return update

    def _end_update(self, push: Push) -> None:
        """Forget what the shard has now; a change that it refused is lost, and counted."""
        self._unshared.fill(0)
        if push.is_accepted:
            self._returned.fill(0)
        else:
            self.num_steps_not_finite += 1

    def _deliver(self, shard: Shard) -> None:
        """Add the share to a peer's shard, unless enough messages wait there; a rule of a push."""
        biased, num_messages = _biased_and_messages(shard)
        if num_messages[0] < self._num_peers:
            biased += self._share
            num_messages += 1
        else:
            shard.counts = False

    async def _finish_sending(self) -> None:
        """Wait for the messages under way, and keep the shares of those that were not taken."""
        push = await self._shards.drain()
        if push is not None:
            self._count_messages(push, num_sent=len(push.clocks_after))

    def _count_messages(self, push: Push | None, *, num_sent: int) -> None:
        """Count the messages that peers took, and keep the shares of the others.

        `push`: None if a peer's shard was in use.
        """
        num_taken = 0
        if push is not None:
            # The clock of a shard counts the messages that it took.
            num_taken = int(push.is_counted.sum())
        num_returned = num_sent - num_taken
        self.actions["messages"] += num_taken
        self.actions["messages_returned"] += num_returned
        self._returned += num_returned * self._share

    async def _settle(self) -> None:
        """Bring all that this worker has into its shard, and read that."""
        await self._finish_sending()
        push = await self._shards.push(self._rule_to_update(num_shares=1), self._own_shard())
        self._end_update(push)

    @override
    async def current(self, out: Vector) -> None:
        await self._settle()
        await super().current(out)

    @override
    async def quiesce(self) -> None:
        """Leave no message under way; all workers together."""
        await self._settle()
        await super().quiesce()

    @override
    async def result(self, out: Vector) -> None:
        """Copy sum x_i / sum w_i into `out`; all workers call it together, after `flush`."""
        await self._settle()
        await super().result(out)

    @override
    async def snapshot(self, out: Vector) -> float:
        """Copy sum x_i / sum w_i of all shards into `out`; messages under way do not count.

        Returns:
            The consensus distance of all z_i = x_i / w_i.
        """
        world_size = self.transport.world_size
        shards = np.empty(world_size * (self._biased.size + 1), self._biased.dtype)
        await self._shards.pull(shards)
        # Of each worker x_i, w_i, and the number of its messages.
        rows = shards.reshape(world_size, -1).astype(np.float64)
        biased = rows[:, :-2]
        weights = rows[:, -2:-1]
        mean = biased.sum(axis=0) / weights.sum()
        debiased = biased / weights
        squares = np.square(debiased - mean)
        out[:] = mean
        return float(np.sqrt(squares.sum() / world_size))

    @override
    async def add(self, change: Vector) -> None:
        """Add a change to z_i: w_i times as much to x_i, under the lock of its shard."""

        def add_debiased(shard: Shard) -> None:
            biased, _ = _biased_and_messages(shard)
            biased[:-1] += biased[-1] * change
            shard.counts = False

        await self._shards.push(add_debiased, self._own_shard())
        await self._settle()
        self._write_debiased()

    @override
    async def close(self) -> None:
        await self._shards.close()

    @override
    def counters(self) -> Counters:
        counts = self._shards.counts
        return {
            **super().counters(),
            "exchange_seconds": counts.exchange_seconds,
            "hidden_seconds": counts.hidden_seconds,
            "staleness": self._num_unread.copy(),
        }

    @override
    async def state(self) -> dict[str, Any]:
        await self._settle()
        return await super().state()

    @override
    async def restore(self, state: dict[str, Any]) -> None:
        """Continue with x_i and w_i of a checkpoint; all workers together.

        Workers save their states at different times, so a message may be in both states or in none.
        The weights then do not add up to n, and all begin again with weight 1.
        """
        await super().restore(state)
        total_weight = self._biased[-1:].astype(np.float64)
        await self.transport.all_reduce_sum(total_weight)
        mean_weight = total_weight[0] / self.transport.world_size
        if abs(mean_weight - 1) > _WEIGHT_ROUNDING:
            self._biased /= self._weight

        def overwrite(shard: Shard) -> None:
            biased, _ = _biased_and_messages(shard)
            biased[:] = self._biased
            shard.counts = False

        await self._shards.push(overwrite, self._own_shard())
        # Nobody sends before all shards are filled in.
        await self.transport.barrier()


def _biased_and_messages(shard: Shard) -> tuple[Vector, Vector]:
    """Return x_i and w_i of a shard, (num_parameters + 1,), and its unread messages.

    The second is their number, (1,). Both are views, so that a rule changes the shard.
    """
    return shard.vector[:-1], shard.vector[-1:]
