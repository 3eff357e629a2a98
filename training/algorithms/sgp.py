"""SGP: shares of models go one way to peers, with weights that take the bias out.

Source: Assran et al. 2019, Algorithm 1; with `overlap` Algorithm 2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, Literal

import numpy as np
from typing_extensions import override

from hep_core.settings_section import Needs
from training.algorithms.base import (
    Algorithm,
    ComputeGradient,
    Counters,
    Worker,
    mean_over_workers,
)
from training.algorithms.method import HostNetworkSettings, Traits, TransportOptions, algorithm
from training.topology import exponential_distances
from training.transports.basics import Vector, is_finite
from training.transports.parameter_server import ParameterServer
from training.transports.pushes import Push, Rule, Shard, ShardSelection

#: Weight below which a worker that waits for nobody sends nothing; that of all is 1 on average.
_LEAST_WEIGHT: Final = 0.75


class SgpSettings(HostNetworkSettings):
    """Push shares of the parameters at every step to peers that change from step to step."""

    NEEDS: ClassVar[tuple[Needs, ...]] = (
        Needs(
            "network",
            "overlap: true, since else MPI carries the messages",
            lambda settings: settings.overlap,
        ),
    )

    name: Literal["sgp"]
    peers: Literal[1, 2] = 1
    """Number of workers to which a worker sends at a step; 2 need at least 3 workers."""
    overlap: bool = False
    """Whether workers send beside the next gradient and add what has arrived, so that nobody waits
    (OSGP). Else a step ends when its messages have arrived (SGP)."""

    COUNTERS: ClassVar[tuple[str, ...]] = ("messages",)

    @property
    @override
    def traits(self) -> Traits:
        if not self.overlap:
            return super().traits
        return replace(super().traits, title="OSGP", synchronous=False, equal_steps=False)

    @property
    @override
    def transport_options(self) -> TransportOptions:
        return TransportOptions(background=self.overlap, network=self.network)

    @property
    @override
    def fewest_workers(self) -> Mapping[str, int]:
        return {"algorithm.peers: 2": 3} if self.peers == 2 else {}


@algorithm("sgp", SgpSettings, Traits(title="SGP", needs_others=True))
class Sgp(Algorithm):
    """Step with the biased model, push shares of it to peers, and divide what is there by its weight.

    x_i <- x_i - gamma w_i g_i(z_i); (x_i, w_i) <- sum_j p_ij (x_j, w_j); z_i = x_i / w_i.

    x_i is the biased model of worker i, and w_i its weight, 1 at the start. z_i is the de-biased
    model, at which the gradient g_i is taken; with the w_i the optimiser moves z_i by its change.
    The paper has no w_i there: they are all 1 where workers wait. The p_ij of a sender j are equal
    and add up to 1: a half for itself and a half for its peer, or thirds. At step k the peer of i
    is i + 2^(k mod ceil(log2 n)) of n workers, modulo n. So the sum of all x_i, with messages under
    way, changes by the optimisers alone, and that of all w_i is n. The method returns
    sum x_i / sum w_i.

    With `overlap`, x_i and w_i are in the memory of worker i, where others add their shares. Its
    gradient is taken at the z_i before the last messages. It adds to shards of its host at once,
    to those of other hosts in the background, and takes steps without an exchange meanwhile. A
    message returns to its sender where the shard is in use, or as many as `peers` wait unread, and
    a worker of little weight sends none: else the weight would gather at slow workers.
    """

    SCRATCH = ("_shards", "_debiased", "_change", "_unshared", "_returned", "_share")
    """Attributes that checkpoints leave out: `state` leaves nothing in them but the model."""
    _shards: ParameterServer
    """With `overlap`: shard i holds x_i, w_i, and the number of messages that worker i has not
    read."""

    def __init__(self, settings: SgpSettings, worker: Worker) -> None:
        super().__init__(settings, worker)
        self.traits = settings.traits
        self._peers = settings.peers
        self._overlaps = settings.overlap
        #: z_i in the model.
        self._debiased = self.model.empty()
        #: The optimiser's change of a step.
        self._change = self.model.empty()
        #: (num_parameters + 1,) x_i, then w_i.
        self._biased = np.ones(self._change.size + 1, self._change.dtype)
        self._num_exchanges = 0
        """Number of steps that have sent messages, or had nobody to send to."""
        #: With `overlap`: changes of x_i that its shard does not have yet.
        self._unshared = np.zeros_like(self._change)
        #: Share that went last to each peer, and the shares that came back since.
        self._share = np.zeros_like(self._biased)
        self._returned = np.zeros_like(self._biased)
        self._num_unread: Counter[int] = Counter()
        """Number of updates by the messages that came since the last one."""
        if self._overlaps:
            self.actions["messages_returned"] = 0

    @override
    async def start(self) -> None:
        """Begin with the model and weight 1; with `overlap`, all workers share theirs together."""
        self.model.read(self._debiased)
        self._biased[:-1] = self._debiased
        self._biased[-1] = 1
        if not self._overlaps:
            return
        rank, world_size = self.transport.rank, self.transport.world_size
        # Each worker fills in the shard that it owns; see `ParameterServer`.
        content = np.zeros((world_size, self._biased.size + 1), self._biased.dtype)
        content[rank, :-1] = self._biased
        self._shards = await self.transport.parameter_server(content.ravel(), shards=world_size)

    @override
    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        """Take the optimiser's step, exchange shares, and de-bias."""
        if await self.has_gradient(compute_gradient, num_samples):
            self.optimizer.step()
            self._add_change()
        if self._overlaps:
            await self._exchange_without_waiting()
        else:
            await self._exchange()
        self._write_debiased()

    def _add_change(self) -> None:
        """Add w_i times the change of z_i to x_i; one that is not finite is only counted."""
        self.model.read(self._change)
        self._change -= self._debiased
        self._change *= self._biased[-1]
        if not is_finite(self._change):
            self.num_steps_not_finite += 1
            return
        self._biased[:-1] += self._change
        if self._overlaps:
            self._unshared += self._change

    def _write_debiased(self) -> None:
        """Write z_i into the model."""
        np.divide(self._biased[:-1], self._biased[-1], out=self._debiased)
        self.model.write(self._debiased)

    def _peers_at(self, direction: int) -> list[int]:
        """Return the ranks to which this one sends next (1), or that send to it (-1)."""
        rank, world_size = self.transport.rank, self.transport.world_size
        distances = exponential_distances(self._num_exchanges, world_size, self._peers)
        return [(rank + direction * distance) % world_size for distance in distances]

    async def _exchange(self) -> None:
        """Send equal shares to the peers, and add the messages of this step when all are here.

        A biased model that is not finite reaches nobody: its worker continues with the messages,
        and the sum of all weights is less from then on.
        """
        receivers, senders = self._peers_at(1), self._peers_at(-1)
        self._num_exchanges += 1
        if not is_finite(self._biased):
            self._biased.fill(0)
        share = self._biased / (len(receivers) + 1)
        exchange = self.transport.begin_exchange(share, receivers, senders=senders)
        self._biased -= len(receivers) * share
        for message in await exchange:
            self._biased += message
        self.actions["messages"] += len(receivers)

    async def _exchange_without_waiting(self) -> None:
        """Read the messages that are here, and begin to send shares to the peers.

        The worker continues without an exchange while its last messages are under way, or another
        worker is at its shard.
        """
        if self._shards.is_under_way:
            return
        await self._finish_sending()
        receivers = self._peers_at(1)
        num_shares = len(receivers) + 1
        own_shard = ShardSelection(shard=self.transport.rank)
        push = await self._shards.try_push(self._rule_to_update(num_shares), own_shard)
        if push is None:
            return
        self._num_exchanges += 1
        if self._end_update(push) and receivers and self._has_weight_to_share():
            self._share = self._biased / num_shares
            await self._send(receivers)

    def _has_weight_to_share(self) -> bool:
        return bool(self._biased[-1] >= _LEAST_WEIGHT)

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

        It adds the changes since the last update and the shares that came back, reads the messages,
        and leaves one of `num_shares` equal shares, or all if the weight is little.
        """

        def update(shard: Shard) -> None:
            biased = shard.vector[:-1]
            biased += self._returned
            self._biased[:] = biased
            biased[:-1] += self._unshared
            # The shard will refuse this, and the worker continues without its changes.
            if not is_finite(biased):
                return
            self._biased[:] = biased
            self._num_unread[int(shard.vector[-1])] += 1
            if self._has_weight_to_share():
                # As in `_exchange`, so that the shares add up to what was here.
                biased -= (num_shares - 1) * (biased / num_shares)
            shard.vector[-1] = 0
            shard.counts = False

        return update

    def _end_update(self, push: Push) -> bool:
        """Forget what the shard has now; a change that it refused is lost, and counted."""
        self._unshared.fill(0)
        if push.is_accepted:
            self._returned.fill(0)
        else:
            self.num_steps_not_finite += 1
        return push.is_accepted

    def _deliver(self, shard: Shard) -> None:
        """Add the share to a peer's shard, unless enough messages wait there; a rule of a push."""
        if shard.vector[-1] < self._peers:
            shard.vector[:-1] += self._share
            shard.vector[-1] += 1
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
            # The clock of a shard counts what it took.
            num_taken = int(np.sum(push.clocks_after > push.clocks_before))
        num_returned = num_sent - num_taken
        self.actions["messages"] += num_taken
        self.actions["messages_returned"] += num_returned
        self._returned += num_returned * self._share

    async def _settle(self) -> None:
        """With `overlap`: bring all that this worker has into its shard, and read that."""
        if not self._overlaps:
            return
        await self._finish_sending()
        own_shard = ShardSelection(shard=self.transport.rank)
        self._end_update(await self._shards.push(self._rule_to_update(num_shares=1), own_shard))

    @override
    async def current(self, out: Vector) -> None:
        await self._settle()
        np.divide(self._biased[:-1], self._biased[-1], out=out)

    @override
    async def quiesce(self) -> None:
        """Leave no message under way; all workers together."""
        await self._settle()
        await self.transport.barrier()

    @override
    async def flush(self) -> None:
        await self.quiesce()

    @override
    async def result(self, out: Vector) -> None:
        """Copy sum x_i / sum w_i into `out`; all workers call it together, after `flush`."""
        await self._settle()
        mean = self._biased.copy()
        await mean_over_workers(mean, self.transport)
        np.divide(mean[:-1], mean[-1], out=out)

    @override
    async def snapshot(self, out: Vector) -> float:
        """Copy sum x_i / sum w_i of all shards into `out`; messages under way do not count.

        Returns:
            The consensus distance of all z_i = x_i / w_i.
        """
        world_size = self.transport.world_size
        content = np.empty(world_size * (self._biased.size + 1), self._biased.dtype)
        await self._shards.pull(content)
        shards = content.reshape(world_size, -1).astype(np.float64)
        biased, weights = shards[:, :-2], shards[:, -2:-1]
        mean = biased.sum(axis=0) / weights.sum()
        deviations = biased / weights - mean
        out[:] = mean
        return float(np.sqrt(np.square(deviations).sum() / world_size))

    @override
    async def add(self, change: Vector) -> None:
        """Add a change to z_i: w_i times as much to x_i, under the lock of its shard."""

        def add_debiased(shard: Shard) -> None:
            shard.vector[:-2] += shard.vector[-2] * change
            shard.counts = False

        if self._overlaps:
            await self._shards.push(add_debiased, ShardSelection(shard=self.transport.rank))
            await self._settle()
        else:
            self._biased[:-1] += self._biased[-1] * change
        self._write_debiased()

    @override
    def weight_of(self, state: dict[str, Any]) -> float:
        """Return w_i, since the method returns sum w_i z_i / sum w_i."""
        weight: float = state["weight"]
        return weight

    @override
    async def close(self) -> None:
        if self._overlaps:
            await self._shards.close()

    @override
    def counters(self) -> Counters:
        if not self._overlaps:
            return super().counters()
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
        return {**await super().state(), "weight": float(self._biased[-1])}

    @override
    async def restore(self, state: dict[str, Any]) -> None:
        """Continue with x_i and w_i of a checkpoint; all workers together.

        Workers that wait for nobody save their states at different times, so a message may be in
        both states or in none. The weights then do not add up to n, and all begin again with
        weight 1.
        """
        await super().restore(state)
        if not self._overlaps:
            return
        total_weight = self._biased[-1:].astype(np.float64)
        await self.transport.all_reduce_sum(total_weight)
        world_size = self.transport.world_size
        # Rounding alone changes the sum by less.
        if abs(total_weight[0] / world_size - 1) > 1e-3:
            self._biased /= self._biased[-1]

        def overwrite(shard: Shard) -> None:
            shard.vector[:-1] = self._biased
            shard.counts = False

        await self._shards.push(overwrite, ShardSelection(shard=self.transport.rank))
        # Nobody sends before all shards are filled in.
        await self.transport.barrier()
