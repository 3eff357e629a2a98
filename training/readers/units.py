"""Work units: parts of the epochs that workers draw one after the other, by tickets.

Ticket 0 is the first unit of the run, the last ticket ends the last epoch. A worker draws a ticket
whenever it is ready, so a fast one draws more, and nobody waits for a slow one. The order of the
rows depends on seed and epoch only. So the units up to any ticket are the same rows, however many
workers draw them and however large the units are.

Long before the end of the run a unit is a row group or several. Towards the end units shrink to
single steps, so that the workers finish together (guided self-scheduling, Polychronopoulos and Kuck
1987).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from training.errors import ShardError
from training.readers.sharding import Assignment, RowRange, even_parts, reading_order

#: Units per worker into which the remaining run would divide. Even a worker that is ten times
#: slower then finishes its unit, and the next one, before the others finish the run.
_REMAINING_UNITS: Final = 32
#: Units per worker in an epoch, unless row groups are larger.
_UNITS_PER_EPOCH: Final = 8
#: Largest number of units that a row group is cut into, before sizes are rounded to whole batches.
#: A reader without a cache reads the whole row group for each unit.
_UNITS_PER_GROUP: Final = 16
#: A row group of at least this number of steps is never cut if a unit may be so long. Its last step
#: may then have few rows, which matters little beside the other steps.
_MIN_STEPS_OF_GROUP: Final = 8


class Position(NamedTuple):
    """A place in the run."""

    epoch: int
    num_done: int
    """Finished rows of the epoch; its finished steps, if all workers take steps together."""


class Unit(NamedTuple):
    """The work of one ticket."""

    assignment: Assignment
    """The rows to train on, and their division into steps."""
    start: Position
    """The place in the run at which it begins."""


class Boundary(NamedTuple):
    """A place where every worker writes a checkpoint: the begin of an epoch, or within it."""

    ticket: int
    """The first ticket behind it."""
    position: Position


class UnitQueue:
    """The units from a position to the end of the run, in the order of their tickets.

    Each worker has such a queue, with equal content. It holds the units of one epoch at a time, so
    a worker must ask for rising tickets. It skips the tickets that other workers have drawn.

    `group_rows`: number of rows of each row group. `rows_between_checkpoints`: number of rows
    between two boundaries within an epoch; None for boundaries between epochs only.

    Examples:
        >>> queue = UnitQueue([4, 4], world_size=1, batch_size=4, seed=1, epochs=1)
        >>> [unit.assignment.row_ranges for unit in map(queue.unit, range(3)) if unit]
        [[RowRange(group=1, start=0, stop=4)], [RowRange(group=0, start=0, stop=4)]]
        >>> queue.pop_boundaries()
        [Boundary(ticket=2, position=Position(epoch=1, num_done=0))]
    """

    def __init__(
        self,
        group_rows: Sequence[int],
        *,
        world_size: int,
        batch_size: int,
        seed: int,
        epochs: int,
        start: Position = Position(0, 0),  # noqa: B008 - a tuple
        rows_between_checkpoints: int | None = None,
    ) -> None:
        if not sum(group_rows):
            raise ShardError(
                "the training split has no events. Make the features again, from more events."
            )
        self._plan = UnitPlan(tuple(group_rows), world_size, batch_size, seed, epochs)
        self._rows_between_checkpoints = rows_between_checkpoints
        self._start = start
        self._units: tuple[Unit, ...] = ()
        """Units of the present epoch."""
        self._first_ticket = 0
        """Ticket of the first of these units."""
        self._next_epoch = start.epoch
        self._boundaries: list[Boundary] = []
        """Boundaries that `pop_boundaries` has not returned yet."""
        self._last_ticket = -1
        """The ticket that was asked for last."""

    def unit(self, ticket: int) -> Unit | None:
        """Return the unit of a ticket, or None behind the end of the run.

        Epochs are entered, with their boundaries, until one has the ticket. `ticket` becomes the
        last one for `pop_boundaries`.
        """
        # The epoch behind the last has no units, but its begin is the last boundary of the run.
        while (
            ticket >= self._first_ticket + len(self._units)
            and self._next_epoch <= self._plan.epochs
        ):
            self._enter_next_epoch()
        self._last_ticket = ticket
        index = ticket - self._first_ticket
        return self._units[index] if index < len(self._units) else None

    def pop_boundaries(self) -> list[Boundary]:
        """Return the boundaries up to the last ticket that were not returned before, and drop them.

        The worker has passed them on the way to this ticket, also those of other workers' units.
        """
        crossed = [
            boundary for boundary in self._boundaries if boundary.ticket <= self._last_ticket
        ]
        self._boundaries = self._boundaries[len(crossed) :]
        return crossed

    def _enter_next_epoch(self) -> None:
        """Replace the units by those of the next epoch, and add its boundaries.

        The begin of each epoch is a boundary, but for the place where the queue begins.
        """
        epoch = self._next_epoch
        self._next_epoch += 1
        self._first_ticket += len(self._units)
        is_first = epoch == self._start.epoch
        first_row = self._start.num_done if is_first else 0
        if not is_first:
            self._boundaries.append(Boundary(self._first_ticket, Position(epoch, 0)))
        self._units = ()
        if epoch < self._plan.epochs:
            self._units = _plan_units(self._plan, epoch, first_row)
            indices = _checkpoint_units(
                self._plan, epoch, first_row, self._rows_between_checkpoints
            )
            for index in indices:
                ticket = self._first_ticket + index
                self._boundaries.append(Boundary(ticket, self._units[index].start))


class UnitPlan(NamedTuple):
    """The numbers that the division of all epochs into units depends on."""

    group_rows: tuple[int, ...]
    world_size: int
    batch_size: int
    seed: int
    epochs: int

    def unit_size(self, group: int, *, epoch: int, row: int) -> int:
        """Return the number of rows of a unit that begins in a row group.

        It is a share of the remaining rows of the run, so that units shrink towards the end. It is
        at most the largest row group, or an eighth of a worker's part of an epoch if that is more;
        and at least a sixteenth of the row group.

        `row`: number of rows of the epoch before the unit.
        """
        num_rows = sum(self.group_rows)
        longest = max(*self.group_rows, num_rows // (_UNITS_PER_EPOCH * self.world_size))
        remaining_rows = (self.epochs - epoch) * num_rows - row
        fair_share = remaining_rows // (_REMAINING_UNITS * self.world_size)
        return max(self.group_rows[group] // _UNITS_PER_GROUP, min(longest, fair_share))

    def round_to_batches(self, size: int) -> int:
        """Return the nearest size of whole batches, since part of a batch would take a step too."""
        return max(1, round(size / self.batch_size)) * self.batch_size


class _UnitBuilder:
    """Collects row ranges of an epoch into units: `add` any number of them, then `finish_unit`."""

    def __init__(self, plan: UnitPlan, epoch: int) -> None:
        self._plan = plan
        self._epoch = epoch
        self._row_ranges: list[RowRange] = []
        self.size = 0
        """Number of rows of the current unit."""
        self.row = 0
        """Number of rows of the epoch up to now."""
        self.units: list[Unit] = []

    def add(self, row_range: RowRange) -> None:
        """Add rows to the current unit."""
        self._row_ranges.append(row_range)
        self.size += row_range.stop - row_range.start
        self.row += row_range.stop - row_range.start

    def finish_unit(self) -> None:
        """End the current unit, divide it into even steps, and begin an empty one."""
        if self._row_ranges:
            num_steps = math.ceil(self.size / self._plan.batch_size)
            sizes = _cached_even_parts(self.size, num_steps)
            assignment = Assignment(self._epoch, self._row_ranges, sizes)
            start = Position(self._epoch, self.row - self.size)
            self.units.append(Unit(assignment, start))
        self._row_ranges = []
        self.size = 0


# Cached, since thousands of simulated workers draw from the same units.
@lru_cache(maxsize=4)
def _plan_units(plan: UnitPlan, epoch: int, first_row: int) -> tuple[Unit, ...]:
    """Divide an epoch into units, from row `first_row` on.

    The row groups are taken in the order of the epoch. Where units are long, a unit is one or
    several whole row groups. Elsewhere row groups are cut into units of whole batches.
    """
    builder = _UnitBuilder(plan, epoch)
    for group in reading_order(len(plan.group_rows), seed=plan.seed, epoch=epoch):
        group_rows = plan.group_rows[group]
        # Rows before `first_row` are left out.
        start = max(0, min(first_row - builder.row, group_rows))
        builder.row += start
        if start == group_rows:
            continue
        unit_size = plan.unit_size(group, epoch=epoch, row=builder.row)
        if unit_size >= group_rows >= _MIN_STEPS_OF_GROUP * plan.batch_size:
            # The row group stays whole, and begins a new unit if it no longer fits into this one.
            if builder.size + group_rows - start > unit_size:
                builder.finish_unit()
        else:
            unit_size = plan.round_to_batches(unit_size)
        while start < group_rows:
            if builder.size >= unit_size:
                builder.finish_unit()
            stop = min(group_rows, start + max(unit_size - builder.size, 1))
            builder.add(RowRange(group, start, stop))
            start = stop
    builder.finish_unit()
    return tuple(builder.units)


@lru_cache(maxsize=4)
def _checkpoint_units(
    plan: UnitPlan, epoch: int, first_row: int, rows_between: int | None
) -> tuple[int, ...]:
    """Return the indices of the units before which checkpoints are due.

    The multiples of `rows_between` divide the epoch. A checkpoint is due before the first unit that
    begins at or behind each multiple; one for several multiples within one unit.
    """
    if rows_between is None:
        return ()
    indices: list[int] = []
    num_crossed = first_row // rows_between
    for index, unit in enumerate(_plan_units(plan, epoch, first_row)):
        multiple = unit.start.num_done // rows_between
        if multiple > num_crossed:
            indices.append(index)
            num_crossed = multiple
    return tuple(indices)


# Cached, since most units are of a few sizes.
_cached_even_parts = lru_cache(maxsize=256)(even_parts)
