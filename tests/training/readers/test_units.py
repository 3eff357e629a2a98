"""Work units: every event once an epoch, whatever the workers, the size of the units and the place of the start."""

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
from training.readers.sharding import assign_rows, plan_epoch, shuffled
from training.readers.streamed import StreamedReader, petastorm_groups
from training.readers.units import Position, Unit, UnitQueue

row_groups = st.lists(st.integers(1, 50), min_size=1, max_size=20)


def queue_of(rows: Sequence[int], **chosen: Any) -> UnitQueue:
    return UnitQueue(rows, **({"world_size": 3, "batch_size": 8, "seed": 1, "epochs": 3} | chosen))


def all_units(queue: UnitQueue) -> list[Unit]:
    found: list[Unit] = []
    while (unit := queue.take(len(found))) is not None:
        found.append(unit)
    return found


def events(units: Sequence[Unit], rows: Sequence[int]) -> list[tuple[int, int, int]]:
    """Epoch, row group and row of all events, in the order of the tickets."""
    return [
        (unit.assignment.epoch, group, row)
        for unit in units
        for group, start, stop in unit.assignment.row_ranges
        for row in shuffled(rows[group], seed=1, epoch=unit.assignment.epoch, group=group)[
            start:stop
        ].tolist()
    ]


@settings(max_examples=60, deadline=None)
@given(row_groups, st.integers(1, 8), st.integers(1, 30), st.data())
def test_every_event_comes_once_an_epoch_in_the_same_order_from_any_start(
    rows: list[int], world_size: int, batch_size: int, data: st.DataObject
) -> None:
    whole = all_units(queue_of(rows, world_size=world_size, batch_size=batch_size))
    expected = events(whole, rows)
    assert sorted(expected) == [
        (e, g, r) for e in range(3) for g, size in enumerate(rows) for r in range(size)
    ]
    place = data.draw(st.integers(0, len(expected) - 1))
    epoch, row = divmod(place, sum(rows))
    rest = all_units(
        queue_of(rows, world_size=data.draw(st.integers(1, 8)), start=Position(epoch, row))
    )
    assert events(rest, rows) == expected[place:]
    for unit in (*whole, *rest):
        held = sum(stop - start for _, start, stop in unit.assignment.row_ranges)
        assert sum(unit.assignment.sizes) == held > 0
    assert max(size for unit in whole for size in unit.assignment.sizes) <= batch_size
    assert [unit.start for unit in whole] == sorted(unit.start for unit in whole)


def test_a_single_worker_reads_in_the_order_of_an_epoch_of_equal_shares() -> None:
    rows = [40] * 8
    units = all_units(queue_of(rows, world_size=1, batch_size=10))
    for epoch in range(3):
        plan = plan_epoch(rows, world_size=1, batch_size=10, seed=1, epoch=epoch)
        row_ranges = [
            piece
            for unit in units
            if unit.assignment.epoch == epoch
            for piece in unit.assignment.row_ranges
        ]
        assert (
            list(dict.fromkeys(piece.group for piece in row_ranges))
            == assign_rows(plan, rank=0, epoch=epoch).groups
        )


def test_units_are_row_groups_first_and_small_parts_of_one_at_the_end() -> None:
    units = all_units(queue_of([1000] * 40, world_size=4, batch_size=50, epochs=10))
    rows = [sum(unit.assignment.sizes) for unit in units]
    assert rows[0] >= 1000
    # A reader without a cache reads a row group 16 times at most, but for whole steps.
    assert max(rows[-8:]) <= 1000 / 16
    assert (
        Counter(
            unit.assignment.row_ranges[0].group for unit in units if unit.assignment.epoch == 9
        ).most_common(1)[0][1]
        <= 24
    )
    assert {len(unit.assignment.row_ranges) for unit in units if unit.assignment.epoch == 0} == {1}
    # A worker that is ten times slower and holds two units keeps the others waiting for a twentieth of the run at most.
    left = np.cumsum(rows[::-1])[::-1]
    assert all(
        2 * 10 * size <= max(0.7 * after, 20 * 1000 // 16)
        for size, after in zip(rows, left / 3, strict=True)
    )


@pytest.mark.parametrize(
    ("rows", "world_size", "batch_size", "epochs"),
    [
        ([267] * 8, 4, 16, 4),
        ([52] * 8, 4, 32, 400),
        ([210] * 2, 2, 32, 12),
        ([1292] * 16, 16, 32, 30),
    ],
)
def test_units_took_a_fifth_more_steps_than_an_epoch_has_batches(
    rows: list[int], world_size: int, batch_size: int, epochs: int
) -> None:
    units = all_units(queue_of(rows, world_size=world_size, batch_size=batch_size, epochs=epochs))
    steps = sum(len(unit.assignment.sizes) for unit in units)
    assert steps <= 1.01 * epochs * math.ceil(sum(rows) / batch_size)


def test_small_row_groups_are_put_together_into_full_steps() -> None:
    units = all_units(queue_of([5] * 64, world_size=2, batch_size=20))
    assert {size for unit in units for size in unit.assignment.sizes} == {20}


def test_boundaries_are_passed_once_and_none_is_jumped_over() -> None:
    queue = queue_of([40] * 8, batch_size=10, rows_between=100)
    slow = queue_of([40] * 8, batch_size=10, rows_between=100)
    each = []
    for ticket in range(200):
        queue.take(ticket)
        each += queue.passed()
    slow.take(40)
    some = slow.passed()
    slow.take(10_000)
    assert [*some, *slow.passed()] == each
    positions = [tuple(boundary.position) for boundary in each]
    assert positions == sorted(set(positions))
    assert [position for position in positions if not position[1]] == [(1, 0), (2, 0), (3, 0)]
    assert [position for position in positions if not position[0]] == [(0, 100), (0, 200), (0, 300)]


def test_a_split_without_events_is_named() -> None:
    with pytest.raises(ShardError, match="training split has no events"):
        queue_of([])


def test_a_row_group_was_read_again_for_each_of_its_parts(tmp_path: Path) -> None:
    """Reading took most of the time of small units: sixteen parts of a row group were sixteen reads of all of it."""
    dataset = write_dataset(
        tmp_path / "data", rows={"train": [16, 16, 16], "val": [3], "test": [3]}
    )
    layout = BatchLayout.of(dataset, ["hlf"], dtype=torch.float32, device="cpu")
    read: list[int] = []

    def noted(split: str, groups: Sequence[int]) -> Iterator[Columns]:
        for group, columns in zip(
            groups, petastorm_groups(dataset, layout.fields, split, groups), strict=True
        ):
            read.append(group)
            yield columns

    reader = StreamedReader(dataset, layout, seed=1, row_groups=noted)
    other = open_reader(dataset, ["hlf"], kind="arrow", seed=1)
    units = all_units(queue_of([16, 16, 16], world_size=2, batch_size=2, epochs=2))
    shares = [unit.assignment for unit in units]
    assert len(shares) > 20
    for number, share in enumerate(shares):
        batches = reader.train_batches(share)
        if number % 4 and number + 1 < len(shares):
            reader.prefetch(shares[number + 1])
        for batch, expected in zip(batches, other.train_batches(share), strict=True):
            assert torch.equal(batch.inputs[0], expected.inputs[0])
            assert torch.equal(batch.labels, expected.labels)
    visited = [group for share in shares for group in share.groups]
    once = [group for group, _ in itertools.groupby(visited)]
    # The second unit may be read ahead before the first one is there.
    assert read in (once, [once[0], *once])
