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

#: Units per worker into which the remaining run would divide. Even a worker that is ten times slower
#: then finishes its unit, and the next one, before the others finish the run.
_REMAINING_UNITS: Final = 32
#: Units per worker in an epoch, unless row groups are larger.
_UNITS_PER_EPOCH: Final = 8
#: Largest number of parts of a row group, but for whole batches: a reader without a cache reads all
#: of it for each.
_UNITS_PER_GROUP: Final = 16
#: A row group of this number of steps is a whole unit if it may be so long; its last step may have few rows.
_MIN_STEPS_OF_GROUP: Final = 8


class Position(NamedTuple):
    """A place in the run."""

    epoch: int
    num_done: int
    """Finished rows of the epoch; its finished steps, if all workers take steps together."""


class Unit(NamedTuple):
    """The work of one ticket."""

    assignment: Assignment
    start: Position


class Boundary(NamedTuple):
    """A place where every worker writes a checkpoint: the begin of an epoch, or within it."""

    ticket: int
    """The first ticket behind it."""
    position: Position


class UnitQueue:
    """The units from a position to the end of the run, in the order of their tickets.

    A worker asks for rising tickets.

    `group_rows`: rows of each row group. `rows_between_checkpoints`: number of rows between two
    boundaries within an epoch; None for boundaries between epochs only.

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
        self._first_ticket = 0
        self._next_epoch = start.epoch
        self._boundaries: list[Boundary] = []
        self._last_ticket = -1

    def unit(self, ticket: int) -> Unit | None:
        """The unit of a ticket; None behind the last."""
        while (
            ticket >= self._first_ticket + len(self._units)
            and self._next_epoch <= self._plan.epochs
        ):
            self._enter_next_epoch()
        self._last_ticket = ticket
        index = ticket - self._first_ticket
        return self._units[index] if index < len(self._units) else None

    def pop_boundaries(self) -> list[Boundary]:
        """Boundaries up to the last ticket that were not returned before."""
        crossed = [
            boundary for boundary in self._boundaries if boundary.ticket <= self._last_ticket
        ]
        self._boundaries = self._boundaries[len(crossed) :]
        return crossed

    def _enter_next_epoch(self) -> None:
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
        """Number of rows of a unit that begins in a row group, at a row of an epoch."""
        num_rows = sum(self.group_rows)
        longest = max(*self.group_rows, num_rows // (_UNITS_PER_EPOCH * self.world_size))
        remaining_rows = (self.epochs - epoch) * num_rows - row
        fair_share = remaining_rows // (_REMAINING_UNITS * self.world_size)
        return max(self.group_rows[group] // _UNITS_PER_GROUP, min(longest, fair_share))

    def round_to_batches(self, size: int) -> int:
        """The nearest size of whole batches: one and a half would take two steps."""
        return max(1, round(size / self.batch_size)) * self.batch_size


class _UnitBuilder:
    """Collects row ranges of an epoch until they are a unit."""

    def __init__(self, plan: UnitPlan, epoch: int) -> None:
        self._plan = plan
        self._epoch = epoch
        self._row_ranges: list[RowRange] = []
        self.size = 0
        """Rows of the current unit."""
        self.row = 0
        """Rows of the epoch up to now."""
        self.units: list[Unit] = []

    def add(self, row_range: RowRange) -> None:
        self._row_ranges.append(row_range)
        self.size += row_range.stop - row_range.start
        self.row += row_range.stop - row_range.start

    def finish_unit(self) -> None:
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
    """The units of an epoch from a row on."""
    builder = _UnitBuilder(plan, epoch)
    for group in reading_order(len(plan.group_rows), seed=plan.seed, epoch=epoch):
        group_rows = plan.group_rows[group]
        start = max(0, min(first_row - builder.row, group_rows))
        builder.row += start
        if start == group_rows:
            continue
        unit_size = plan.unit_size(group, epoch=epoch, row=builder.row)
        if unit_size >= group_rows >= _MIN_STEPS_OF_GROUP * plan.batch_size:
            # A unit of whole row groups.
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
    """Indices of the units that begin behind another multiple of the rows between checkpoints."""
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
