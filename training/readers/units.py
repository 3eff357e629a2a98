"""Work units: parts of the epochs that workers draw one after the other, by tickets.

Ticket 0 is the first unit of the run, the last ticket ends the last epoch. A worker draws a ticket whenever it is
ready, so a fast one draws more, and nobody waits for a slow one. The order of the rows depends on seed and epoch only.
So the units up to any ticket are the same rows, however many workers draw them and however large the units are.

Long before the end of the run a unit is a row group or several. Towards the end units shrink to single steps, so that
the workers finish together (guided self-scheduling, Polychronopoulos and Kuck 1987).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from training.errors import ShardError
from training.readers.sharding import Assignment, RowRange, even_parts, reading_order

#: Units per worker into which the rest of the run would divide: a unit of a worker that is ten times slower, and the
#: one that it reads ahead, then take less time than the others need for the rest.
_UNITS_LEFT: Final = 32
#: Units per worker in an epoch, unless row groups are larger.
_UNITS_AN_EPOCH: Final = 8
#: Parts into which a row group is divided at most, but for whole batches: a reader without a cache reads all of it for
#: each.
_UNITS_A_GROUP: Final = 16
#: Steps of a row group from which on units are whole groups, if they may be so long: its last step may have few rows.
_FEWEST_BATCHES: Final = 8


class Position(NamedTuple):
    """A place between two units."""

    epoch: int
    row: int
    """Number of rows of the epoch before it."""


class Unit(NamedTuple):
    """The work of one ticket."""

    assignment: Assignment
    start: Position


class Boundary(NamedTuple):
    """A place at which every worker writes a checkpoint: the beginning of an epoch, or a number of steps within it."""

    ticket: int
    """The first ticket behind it."""
    position: Position


class UnitQueue:
    """The units from some place to the end of the run, in the order of their tickets; a worker asks for rising tickets.

    `rows`: rows of each row group. `rows_between`: number of rows between two boundaries within an epoch; None for
    boundaries between epochs only.

    Examples:
        >>> queue = UnitQueue([4, 4], world_size=1, batch_size=4, seed=1, epochs=1)
        >>> [unit.assignment.row_ranges for unit in map(queue.take, range(3)) if unit]
        [[RowRange(group=1, start=0, stop=4)], [RowRange(group=0, start=0, stop=4)]]
        >>> queue.passed()
        [Boundary(ticket=2, position=Position(epoch=1, row=0))]
    """

    def __init__(
        self,
        rows: Sequence[int],
        *,
        world_size: int,
        batch_size: int,
        seed: int,
        epochs: int,
        start: Position = Position(0, 0),  # noqa: B008 - a tuple
        rows_between: int | None = None,
    ) -> None:
        if not sum(rows):
            raise ShardError(
                "the training split has no events. Make the features again, from more events."
            )
        self._fixed = (tuple(rows), world_size, batch_size, seed, epochs, rows_between)
        self._epochs, self._start = epochs, start
        self._units: tuple[Unit, ...] = ()
        self._first = 0
        self._next_epoch = start.epoch
        self._boundaries: list[Boundary] = []
        self._asked = -1

    def take(self, ticket: int) -> Unit | None:
        """The unit of a ticket; None behind the last."""
        while ticket >= self._first + len(self._units) and self._next_epoch <= self._epochs:
            self._enter_epoch()
        self._asked = ticket
        place = ticket - self._first
        return self._units[place] if place < len(self._units) else None

    def passed(self) -> list[Boundary]:
        """Boundaries up to the ticket of the last call of `take` that were not returned before."""
        found = [each for each in self._boundaries if each.ticket <= self._asked]
        self._boundaries = self._boundaries[len(found) :]
        return found

    def _enter_epoch(self) -> None:
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        row = self._start.row if epoch == self._start.epoch else 0
        self._first += len(self._units)
        if epoch > self._start.epoch:
            self._boundaries.append(Boundary(self._first, Position(epoch, 0)))
        self._units, places = _units(*self._fixed, epoch, row) if epoch < self._epochs else ((), ())
        self._boundaries += [
            Boundary(self._first + place, self._units[place].start) for place in places
        ]


# Cached, since thousands of simulated workers draw from the same units.
@lru_cache(maxsize=4)
def _units(
    rows: tuple[int, ...],
    world_size: int,
    batch_size: int,
    seed: int,
    epochs: int,
    rows_between: int | None,
    epoch: int,
    first_row: int,
) -> tuple[tuple[Unit, ...], tuple[int, ...]]:
    """The units of an epoch from a row on, and the places of those at which another checkpoint is due."""
    num_rows = sum(rows)
    longest = max(*rows, num_rows // (_UNITS_AN_EPOCH * world_size))
    found: list[Unit] = []
    row_ranges: list[RowRange] = []
    row, held = 0, 0

    def emit() -> None:
        nonlocal held
        if row_ranges:
            sizes = _kept_parts(held, -(-held // batch_size))
            found.append(
                Unit(Assignment(epoch, row_ranges.copy(), sizes), Position(epoch, row - held))
            )
            row_ranges.clear()
            held = 0

    for group in reading_order(len(rows), seed=seed, epoch=epoch):
        done = max(0, min(first_row - row, rows[group]))
        row += done
        left = rows[group] - done
        if not left:
            continue
        share_left = ((epochs - epoch) * num_rows - row) // (_UNITS_LEFT * world_size)
        wanted = max(rows[group] // _UNITS_A_GROUP, min(longest, share_left))
        if wanted >= rows[group] >= _FEWEST_BATCHES * batch_size:
            if held + left > wanted:
                emit()
        else:
            # Whole batches: one and a half would take two steps.
            wanted = max(1, round(wanted / batch_size)) * batch_size
        while done < rows[group]:
            if held >= wanted:
                emit()
            stop = min(rows[group], done + max(wanted - held, 1))
            row_ranges.append(RowRange(group, done, stop))
            held, row, done = held + stop - done, row + stop - done, stop
    emit()
    parts = np.array([first_row, *(unit.start.row for unit in found)]) // (rows_between or num_rows)
    return tuple(found), tuple(np.flatnonzero(np.diff(parts)).tolist())


# Cached, since most units are of a few sizes.
_kept_parts = lru_cache(maxsize=256)(even_parts)
