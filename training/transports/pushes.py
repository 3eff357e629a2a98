"""Pushes to the shards of a shared vector: what they change, and what they tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from training.errors import TrainingError
from training.transports.basics import Vector

#: Type of the indices of elements in a message.
INDEX: Final = np.dtype(np.int32)


@dataclass(slots=True)
class Shard:
    """A shard, or some elements of it, as a rule sees it during a push.

    A rule changes the arrays in place, or replaces them; the server then writes them back.
    """

    index: int
    """Number of the shard, from 0."""
    clock: int
    """Number of its pushes before this one, but for those that do not count."""
    elements: slice
    """Where its elements are in the worker's arrays: in a whole vector, or in the values at the
    push's indices."""
    vector: Vector
    """The shard's elements of the vector, or its values at the push's indices."""
    moments: Vector
    """(num_moments, n): what the rules store for each element of `vector`."""
    counts: bool = True
    """Whether the clock counts this push; a rule changes it."""


def copy_if_replaced(changed: Vector, vector: Vector, shard: int) -> None:
    """Copy an array that a rule may have put in place of another one into that one.

    Raises:
        TrainingError: It has another shape.
    """
    if changed is vector:
        return
    if np.shape(changed) != vector.shape:
        raise TrainingError(
            f"the rule of a push replaces an array of shard {shard} with the shape {vector.shape} "
            f"by one of shape {np.shape(changed)}. Change the elements in place, as by "
            f"`shard.vector += ...`"
        )
    vector[...] = changed


Rule = Callable[[Shard], None]
"""What a push does: it changes a shard's arrays in place, and may copy them.

It is called for one shard after the other.
"""


Answer = Callable[[slice, Vector], int]
"""Reads a whole shard after a push, given where its elements are in the vector, and the elements.

It returns the bytes that a server process would send for what it reads.
"""


class ShardSelection(NamedTuple):
    """The shards and elements that a rule sees and changes, and so what travels."""

    shard: int | Sequence[int] | None = None
    """The shard, or several in the order of the push; None: all."""
    indices: Vector | None = None
    """Elements of the vector, in ascending order; None: all."""
    answer: Answer | None = None
    """Sees all elements of each shard after the rule, under the same lock; None: nobody does. The
    worker reads the whole shard for this, since no server process makes the answer."""


ALL_SHARDS: Final = ShardSelection()


class ShardChange(NamedTuple):
    """What a push did to one shard."""

    clock_before: int
    clock_after: int
    is_accepted: bool
    """Whether the result of the rule was finite; else the shard stays as it was."""


class Push(NamedTuple):
    """A finished push, with the clocks of the shards that it tried to change, in their order.

    The clock of a shard is the number of pushes that have changed it.
    """

    clocks_before: Vector
    """(num_selected_shards,) number of pushes to each shard before this one."""
    clocks_after: Vector
    """Number of pushes including this one; as before where the push was refused, or does not
    count."""
    is_accepted: bool
    """Whether no shard refused it."""

    @property
    def is_counted(self) -> Vector:
        """(num_selected_shards,) whether the clock of a shard counts this push."""
        is_counted: Vector = self.clocks_after > self.clocks_before
        return is_counted

    def staleness(self, pulled_clocks: Vector) -> list[int]:
        """Return, for each shard that counted this push, the pushes by others since some clocks.

        `pulled_clocks`: the clocks of the same shards when this worker copied them, with no push of
        its own since.
        """
        num_pushes_since = self.clocks_before - pulled_clocks
        staleness: list[int] = num_pushes_since[self.is_counted].tolist()
        return staleness
