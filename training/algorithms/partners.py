"""The choice of partners of the methods of random pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from training.random_streams import random_stream


class RandomPartners:
    """Neighbours drawn at random with equal probability, from one random stream per rank.

    With one stream for all ranks, all would choose the same partner.

    Args:
        neighbours: Ranks to draw from; none for a single worker.
        seed: Seed of the run.
        rank: Rank of the worker.

    Examples:
        >>> partners = RandomPartners([1, 2, 3], seed=1, rank=0)
        >>> {partners.next() for _ in range(50)} == {1, 2, 3}
        True
    """

    def __init__(self, neighbours: Sequence[int], *, seed: int, rank: int) -> None:
        self._neighbours = list(neighbours)
        self._rng = random_stream(seed, "partners", rank)

    def next(self) -> int | None:
        """The rank to average with next; None for no average now."""
        if not self._neighbours:
            return None
        return self._neighbours[int(self._rng.integers(len(self._neighbours)))]

    def state(self) -> dict[str, Any]:
        """Position in the random stream."""
        return dict(self._rng.bit_generator.state)

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a position in the random stream."""
        self._rng.bit_generator.state = state
