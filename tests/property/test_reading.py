"""Readers deliver the planned rows in order, for any row groups, ranks and batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from features.columns import hlf_names
from features.dataset import FeatureDataset, RowGroup
from training.readers.batch import Batch, BatchLayout, Columns
from training.readers.memory import MemoryReader, MemoryRows
from training.readers.reader import Reader
from training.readers.sharding import assign_rows, plan_epoch, shuffled, step_bounds
from training.readers.streamed import StreamedReader

row_groups = st.lists(st.integers(1, 12), min_size=1, max_size=10)
inputs = st.sampled_from([("hlf",), ("particles", "num_particles")])


class MadeRows:
    """A source that overwrites its arrays with the next row group, as its contract allows."""

    def __init__(self, rows: Sequence[int]) -> None:
        self._rows = rows
        self.read: list[int] = []

    def row_groups(self, split: str, groups: Sequence[int]) -> Iterator[Columns]:
        assert split in {"train", "val"}
        for group in groups:
            self.read.append(group)
            columns = self._columns(group)
            yield columns
            for values in columns.values():
                values[:] = -1

    def _columns(self, group: int) -> Columns:
        """The weight of an event is its number in the split."""
        start = sum(self._rows[:group])
        num_rows = self._rows[group]
        numbers = np.arange(start, start + num_rows)
        weights = numbers.astype(np.float32)
        hlf = np.repeat(weights[:, None], len(hlf_names()), axis=1)
        lengths = (numbers % 5).astype(np.int32)
        particles = np.zeros((num_rows, 801, 19), dtype=np.float32)
        for row in range(num_rows):
            particles[row, : lengths[row]] = numbers[row]
        return {
            "hlf": hlf,
            "particles": particles.reshape(num_rows, -1),
            "num_particles": lengths,
            "label": np.zeros(num_rows, dtype=np.int64),
            "weight": weights,
        }


def readers(rows: Sequence[int], layout: BatchLayout) -> Iterator[tuple[Reader, MadeRows]]:
    """A streamed and a memory reader, each with its source."""
    dataset = made_dataset(rows)
    streamed = MadeRows(rows)
    yield StreamedReader(dataset, layout, seed=5, read_groups=streamed.row_groups), streamed

    in_memory = MadeRows(rows)

    def read_group(group: int) -> Iterator[Columns]:
        return in_memory.row_groups("train", [group])

    train = MemoryRows.lazy(dataset, "train", layout, seed=5, read_group=read_group)
    val = MemoryRows.lazy(dataset, "val", layout, seed=5, read_group=read_group)
    yield MemoryReader(train, val), in_memory


def made_dataset(rows: Sequence[int]) -> FeatureDataset:
    groups = [RowGroup(f"part-{index}", count) for index, count in enumerate(rows)]
    return FeatureDataset(Path("made"), ["QCD"], [1.0], {"train": groups, "val": groups}, {})


def check_batch(batch: Batch, numbers: Sequence[int], names: tuple[str, ...]) -> None:
    assert batch.weights.tolist() == list(numbers)
    if names == ("hlf",):
        (hlf,) = batch.inputs
        num_features = len(hlf_names())
        assert hlf.tolist() == [[index] * num_features for index in numbers]
        return
    particles, lengths = batch.inputs
    expected_lengths = [index % 5 for index in numbers]
    assert lengths.tolist() == expected_lengths
    longest = max([1, *expected_lengths])
    assert particles.shape == (len(numbers), longest, 19)
    sums = particles[:, :, 0].sum(dim=1)
    assert sums.tolist() == [index * (index % 5) for index in numbers]


@settings(max_examples=80)
@given(row_groups, st.integers(1, 4), st.integers(1, 30), st.integers(0, 3), inputs, st.data())
def test_every_reader_delivers_the_planned_rows_from_any_step_on(
    rows: list[int],
    world_size: int,
    batch_size: int,
    epoch: int,
    names: tuple[str, ...],
    data: st.DataObject,
) -> None:
    world_size = min(world_size, sum(rows))
    plan = plan_epoch(rows, world_size=world_size, batch_size=batch_size, seed=5, epoch=epoch)
    rank = data.draw(st.integers(0, world_size - 1))
    first_step = data.draw(st.integers(0, plan.num_steps))
    order: list[int] = []
    for group, start, stop in plan.row_ranges[rank]:
        rows_of_group = shuffled(rows[group], seed=5, epoch=epoch, group=group)
        first_of_group = sum(rows[:group])
        order += (first_of_group + rows_of_group[start:stop]).tolist()
    bounds = step_bounds(len(order), plan.num_steps).tolist()
    share = assign_rows(plan, rank=rank, epoch=epoch, first_step=first_step)
    layout = BatchLayout(names, (1.0,), torch.float32, torch.device("cpu"))
    for reader, source in readers(rows, layout):
        batches = list(reader.train_batches(share))
        assert len(batches) == plan.num_steps - first_step
        for step, batch in enumerate(batches, first_step):
            start, stop = bounds[step : step + 2]
            check_batch(batch, order[start:stop], names)
        assert source.read == share.groups
