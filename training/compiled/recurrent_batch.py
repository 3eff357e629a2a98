"""A network with a GRU, and a batch of events, as the kernels take them."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from models.networks.lepton_frame import RotatedColumns
from training.compiled.kernel import Array, ColumnScaling, Integers
from training.compiled.perceptron import Perceptron

#: Number of particles, over steps and events, in one product of matrices; they fit into the cache.
_PARTICLES_AT_ONCE: Final = 1024


class Recurrent(NamedTuple):
    """Shape and scaling of a network."""

    width: int
    """Width of the GRU."""
    scaling: ColumnScaling
    """Scaling of the particles."""
    from_end: bool
    """Whether the last valid particle of an event is read first."""
    head: Perceptron
    """The dense layers over the GRU's state and the further features; it scales the latter."""
    rotated: RotatedColumns
    """Columns of the particles."""
    rotated_further: RotatedColumns
    """Columns of the further features."""


class ParticleEvents(NamedTuple):
    """Rows to pick batches from."""

    further: Array
    """(num_rows, num_further) raw features beside the particles; num_further may be 0."""
    particles: Array
    """(num_rows, longest, num_features) raw particles."""
    num_particles: Integers
    """(num_rows,) number of particles of each event."""
    labels: Integers
    """(num_rows,) classes."""
    weights: Array
    """(num_rows,) weights of the events."""


class Steps(NamedTuple):
    """The steps of a batch: at step s the GRU reads particle s of each event that has it."""

    rows: Integers
    """(num_events,) numbers of the events' rows, the longest event first."""
    counts: Integers
    """(num_steps + 1,) number of events that have a particle at each step; 0 at the end."""
    starts: Integers
    """(num_steps + 1,) number of particles of all events before each step."""
    blocks: Integers
    """First step of each block, and the number of steps at the end.

    A block is some consecutive steps whose particles fit into the processor's cache.
    """

    @property
    def num_particles(self) -> int:
        """Number of particles of all events, at least one for each."""
        return int(self.starts[-1])


def order_by_length(rows: Integers, num_particles: Integers) -> Steps:
    """Order the events of a batch by length, and divide the steps of the GRU into blocks.

    An event without particles counts as one particle, whose features are all 0.

    Args:
        rows: (num_events,) numbers of the rows of the batch.
        num_particles: (num_events,) number of particles of each event, in the order of `rows`.

    Examples:
        >>> steps = order_by_length(np.array([7, 8, 9]), np.array([0, 3, 2]))
        >>> [values.tolist() for values in steps]
        [[8, 9, 7], [3, 2, 1, 0], [0, 3, 5, 6], [0, 3]]
    """
    lengths = np.maximum(num_particles, 1)
    order = np.argsort(-lengths, kind="stable")
    num_steps = lengths.max()

    # An event has ended before step s if its length is at most s.
    ascending_lengths = lengths[order[::-1]]
    num_ended = np.searchsorted(ascending_lengths, np.arange(num_steps + 1), side="right")
    counts = len(rows) - num_ended
    starts = np.concatenate([[0], np.cumsum(counts[:-1])])

    # A block begins at the first step that reaches another multiple of _PARTICLES_AT_ONCE.
    multiples = np.arange(0, starts[-1], _PARTICLES_AT_ONCE)
    first_steps = np.searchsorted(starts, multiples)
    blocks = np.unique([*first_steps, num_steps])
    return Steps(rows[order], counts, starts, blocks)
