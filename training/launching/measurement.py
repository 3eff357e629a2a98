"""What a test of the messages between ranks measures. No compiled kernels: launchers read it."""

from __future__ import annotations

from typing import Final, NamedTuple

ALL_REDUCE: Final = "all-reduce"
PUSH: Final = "push"


class Measurement(NamedTuple):
    """The time of an operation between ranks."""

    operation: str
    """`ALL_REDUCE`, `PUSH`, or the way of a pairwise average: `memory` or `sockets`.

    A push goes to a shard, a part of a server's vector, on another rank.
    """
    workers: int
    nbytes: int
    """Size of the vector."""
    seconds: float
    """Median of the repetitions, of the slowest rank [s]."""
