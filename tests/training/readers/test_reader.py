"""All readers against each other and against pyarrow."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
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
from training.readers import batch, memory
from training.readers.batch import Batch, BatchLayout
from training.readers.memory import MemoryRows
from training.readers.reader import open_reader
from training.readers.sharding import EpochPlan, assign_rows, plan_epoch

ROWS = {"train": [11, 11, 11, 11, 5], "val": [7, 7, 3], "test": [4]}
KINDS = ["petastorm", "arrow"]
INPUTS = [("hlf",), ("particles", "num_particles"), ("hlf", "particles", "num_particles")]

each_reader = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    folder = tmp_path_factory.mktemp("reader") / "a path with spaces"
    return write_dataset(folder, rows=ROWS, class_weights=(2.0, 1.0, 0.5), max_particles=200)


def made_plan(*, world_size: int, epoch: int = 0, seed: int = 1, batch_size: int = 4) -> EpochPlan:
    return plan_epoch(
        ROWS["train"], world_size=world_size, batch_size=batch_size, seed=seed, epoch=epoch
    )


def rows_of_worker(batches: list[Batch]) -> list[tuple[float, ...]]:
    return [
        (*row, label, round(weight, 6))
        for batch in batches
        for row, label, weight in zip(
            batch.inputs[0].tolist(), batch.labels.tolist(), batch.weights.tolist(), strict=True
        )
    ]


def expected_rows(
    dataset: FeatureDataset, split: str, groups: list[int]
) -> Counter[tuple[float, ...]]:
    rows: Counter[tuple[float, ...]] = Counter()
    for group in groups:
        for row in pq.read_table(dataset.files(split)[group]).to_pylist():
            weight = row["weight"] * dataset.class_weights[row["label"]]
            rows[(*(row[name] for name in hlf_names()), row["label"], round(weight, 6))] += 1
    return rows


def tensors_of(batch: Batch) -> tuple[torch.Tensor, ...]:
    return (*batch.inputs, batch.labels, batch.weights)


def assert_same(found: list[Batch], expected: list[Batch]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for tensor, same in zip(tensors_of(one), tensors_of(other), strict=True):
            assert tensor.dtype == same.dtype
            assert torch.equal(tensor, same)


@each_reader
@pytest.mark.parametrize("world_size", [1, 3, 7])
def test_an_epoch_delivers_every_planned_row_once(
    dataset: FeatureDataset, kind: Any, world_size: int
) -> None:
    reader = open_reader(dataset, ["hlf"], kind=kind, dtype=torch.float64, seed=1)
    plan, found = made_plan(world_size=world_size), list[tuple[float, ...]]()
    for rank in range(world_size):
        batches = list(reader.train_batches(assign_rows(plan, rank=rank, epoch=0)))
        assert len(batches) == plan.num_steps
        assert max(map(len, batches)) <= 4
        found += rows_of_worker(batches)
    assert Counter(found) == expected_rows(dataset, "train", list(range(len(ROWS["train"]))))


@each_reader
def test_other_caps_on_the_particle_list_give_matrices_of_another_size(
    tmp_path: Path, kind: Any
) -> None:
    made = write_dataset(
        tmp_path / "data", rows={"train": [8], "val": [8], "test": [3]}, max_particles=12
    )
    names = ["particles", "num_particles"]
    found = []
    for definitions in (
        {},
        {"max_tracks": 8, "max_photons": 2, "max_neutral_hadrons": 2},
        {"max_tracks": 5000},
    ):
        reader = open_reader(made._replace(definitions=definitions), names, kind=kind, seed=1)
        found.append([batch.inputs for batch in reader.val_batches(rank=0, world_size=1)])
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    small = made._replace(definitions={"max_tracks": 3, "max_photons": 0, "max_neutral_hadrons": 0})
    with pytest.raises(DamagedDatasetError, match=r"particles, more than 4"):
        list(open_reader(small, names, kind=kind, seed=1).val_batches(rank=0, world_size=1))


@each_reader
def test_particles_are_cut_to_the_longest_event_of_each_batch(
    dataset: FeatureDataset, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A row group comes in parts of three rows.
    monkeypatch.setattr(memory, "_DECODED_BYTES", 200_000)
    reader = open_reader(dataset, ["hlf", "particles", "num_particles"], kind=kind, seed=1)
    table = model_inputs(
        pq.read_table(dataset.folder / "train"), ["hlf", "particles", "num_particles"]
    )
    events = {tuple(row.tolist()): each for row, *each in zip(*table.values(), strict=True)}
    longest = set()
    for hlf, particles, num_particles in (
        b.inputs
        for b in reader.train_batches(assign_rows(made_plan(world_size=1), rank=0, epoch=0))
    ):
        assert hlf.shape == (len(hlf), len(hlf_names()))
        assert particles.shape == (len(hlf), int(num_particles.max()), 19)
        assert num_particles.dtype == torch.int64
        longest.add(particles.shape[1])
        for event, found, length in zip(
            hlf.tolist(), particles, num_particles.tolist(), strict=True
        ):
            expected, expected_length = events[tuple(event)]
            assert length == expected_length
            np.testing.assert_array_equal(found[:length], expected[:length])
            assert not found[length:].any()
    assert len(longest) > 3


@each_reader
@pytest.mark.parametrize(("most", "sizes"), [(8192, [[7, 3], [7]]), (4, [[3, 4, 3], [3, 4]])])
def test_validation_rows_are_shared_out_completely_and_large_row_groups_are_cut_evenly(
    dataset: FeatureDataset,
    kind: Any,
    most: int,
    sizes: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch, "_VAL_ROWS", most)
    reader = open_reader(dataset, ["hlf"], kind=kind, dtype=torch.float64, seed=1)
    shares = [list(reader.val_batches(rank=rank, world_size=2)) for rank in range(2)]
    assert [[len(b) for b in share] for share in shares] == sizes
    found = Counter(row for share in shares for row in rows_of_worker(share))
    assert found == expected_rows(dataset, "val", [0, 1, 2])


@each_reader
@pytest.mark.parametrize("inputs", INPUTS, ids="+".join)
@pytest.mark.parametrize(
    ("before", "expected"), [((), [[0, 1, 1], [1, 1, 1]]), (((1, 4),), [[0], [1]])]
)
def test_a_rank_that_runs_out_of_rows_still_takes_all_steps(
    tmp_path: Path,
    kind: Any,
    inputs: tuple[str, ...],
    before: Sequence[tuple[int, int]],
    expected: list[list[int]],
) -> None:
    small = write_dataset(tmp_path / "data", rows={"train": [4, 1], "val": [3], "test": [3]})
    plan = plan_epoch([4, 1], world_size=2, batch_size=1, seed=1, epoch=0, before=before)
    reader = open_reader(small, inputs, kind=kind, seed=1)
    sizes = []
    for rank in range(2):
        batches = list(reader.train_batches(assign_rows(plan, rank=rank, epoch=0)))
        sizes.append([len(b) for b in batches])
        for empty in (b for b in batches if not len(b)):
            shapes = {"hlf": (0, len(hlf_names())), "particles": (0, 1, 19), "num_particles": (0,)}
            assert [tuple(column.shape) for column in empty.inputs] == [
                shapes[name] for name in inputs
            ]
    assert sorted(sizes) == expected


@each_reader
@pytest.mark.parametrize("inputs", INPUTS, ids="+".join)
def test_batches_are_on_the_device(
    dataset: FeatureDataset, kind: Any, inputs: tuple[str, ...]
) -> None:
    plan = made_plan(world_size=1)
    shapes = {}
    for device in ("cpu", "meta"):
        reader = open_reader(dataset, inputs, kind=kind, seed=1, device=device)
        batches = [
            *reader.train_batches(assign_rows(plan, rank=0, epoch=0)),
            *reader.val_batches(rank=0, world_size=1),
        ]
        assert {tensor.device.type for b in batches for tensor in tensors_of(b)} == {device}
        shapes[device] = [[tensor.shape for tensor in tensors_of(b)] for b in batches]
    assert shapes["cpu"] == shapes["meta"]


def test_arrow_reads_a_row_group_when_it_is_needed_first_and_never_again(tmp_path: Path) -> None:
    small = write_dataset(tmp_path / "data", rows={"train": [8, 8, 4], "val": [3], "test": [3]})
    reader = open_reader(small, ["hlf"], kind="arrow", seed=1)
    plan = plan_epoch([8, 8, 4], world_size=1, batch_size=4, seed=1, epoch=0)
    *used_up, last = (small.files("train")[piece.group] for piece in plan.row_ranges[0])
    kept = [path.rename(path.with_suffix(".away")) for path in used_up]
    end = list(reader.train_batches(assign_rows(plan, rank=0, epoch=0, first_step=4)))
    for path, back in zip(used_up, kept, strict=True):
        back.rename(path)
    last.unlink()
    first = list(reader.train_batches(assign_rows(plan, rank=0, epoch=0)))
    assert_same(first[4:], end)
    for path in used_up:
        path.unlink()
    assert_same(list(reader.train_batches(assign_rows(plan, rank=0, epoch=0))), first)


def test_a_split_that_does_not_fit_into_memory_is_refused_with_the_fix(
    dataset: FeatureDataset,
) -> None:
    huge = dataset._replace(splits={"val": [RowGroup("val/part-00000.parquet", 1 << 50)]})
    with pytest.raises(
        TrainingError, match=r"1125899906842624 rows of the val split .*train\.reader=petastorm"
    ):
        MemoryRows.lazy(
            huge, "val", BatchLayout.of(huge, ["hlf"], dtype=torch.float32, device="cpu"), seed=1
        )


@each_reader
def test_an_epoch_that_is_given_up_leaves_no_thread(dataset: FeatureDataset, kind: Any) -> None:
    before = set(threading.enumerate())
    reader = open_reader(dataset, ["particles"], kind=kind, seed=1)
    batches = reader.train_batches(assign_rows(made_plan(world_size=1), rank=0, epoch=0))
    next(batches)
    del batches
    wait_until(
        lambda: set(threading.enumerate()) <= before, what="all threads have ended", seconds=30
    )


@each_reader
def test_only_the_columns_that_are_needed_are_read(tmp_path: Path, kind: Any) -> None:
    lean = write_dataset(tmp_path / "data", rows={"train": [9], "val": [3], "test": [3]})
    for split in lean.splits:
        for path in lean.files(split):
            pq.write_table(pq.read_table(path, columns=["label", *hlf_names(), "weight"]), path)
    reader = open_reader(lean, ["hlf"], kind=kind, seed=1)
    assert sum(map(len, reader.val_batches(rank=0, world_size=1))) == 3


@pytest.mark.parametrize("place", ["_common_metadata", "a row group"])
@each_reader
def test_a_dataset_with_a_pickled_schema_is_refused_before_petastorm_opens_it(
    tmp_path: Path, kind: Any, place: str
) -> None:
    hostile = write_dataset(tmp_path / "data", rows={"train": [9], "val": [3], "test": [3]})
    path = hostile.files("train")[0]
    table = pq.read_table(path)
    marked = table.replace_schema_metadata(
        {"dataset-toolkit.unischema.v1": b"cos\nsystem\n(S'touch boom'\ntR."}
    )
    if place == "_common_metadata":
        path = hostile.folder / "train" / "_common_metadata"
        pq.write_metadata(marked.schema, path)
    else:
        pq.write_table(marked, path)
    with pytest.raises(DamagedDatasetError, match="pickled petastorm schema"):
        open_reader(hostile, ["hlf"], kind=kind, seed=1)
