"""Damaged files: one sentence that says which and what to do, from every reader."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from feature_datasets import write_dataset

from features.columns import NUM_CORE
from features.dataset import FeatureDataset
from features.matrices import list_columns, particles_from_core
from hep_core.integrity import DamagedOutputError
from training.errors import DamagedDatasetError
from training.readers.memory import MemoryRows
from training.readers.reader import open_reader

PART = "part-00001.parquet"
CANNOT_BE_READ = r"^the val split in .* cannot be read \(.*python -m pipeline features"


def overwrite_pages(path: Path) -> None:
    content = path.read_bytes()
    footer = int.from_bytes(content[-8:-4], "little") + 8
    path.write_bytes(content[:4] + bytes(len(content) - 4 - footer) + content[-footer:])


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def drop_rows(path: Path) -> None:
    pq.write_table(pq.read_table(path).slice(1), path)


def drop_column(path: Path) -> None:
    pq.write_table(pq.read_table(path).drop(["weight"]), path)


def cut_lists(path: Path) -> None:
    replace(path, "particle_eta", pa.array([[1.0]] * 12, pa.list_(pa.float32())))


def lengthen(path: Path) -> None:
    for name, column in list_columns(
        np.arange(13) * 802, particles_from_core(np.ones((NUM_CORE, 12 * 802), np.float32))
    ).items():
        replace(path, name, column)
    replace(path, "num_particles", pa.array([802] * 12, pa.int32()))


def put_nulls(path: Path) -> None:
    replace(path, "mt", pa.array([None, *[1.0] * 11], pa.float32()))


def replace(path: Path, name: str, values: pa.Array) -> None:
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.schema.get_field_index(name), name, values), path)


@pytest.fixture
def dataset(tmp_path: Path) -> FeatureDataset:
    return write_dataset(tmp_path / "data", rows={"train": [12], "val": [12, 12], "test": [4]})


@pytest.mark.parametrize("kind", ["petastorm", "arrow"])
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (overwrite_pages, rf"{PART} is not what was written"),
        *product(
            [drop_rows, drop_column, cut_lists, lengthen, put_nulls, Path.unlink], [CANNOT_BE_READ]
        ),
    ],
)
def test_damage_inside_a_file_is_reported_when_it_is_read(
    dataset: FeatureDataset,
    kind: Any,
    damage: Callable[[Path], None],
    words: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    reader = open_reader(dataset, ["hlf", "particles"], kind=kind, seed=1)
    damage(dataset.folder / "val" / PART)
    with pytest.raises((DamagedDatasetError, DamagedOutputError), match=words):
        list(reader.val_batches(rank=0, world_size=1))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("damage", [cut_short, Path.unlink])
def test_a_missing_or_unfinished_file_is_reported_before_training_begins(
    dataset: FeatureDataset, damage: Callable[[Path], None]
) -> None:
    damage(dataset.folder / "val" / PART)
    with pytest.raises(
        DamagedDatasetError, match=rf"the val split in .*{PART}.*cannot be read|val split.*{PART}"
    ):
        open_reader(dataset, ["hlf"], seed=1)
    with pytest.raises(DamagedDatasetError, match=PART):
        MemoryRows.load(dataset, "val", ["hlf"])
