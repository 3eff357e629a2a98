"""The petastorm reader against pyarrow."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from feature_datasets import write_dataset

from features.dataset import FeatureDataset
from training.errors import HostileDatasetError
from training.readers import Batch, Reader
from training.sharding import plan_epoch

ROWS = {"train": [11, 11, 11, 11, 5], "val": [7, 7, 3], "test": [4]}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    folder = tmp_path_factory.mktemp("reader") / "a path with spaces"
    return write_dataset(folder, rows=ROWS, class_weights=[2.0, 1.0, 0.5])


def reader(dataset: FeatureDataset, *, seed: int = 1) -> Reader:
    return Reader(dataset, ["hlf"], dtype=torch.float64, seed=seed)


def epoch_batches(dataset: FeatureDataset, *, world_size: int, epoch: int = 0, seed: int = 1) -> list[list[Batch]]:
    plan = plan_epoch(ROWS["train"], world_size=world_size, batch_size=4, seed=seed, epoch=epoch)
    return [list(reader(dataset, seed=seed).train_batches(plan, rank=r, epoch=epoch)) for r in range(world_size)]


def rows_of(batches: list[Batch]) -> list[tuple[float, ...]]:
    return [
        (*row, label, round(weight, 6))
        for batch in batches
        for row, label, weight in zip(
            batch.inputs[0].tolist(), batch.labels.tolist(), batch.weights.tolist(), strict=True
        )
    ]


def expected_rows(dataset: FeatureDataset, split: str, groups: list[int]) -> Counter[tuple[float, ...]]:
    rows: Counter[tuple[float, ...]] = Counter()
    for group in groups:
        for row in pq.read_table(dataset.files(split)[group]).to_pylist():
            weight = row["weight"] * dataset.class_weights[row["label"]]
            rows[(*row["hlf"], row["label"], round(weight, 6))] += 1
    return rows


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_an_epoch_delivers_every_planned_row_once(dataset: FeatureDataset, world_size: int) -> None:
    plan = plan_epoch(ROWS["train"], world_size=world_size, batch_size=4, seed=1, epoch=0)
    for rank, batches in enumerate(epoch_batches(dataset, world_size=world_size)):
        assert len(batches) == plan.num_steps
        assert max(map(len, batches)) <= 4
        assert Counter(rows_of(batches)) == expected_rows(dataset, "train", plan.groups[rank].tolist())


def test_the_order_hangs_on_seed_and_epoch_and_differs_between_them(dataset: FeatureDataset) -> None:
    first = rows_of(epoch_batches(dataset, world_size=1)[0])
    assert first == rows_of(epoch_batches(dataset, world_size=1)[0])
    other_epoch = rows_of(epoch_batches(dataset, world_size=1, epoch=1)[0])
    other_seed = rows_of(epoch_batches(dataset, world_size=1, seed=2)[0])
    for other in (other_epoch, other_seed):
        assert first != other
        assert sorted(first) == sorted(other)


def test_validation_rows_are_shared_out_completely(dataset: FeatureDataset) -> None:
    shares = [rows_of(list(reader(dataset).val_batches(rank=r, world_size=2))) for r in range(2)]
    assert Counter(row for share in shares for row in share) == expected_rows(dataset, "val", [0, 1, 2])


def test_a_rank_without_validation_rows_reads_none(dataset: FeatureDataset) -> None:
    assert list(reader(dataset).val_batches(rank=5, world_size=8)) == []


def test_a_rank_that_runs_out_of_rows_still_takes_all_steps(tmp_path: Path) -> None:
    small = write_dataset(tmp_path / "data", rows={"train": [9, 1], "val": [3], "test": [3]})
    plan = plan_epoch([9, 1], world_size=2, batch_size=3, seed=1, epoch=0)
    sizes = sorted([len(b) for b in reader(small).train_batches(plan, rank=r, epoch=0)] for r in range(2))
    assert sizes == [[0, 0, 1], [3, 3, 3]]


@pytest.mark.parametrize("place", ["_common_metadata", "a row group"])
def test_a_dataset_with_a_pickled_schema_is_refused_before_petastorm_opens_it(tmp_path: Path, place: str) -> None:
    hostile = write_dataset(tmp_path / "data", rows={"train": [9], "val": [3], "test": [3]})
    path = hostile.files("train")[0]
    table = pq.read_table(path)
    marked = table.replace_schema_metadata({"dataset-toolkit.unischema.v1": b"cos\nsystem\n(S'touch boom'\ntR."})
    if place == "_common_metadata":
        path = hostile.folder / "train" / "_common_metadata"
        pq.write_metadata(marked.schema, path)
    else:
        pq.write_table(marked, path)
    with pytest.raises(HostileDatasetError, match="pickled petastorm schema"):
        reader(hostile)


def test_float64_batches_hold_the_float32_values(dataset: FeatureDataset) -> None:
    (batch, *_) = epoch_batches(dataset, world_size=1)[0]
    assert batch.inputs[0].dtype == torch.float64
    np.testing.assert_array_equal(batch.inputs[0].numpy(), batch.inputs[0].numpy().astype(np.float32))
