"""All readers against each other and against pyarrow."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from feature_datasets import write_dataset
from ranks import wait_until

from features.columns import hlf_names
from features.dataset import FeatureDataset, RowGroup
from features.matrices import model_inputs
from training.errors import DamagedDatasetError, TrainingError
from training.readers import batch as batch_module
from training.readers import memory
from training.readers.batch import Batch, BatchLayout
from training.readers.memory import MemoryRows
from training.readers.reader import Reader, open_reader
from training.readers.sharding import Assignment, PreviousWorkers, assign_rows, plan_epoch

ROWS = {"train": [11, 11, 11, 11, 5], "val": [7, 7, 3], "test": [4]}
INPUTS = [("hlf",), ("particles", "num_particles"), ("hlf", "particles", "num_particles")]

each_reader = pytest.mark.parametrize("reader_kind", ["petastorm", "arrow"])
HlfRow = tuple[float, ...]
"""The high-level features, the label and the weight of an event."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    folder = tmp_path_factory.mktemp("reader") / "a path with spaces"
    return write_dataset(folder, rows=ROWS, class_weights=(2.0, 1.0, 0.5), max_particles=200)


def assign_epoch(*, rank: int = 0, world_size: int = 1, batch_size: int = 4) -> Assignment:
    """The rows of a rank in the first epoch."""
    plan = plan_epoch(ROWS["train"], world_size=world_size, batch_size=batch_size, seed=1, epoch=0)
    return assign_rows(plan, rank=rank, epoch=0)


def val_batches(reader: Reader, *, rank: int = 0, world_size: int = 1) -> list[Batch]:
    return list(reader.val_batches(rank=rank, world_size=world_size))


def hlf_rows(batches: list[Batch]) -> list[HlfRow]:
    rows: list[HlfRow] = []
    for batch in batches:
        features = batch.inputs[0].tolist()
        labels = batch.labels.tolist()
        weights = batch.weights.tolist()
        for hlf, label, weight in zip(features, labels, weights, strict=True):
            rows.append((*hlf, label, round(weight, 6)))
    return rows


def count_rows_in_files(dataset: FeatureDataset, split: str) -> Counter[HlfRow]:
    """The rows of a split as pyarrow reads them."""
    rows: Counter[HlfRow] = Counter()
    for path in dataset.files(split):
        for row in pq.read_table(path).to_pylist():
            weight = row["weight"] * dataset.class_weights[row["label"]]
            hlf = [row[name] for name in hlf_names()]
            rows[(*hlf, row["label"], round(weight, 6))] += 1
    return rows


def list_tensors(batch: Batch) -> tuple[torch.Tensor, ...]:
    return (*batch.inputs, batch.labels, batch.weights)


def assert_same(batches: list[Batch], expected_batches: list[Batch]) -> None:
    for batch, expected_batch in zip(batches, expected_batches, strict=True):
        tensors = zip(list_tensors(batch), list_tensors(expected_batch), strict=True)
        for tensor, expected in tensors:
            assert tensor.dtype == expected.dtype
            assert torch.equal(tensor, expected)


@each_reader
@pytest.mark.parametrize("world_size", [1, 3, 7])
def test_an_epoch_delivers_every_planned_row_once(
    dataset: FeatureDataset, reader_kind: Any, world_size: int
) -> None:
    reader = open_reader(dataset, ["hlf"], kind=reader_kind, dtype=torch.float64, seed=1)

    rows: list[HlfRow] = []
    for rank in range(world_size):
        assignment = assign_epoch(rank=rank, world_size=world_size)
        batches = list(reader.train_batches(assignment))
        assert list(map(len, batches)) == assignment.sizes
        rows += hlf_rows(batches)

    assert Counter(rows) == count_rows_in_files(dataset, "train")


