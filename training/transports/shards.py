"""How a vector divides into shards, and who owns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from training.transports.basics import Vector, is_finite

#: Name of the segment with the shard's part of the vector; further segments hold state of the rules.
VECTOR: Final = "vector"


@dataclass(slots=True)
class Shard:
    """A shard, or some elements of it, as a rule sees it: arrays to change in place."""

    number: int
    """Number of the shard."""
    clock: int
    """Number of its pushes before this one, but for those that do not count."""
    part: slice
    """Where its elements are in the worker's arrays: in a whole vector, or in the values at the push's indices."""
    vector: Vector
    """The shard's part of the vector, or its values at the push's indices."""
    segments: dict[str, Vector]
    """Further segments by name, element by element beside `vector`: momentum, moments, ..."""
    counts: bool = True
    """Whether the clock counts this push; a rule changes it."""

    def is_finite(self) -> bool:
        """Whether all its arrays are."""
        return all(each.dtype.kind != "f" or is_finite(each) for each in (self.vector, *self.segments.values()))


def shard_slices(size: int, shards: int) -> list[slice]:
    """Where the shards of a vector are: equal sizes, but for one element.

    Examples:
        >>> shard_slices(8, 3)
        [slice(0, 2, None), slice(2, 5, None), slice(5, 8, None)]
    """
    bounds = [size * shard // shards for shard in range(shards + 1)]
    return [slice(start, stop) for start, stop in pairwise(bounds)]


class Layout:
    """The division of a vector into shards of equal size, but for one element.

    Owners follow each other like the shards, so that few shards are on many hosts.

    Args:
        vector: The vector.
        shards: Number of shards.
        segments: Further segments of each shard by name, with their initial value.
        world_size: Number of workers.

    Examples:
        >>> layout = Layout(np.zeros(8), 3, {"momentum": 0.0}, world_size=2)
        >>> layout.bounds, [layout.owner(shard) for shard in range(3)]
        ([0, 2, 5, 8], [0, 0, 1])
    """

    def __init__(self, vector: Vector, shards: int, segments: Mapping[str, float], *, world_size: int = 1) -> None:
        if vector.ndim != 1 or shards < 1 or VECTOR in segments:
            raise AssertionError(f"no server of shape {vector.shape} in {shards} shards with segments {[*segments]}")
        self.shards = shards
        self.initial = {VECTOR: 0.0, **segments}
        self.names = tuple(self.initial)
        self.dtype = vector.dtype
        self.bounds: list[int] = [0, *(each.stop for each in shard_slices(vector.size, shards))]
        self._world_size = world_size

    def owner(self, shard: int) -> int:
        """The rank that owns a shard."""
        return shard * self._world_size // self.shards

    def content(self, shard: int, vector: Vector) -> dict[str, Vector]:
        """The initial segments of a shard."""
        own = vector[self.bounds[shard] : self.bounds[shard + 1]].copy()
        return {name: own if name == VECTOR else np.full_like(own, value) for name, value in self.initial.items()}

    def size(self, shard: int) -> int:
        """Number of elements of a shard."""
        return self.bounds[shard + 1] - self.bounds[shard]

    def part(self, shard: int, indices: Vector | None) -> slice:
        """Where a shard is in the vector, or in sorted indices of the vector.

        Examples:
            >>> Layout(np.zeros(8), 2, {}, world_size=1).part(1, np.array([1, 4, 7]))
            slice(1, 3, None)
        """
        start, stop = self.bounds[shard], self.bounds[shard + 1]
        if indices is None:
            return slice(start, stop)
        first, last = np.searchsorted(indices, (start, stop))
        return slice(int(first), int(last))

    def within(self, shard: int, indices: Vector | None) -> Vector | None:
        """Those of some indices that are in a shard, counted from its beginning; None: all elements."""
        if indices is None:
            return None
        return indices[self.part(shard, indices)] - self.bounds[shard]
