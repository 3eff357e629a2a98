"""Work units: every event once an epoch, for any number of workers, unit size and start."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from feature_datasets import write_dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from training.errors import ShardError
from training.readers.batch import BatchLayout, Columns
from training.readers.reader import open_reader
from training.readers.sharding import assign_rows, count_rows, plan_epoch, shuffled
from training.readers.streamed import StreamedReader, petastorm_groups
from training.readers.units import Boundary, Position, Unit, UnitQueue

GROUP_ROWS = st.lists(st.integers(1, 50), min_size=1, max_size=20)


def open_queue(group_rows: Sequence[int], **options: Any) -> UnitQueue:
    defaults = {"world_size": 3, "batch_size": 8, "seed": 1, "epochs": 3}
    return UnitQueue(group_rows, **(defaults | options))


def list_units(queue: UnitQueue) -> list[Unit]:
    units: list[Unit] = []
    while (unit := queue.unit(len(units))) is not None:
        units.append(unit)
    return units


def list_events(units: Sequence[Unit], group_rows: Sequence[int]) -> list[tuple[int, int, int]]:
    """Epoch, row group and row of all events, in the order of the tickets."""
    events: list[tuple[int, int, int]] = []
    for unit in units:
        epoch = unit.assignment.epoch
        for group, start, stop in unit.assignment.row_ranges:
            order = shuffled(group_rows[group], seed=1, epoch=epoch, group=group)
            events += [(epoch, group, row) for row in order[start:stop].tolist()]
    return events


@settings(max_examples=60, deadline=None)
@given(GROUP_ROWS, st.integers(1, 8), st.integers(1, 30), st.data())
def test_every_event_comes_once_an_epoch_in_the_same_order_from_any_start(
    group_rows: list[int], world_size: int, batch_size: int, data: st.DataObject
) -> None:
    queue = open_queue(group_rows, world_size=world_size, batch_size=batch_size)
    units = list_units(queue)
    events = list_events(units, group_rows)
    start = data.draw(st.integers(0, len(events) - 1))
    epoch, row = divmod(start, sum(group_rows))
    other_world_size = data.draw(st.integers(1, 8))
    resumed_queue = open_queue(group_rows, world_size=other_world_size, start=Position(epoch, row))
    resumed_units = list_units(resumed_queue)

    expected_events = []
    for epoch in range(3):
        for group, num_rows in enumerate(group_rows):
            expected_events += [(epoch, group, row) for row in range(num_rows)]
    assert sorted(events) == expected_events
    assert list_events(resumed_units, group_rows) == events[start:]
    for unit in (*units, *resumed_units):
        num_rows = count_rows(unit.assignment.row_ranges)
        assert num_rows > 0
        assert sum(unit.assignment.sizes) == num_rows
    for unit in units:
        assert max(unit.assignment.sizes) <= batch_size
    starts = [unit.start for unit in units]
    assert starts == sorted(starts)


def test_a_single_worker_reads_in_the_order_of_an_epoch_of_equal_shares() -> None:
    group_rows = [40] * 8
    units = list_units(open_queue(group_rows, world_size=1, batch_size=10))

    for epoch in range(3):
        groups: list[int] = []
        for unit in units:
            if unit.assignment.epoch == epoch:
                groups += unit.assignment.groups
        plan = plan_epoch(group_rows, world_size=1, batch_size=10, seed=1, epoch=epoch)
        assert list(dict.fromkeys(groups)) == assign_rows(plan, rank=0, epoch=epoch).groups


def test_units_are_row_groups_first_and_small_parts_of_one_at_the_end() -> None:
    units = list_units(open_queue([1000] * 40, world_size=4, batch_size=50, epochs=10))

    unit_sizes = [sum(unit.assignment.sizes) for unit in units]
    assert unit_sizes[0] >= 1000
    first_epoch = [unit.assignment for unit in units if unit.assignment.epoch == 0]
    assert {len(assignment.row_ranges) for assignment in first_epoch} == {1}
    # A reader without a cache reads a row group 16 times at most, but for whole steps.
    assert max(unit_sizes[-8:]) <= 1000 / 16
    last_epoch = [unit.assignment for unit in units if unit.assignment.epoch == 9]
    reads_of_group = Counter(assignment.groups[0] for assignment in last_epoch)
    assert max(reads_of_group.values()) <= 24


def test_a_slow_worker_delays_the_end_by_at_most_a_twentieth_of_the_run() -> None:
    units = list_units(open_queue([1000] * 40, world_size=4, batch_size=50, epochs=10))

    unit_sizes = np.array([sum(unit.assignment.sizes) for unit in units])
    remaining_rows = np.cumsum(unit_sizes[::-1])[::-1]
    # The worker is ten times slower and holds two units, while three others do the remaining rows.
    slow_time = 2 * 10 * unit_sizes
    others_time = remaining_rows / 3
    # At the end, of two units of a sixteenth of a row group.
    last_time = 2 * 10 * 1000 // 16
    longest_time = np.maximum(0.7 * others_time, last_time)
    assert (slow_time <= longest_time).all()


@pytest.mark.parametrize(
    ("group_rows", "world_size", "batch_size", "epochs"),
    [
        ([267] * 8, 4, 16, 4),
        ([52] * 8, 4, 32, 400),
        ([210] * 2, 2, 32, 12),
        ([1292] * 16, 16, 32, 30),
    ],
)
def test_units_take_hardly_more_steps_than_full_batches(
    group_rows: list[int], world_size: int, batch_size: int, epochs: int
) -> None:
    queue = open_queue(group_rows, world_size=world_size, batch_size=batch_size, epochs=epochs)

    num_steps = sum(len(unit.assignment.sizes) for unit in list_units(queue))

    assert num_steps <= 1.01 * epochs * math.ceil(sum(group_rows) / batch_size)


def test_small_row_groups_are_joined_into_full_steps() -> None:
    units = list_units(open_queue([5] * 64, world_size=2, batch_size=20))

    assert {size for unit in units for size in unit.assignment.sizes} == {20}


def test_every_boundary_is_crossed_once() -> None:
    queue = open_queue([40] * 8, batch_size=10, rows_between_checkpoints=100)
    boundaries: list[Boundary] = []
    for ticket in range(200):
        queue.unit(ticket)
        boundaries += queue.pop_boundaries()

    positions = [boundary.position for boundary in boundaries]
    assert positions == sorted(set(positions))
    epoch_ends = [position for position in positions if position.num_done == 0]
    assert epoch_ends == [(1, 0), (2, 0), (3, 0)]
    in_first_epoch = [position for position in positions if position.epoch == 0]
    assert in_first_epoch == [(0, 100), (0, 200), (0, 300)]

    slow_queue = open_queue([40] * 8, batch_size=10, rows_between_checkpoints=100)
    slow_queue.unit(40)
    crossed = slow_queue.pop_boundaries()
    slow_queue.unit(10_000)
    assert [*crossed, *slow_queue.pop_boundaries()] == boundaries


def test_a_split_without_events_is_named() -> None:
    with pytest.raises(ShardError, match="training split has no events"):
        open_queue([])


def test_petastorm_reads_a_row_group_once_for_consecutive_units(tmp_path: Path) -> None:
    dataset = write_dataset(
        tmp_path / "data", rows={"train": [16, 16, 16], "val": [3], "test": [3]}
    )
    layout = BatchLayout.for_inputs(dataset, ["hlf"], dtype=torch.float32, device="cpu")
    read_groups: list[int] = []

    def read_and_note(split: str, groups: Sequence[int]) -> Iterator[Columns]:
        columns_of_groups = petastorm_groups(dataset, layout.fields, split, groups)
        for group, columns in zip(groups, columns_of_groups, strict=True):
            read_groups.append(group)
            yield columns

    streamed = StreamedReader(dataset, layout, seed=1, read_groups=read_and_note)
    in_memory = open_reader(dataset, ["hlf"], kind="arrow", seed=1)
    queue = open_queue([16, 16, 16], world_size=2, batch_size=2, epochs=2)
    assignments = [unit.assignment for unit in list_units(queue)]
    assert len(assignments) > 20

    for index, assignment in enumerate(assignments):
        batches = streamed.train_batches(assignment)
        if index % 4 and index + 1 < len(assignments):
            streamed.prefetch(assignments[index + 1])
        for batch, expected in zip(batches, in_memory.train_batches(assignment), strict=True):
            assert torch.equal(batch.inputs[0], expected.inputs[0])
            assert torch.equal(batch.labels, expected.labels)

    groups = itertools.chain.from_iterable(assignment.groups for assignment in assignments)
    groups_without_repeats = [group for group, _ in itertools.groupby(groups)]
    # The second unit may be read ahead before the first group is in memory.
    first = groups_without_repeats[0]
    assert read_groups in (groups_without_repeats, [first, *groups_without_repeats])