@each_reader
def test_larger_caps_on_the_particle_list_change_no_particles(
    tmp_path: Path, reader_kind: Any
) -> None:
    dataset = write_dataset(
        tmp_path / "data", rows={"train": [8], "val": [8], "test": [3]}, max_particles=12
    )
    inputs = ["particles", "num_particles"]

    def read(definitions: dict[str, int]) -> list[Batch]:
        capped = dataset._replace(definitions=definitions)
        return val_batches(open_reader(capped, inputs, kind=reader_kind, seed=1))

    default = read({})
    just_enough = read({"max_tracks": 8, "max_photons": 2, "max_neutral_hadrons": 2})
    many_more = read({"max_tracks": 5000})

    assert_same(just_enough, default)
    assert_same(many_more, default)
    with pytest.raises(DamagedDatasetError, match=r"particles, more than 4"):
        read({"max_tracks": 3, "max_photons": 0, "max_neutral_hadrons": 0})


@each_reader
def test_particles_are_cut_to_the_longest_event_of_each_batch(
    dataset: FeatureDataset, reader_kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A row group comes in parts of three rows.
    monkeypatch.setattr(memory, "_DECODED_BYTES", 200_000)
    names = ["hlf", "particles", "num_particles"]
    reader = open_reader(dataset, names, kind=reader_kind, seed=1)
    files = pq.read_table(dataset.folder / "train")
    columns = model_inputs(files, names)
    particles_of_event = {}
    for hlf, particles, num_particles in zip(*columns.values(), strict=True):
        particles_of_event[tuple(hlf.tolist())] = particles[:num_particles]

    longest_events: set[int] = set()
    for batch in reader.train_batches(assign_epoch()):
        hlf, particles, num_particles = batch.inputs
        longest = int(num_particles.max())
        longest_events.add(longest)
        assert hlf.shape == (len(hlf), len(hlf_names()))
        assert particles.shape == (len(hlf), longest, 19)
        assert num_particles.dtype == torch.int64
        for event, event_particles, length in zip(
            hlf.tolist(), particles, num_particles.tolist(), strict=True
        ):
            expected = particles_of_event[tuple(event)]
            assert length == len(expected)
            np.testing.assert_array_equal(event_particles[:length], expected)
            assert not event_particles[length:].any()
    assert len(longest_events) > 3


@each_reader
@pytest.mark.parametrize(("max_rows", "sizes"), [(8192, [[7, 3], [7]]), (4, [[3, 4, 3], [3, 4]])])
def test_ranks_share_the_validation_rows_and_divide_large_row_groups_evenly(
    dataset: FeatureDataset,
    reader_kind: Any,
    max_rows: int,
    sizes: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_module, "_VAL_ROWS", max_rows)
    reader = open_reader(dataset, ["hlf"], kind=reader_kind, dtype=torch.float64, seed=1)

    first = val_batches(reader, rank=0, world_size=2)
    second = val_batches(reader, rank=1, world_size=2)

    assert [list(map(len, first)), list(map(len, second))] == sizes
    assert Counter(hlf_rows(first + second)) == count_rows_in_files(dataset, "val")


@each_reader
@pytest.mark.parametrize("inputs", INPUTS, ids="+".join)
@pytest.mark.parametrize(
    ("previous_world_sizes", "sizes_of_ranks"),
    [([], [[0, 1, 1], [1, 1, 1]]), ([PreviousWorkers(1, 4)], [[0], [1]])],
)
def test_a_rank_that_runs_out_of_rows_still_takes_all_steps(
    tmp_path: Path,
    reader_kind: Any,
    inputs: tuple[str, ...],
    previous_world_sizes: list[PreviousWorkers],
    sizes_of_ranks: list[list[int]],
) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [4, 1], "val": [3], "test": [3]})
    plan = plan_epoch(
        [4, 1],
        world_size=2,
        batch_size=1,
        seed=1,
        epoch=0,
        previous_world_sizes=previous_world_sizes,
    )
    reader = open_reader(dataset, inputs, kind=reader_kind, seed=1)

    sizes: list[list[int]] = []
    all_batches: list[Batch] = []
    for rank in range(2):
        assignment = assign_rows(plan, rank=rank, epoch=0)
        batches = list(reader.train_batches(assignment))
        sizes.append([len(batch) for batch in batches])
        all_batches += batches

    assert sorted(sizes) == sizes_of_ranks
    shapes = {"hlf": (0, len(hlf_names())), "particles": (0, 1, 19), "num_particles": (0,)}
    for batch in all_batches:
        if len(batch) == 0:
            input_shapes = [tuple(column.shape) for column in batch.inputs]
            assert input_shapes == [shapes[name] for name in inputs]


