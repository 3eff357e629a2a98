"""Gradient dropping: only the elements of large magnitude are sent (Aji and Heafield 2017; Neckermann 2017, 3.8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from training.transports.basics import Vector

#: The threshold is that of a sample, since the exact one takes as long as a sort.
_SAMPLED: Final = 100_000
#: Of an index in a message.
INDEX_BYTES: Final = 4


def largest(values: Vector, drop_rate: float) -> Vector:
    """Indices of the elements of largest magnitude, in ascending order.

    Args:
        values: (n,).
        drop_rate: Fraction of the elements to leave out, below 1. Elements as large as the threshold are left out too.

    Examples:
        >>> largest(np.array([0.1, -3.0, 2.0, 0.0]), 0.5).tolist()
        [1, 2]
        >>> largest(np.array([0.1, -3.0]), 0.0).tolist()
        [0, 1]
    """
    magnitudes = np.abs(values)
    sample = magnitudes[:: -(-len(values) // _SAMPLED) or 1]
    last_dropped = int(len(sample) * drop_rate) - 1
    if last_dropped < 0:
        return np.arange(len(values), dtype=np.int32)
    threshold = np.partition(sample, last_dropped)[last_dropped]
    return np.flatnonzero(magnitudes > threshold).astype(np.int32)


class Dropper:
    """Sends the large elements of a sum, and keeps the others for later: sent + residual = sum of all that came.

    Args:
        residual: (n,) begins at 0; what is not yet sent.
        bounds: Where the shards begin, and n; each has a threshold of its own.
        drop_rate: Fraction of the elements to keep back.

    Examples:
        >>> dropper = Dropper(np.zeros(4), [0, 2, 4], 0.5)
        >>> dropper.take(np.array([1.0, 5.0, 3.0, 2.0]))[0].tolist(), dropper.residual.tolist()
        ([1, 2], [1.0, 0.0, 0.0, 2.0])
    """

    def __init__(self, residual: Vector, bounds: Sequence[int], drop_rate: float) -> None:
        self.residual = residual
        self._bounds, self._drop_rate = bounds, drop_rate

    def take(self, gradient: Vector) -> tuple[Vector, Vector]:
        """Add a gradient to the residual; returns the indices and values to send, which leave the residual."""
        self.residual += gradient
        parts = zip(self._bounds[:-1], self._bounds[1:], strict=True)
        chosen = [largest(self.residual[start:stop], self._drop_rate) + start for start, stop in parts]
        indices = np.concatenate(chosen).astype(np.int32)
        values = self.residual[indices]
        self.residual[indices] = 0
        return indices, values


def update_view(view: Vector, values: Vector, drop_rate: float) -> int:
    """Bring a client's view of a shard nearer to its values, where the difference is large; returns how many elements.

    The view and what is not yet told, values - view, always add up to the values.

    Args:
        view: (n,) what the client has; gets the largest differences.
        values: (n,) the shard.
        drop_rate: Fraction of the elements that are left as they are.

    Examples:
        >>> view = np.zeros(3)
        >>> update_view(view, np.array([4.0, 1.0, -2.0]), 0.6), view.tolist()
        (2, [4.0, 0.0, -2.0])
    """
    indices = largest(values - view, drop_rate)
    view[indices] = values[indices]
    return len(indices)
