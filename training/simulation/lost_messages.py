"""Lost messages between hosts: which are lost, and the time until a sender knows and sends again.

Messages of a collective operation, of neighbours, and of a request arrive at last: each is sent again after a timeout,
as by TCP, until one copy arrives. A pairwise average is left out instead, on both sides.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from training.random_streams import random_stream

#: Key of the random stream of the collective operations, beside those of the ranks. They only change times, so a
#: checkpoint leaves it out.
_COLLECTIVE: Final = 1 << 30


class LostMessages:
    """Each message is lost with the same probability; every sender has a random stream of its own.

    Args:
        probability: Probability that a message is lost.
        timeout: Time after which it is sent again [s].
        seed: Seed of the simulation.

    Examples:
        >>> LostMessages(0.0, 1.0, seed=1).delay(0)
        0.0
        >>> lost_messages = LostMessages(0.5, 1.0, seed=1)
        >>> 4500 < sum(lost_messages.delay(0) for _ in range(5000)) == lost_messages.lost < 5500
        True
    """

    def __init__(self, probability: float, timeout: float, *, seed: int) -> None:
        self.timeout = timeout
        self.lost = 0
        """Number of messages lost so far."""
        self.probability = probability
        """Probability that a message is lost."""
        self._seed = seed
        self._streams: dict[int, np.random.Generator] = {}

    def is_lost(self, sender: int) -> bool:
        """Whether the next message of a worker is lost."""
        is_lost = self.probability > 0 and self._stream(sender).random() < self.probability
        self.lost += is_lost
        return is_lost

    def delay(self, sender: int) -> float:
        """Time from the first copy of a worker's next message to the one that arrives [s]."""
        if not self.probability:
            return 0.0
        copies = int(self._stream(sender).geometric(1 - self.probability))
        self.lost += copies - 1
        return self.timeout * (copies - 1)

    def delay_of_all(self, world_size: int, rounds: int) -> float:
        """Time that lost messages add to a collective: each of its rounds waits for the last message of all [s].

        The largest of n geometric numbers is drawn by the inverse of its distribution (1 - p^k)^n.
        """
        if not self.probability or world_size == 1:
            return 0.0
        uniform = self._stream(_COLLECTIVE).random(rounds)
        with np.errstate(divide="ignore"):
            copies = np.ceil(np.log(-np.expm1(np.log(uniform) / world_size)) / np.log(self.probability))
        resent = int(np.maximum(copies - 1, 0).sum())
        # Of the worker that waits longest; those of the others cost no time, and are not drawn.
        self.lost += resent
        return self.timeout * resent

    def state(self, rank: int) -> dict[str, Any]:
        """Position in a worker's random stream."""
        return dict(self._stream(rank).bit_generator.state)

    def load_state(self, rank: int, state: dict[str, Any]) -> None:
        """Restore a position in a worker's random stream."""
        self._stream(rank).bit_generator.state = state

    def _stream(self, rank: int) -> np.random.Generator:
        if rank not in self._streams:
            self._streams[rank] = random_stream(self._seed, "lost messages", rank)
        return self._streams[rank]