@each_reader
@pytest.mark.parametrize("inputs", INPUTS, ids="+".join)
def test_batches_are_on_the_device(
    dataset: FeatureDataset, reader_kind: Any, inputs: tuple[str, ...]
) -> None:
    shapes: dict[str, list[torch.Size]] = {}
    for device in ("cpu", "meta"):
        reader = open_reader(dataset, inputs, kind=reader_kind, seed=1, device=device)
        tensors: list[torch.Tensor] = []
        for batch in [*reader.train_batches(assign_epoch()), *val_batches(reader)]:
            tensors += list_tensors(batch)

        assert {tensor.device.type for tensor in tensors} == {device}
        shapes[device] = [tensor.shape for tensor in tensors]

    assert shapes["cpu"] == shapes["meta"]


def test_arrow_reads_a_row_group_once_when_it_is_first_needed(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [8, 8, 4], "val": [3], "test": [3]})
    reader = open_reader(dataset, ["hlf"], kind="arrow", seed=1)
    plan = plan_epoch([8, 8, 4], world_size=1, batch_size=4, seed=1, epoch=0)
    epoch = assign_rows(plan, rank=0, epoch=0)
    *earlier_files, last_file = [dataset.files("train")[group] for group in epoch.groups]

    # The last step needs the last file only.
    for path in earlier_files:
        path.rename(path.with_suffix(".away"))
    last_step = list(reader.train_batches(assign_rows(plan, rank=0, epoch=0, first_step=4)))
    for path in earlier_files:
        path.with_suffix(".away").rename(path)
    last_file.unlink()
    first_epoch = list(reader.train_batches(epoch))
    for path in earlier_files:
        path.unlink()

    assert_same(first_epoch[4:], last_step)
    assert_same(list(reader.train_batches(epoch)), first_epoch)


def test_the_error_of_a_split_larger_than_the_memory_names_the_setting(
    dataset: FeatureDataset,
) -> None:
    huge = dataset._replace(splits={"val": [RowGroup("val/part-00000.parquet", 1 << 50)]})
    layout = BatchLayout.for_inputs(huge, ["hlf"], dtype=torch.float32, device="cpu")

    message = r"1125899906842624 rows of the val split .*train\.reader=petastorm"
    with pytest.raises(TrainingError, match=message):
        MemoryRows.lazy(huge, "val", layout, seed=1)


@each_reader
def test_an_abandoned_epoch_leaves_no_thread(dataset: FeatureDataset, reader_kind: Any) -> None:
    threads = set(threading.enumerate())
    reader = open_reader(dataset, ["particles"], kind=reader_kind, seed=1)
    batches = reader.train_batches(assign_epoch())

    next(batches)
    del batches

    wait_until(
        lambda: set(threading.enumerate()) <= threads, label="all threads have ended", seconds=30
    )


@each_reader
def test_only_needed_columns_are_read(tmp_path: Path, reader_kind: Any) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [9], "val": [3], "test": [3]})
    for split in dataset.splits:
        for path in dataset.files(split):
            pq.write_table(pq.read_table(path, columns=["label", *hlf_names(), "weight"]), path)

    reader = open_reader(dataset, ["hlf"], kind=reader_kind, seed=1)

    assert sum(map(len, val_batches(reader))) == 3


@pytest.mark.parametrize("is_in_common_metadata", [True, False], ids=["common", "row group"])
@each_reader
def test_a_pickled_schema_is_refused_before_petastorm_opens_it(
    tmp_path: Path, reader_kind: Any, is_in_common_metadata: bool
) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [9], "val": [3], "test": [3]})
    path = dataset.files("train")[0]
    pickled_schema = {"dataset-toolkit.unischema.v1": b"cos\nsystem\n(S'touch boom'\ntR."}
    table = pq.read_table(path).replace_schema_metadata(pickled_schema)
    if is_in_common_metadata:
        pq.write_metadata(table.schema, dataset.folder / "train" / "_common_metadata")
    else:
        pq.write_table(table, path)

    with pytest.raises(DamagedDatasetError, match="pickled petastorm schema"):
        open_reader(dataset, ["hlf"], kind=reader_kind, seed=1)
