"""SGP: shares of models go one way to peers, with weights that take the bias out.

Source: Assran et al. 2019, Algorithm 1; for `overlap` see `training.algorithms.sgp_overlap`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

from typing_extensions import override

from hep_core.settings_section import Needs
from training.algorithms.method import Traits, TransportOptions, algorithm
from training.algorithms.push_sum import PushSum, PushSumSettings
from training.algorithms.sgp_overlap import OverlapSgp
from training.transports.basics import is_finite


class SgpSettings(PushSumSettings):
    """Push shares of the parameters at every step to peers that change from step to step."""

    NEEDS: ClassVar[tuple[Needs, ...]] = (
        Needs(
            "network",
            "overlap: true, since else MPI carries the messages",
            lambda settings: settings.overlap,
        ),
    )

    name: Literal["sgp"]
    overlap: bool = False
    """Whether workers send beside the next gradient and add what has arrived, so that nobody waits
    (OSGP). Else a step ends when its messages have arrived (SGP)."""

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
    def algorithm_class(self) -> type[Any]:
        if self.overlap:
            return OverlapSgp
        return super().algorithm_class


@algorithm("sgp", SgpSettings, Traits(title="SGP", needs_others=True))
class Sgp(PushSum):
    """Step with the biased model, push shares of it to peers, and divide what is there by its weight.

    x_i <- x_i - gamma w_i g_i(z_i); (x_i, w_i) <- sum_j p_ij (x_j, w_j); z_i = x_i / w_i.

    x_i is the biased model of worker i, and w_i its weight, 1 at the start. The gradient g_i is
    taken at the de-biased model z_i. The w_i before it lets the optimiser move z_i by its change;
    the paper has none, since all w_i are 1 where workers wait. The p_ij of a sender j are equal and
    add up to 1: a half for itself and a half for its peer, or thirds. At step k the peer of worker
    i of n is (i + 2^(k mod ceil(log2 n))) mod n. So only the optimisers change the sum of all x_i,
    with messages under way, and the sum of all w_i is n. The method returns sum x_i / sum w_i.

    With `overlap`, x_i and w_i lie in the memory of worker i, where the others add their shares.
    The gradient is taken at the z_i before the last messages. A worker adds to shards of its host
    at once, and to those of other hosts in the background, while it takes steps without an
    exchange. A message returns to its sender where the shard is in use, or where `peers` messages
    wait unread. A worker of little weight sends none. Else the weight would gather at slow workers.
    """

    @override
    async def _exchange(self) -> None:
        """Send equal shares to the peers, and add the messages of this step when all are here.

        A biased model that is not finite reaches nobody: its worker continues with the messages,
        and the sum of all weights is less from then on.
        """
        receivers, senders = self._receivers(), self._senders()
        self._num_exchanges += 1
        if not is_finite(self._biased):
            self._biased.fill(0)
        share = self._biased / (len(receivers) + 1)
        exchange = self.transport.begin_exchange(share, receivers, senders=senders)
        # What rounding leaves stays here, so that the sum over the workers does not change.
        self._biased -= len(receivers) * share
        for message in await exchange:
            self._biased += message
        self.actions["messages"] += len(receivers)

    def _senders(self) -> list[int]:
        """Return the ranks that send to this one at the same step."""
        rank, world_size = self.transport.rank, self.transport.world_size
        return [(rank - distance) % world_size for distance in self._distances()]
