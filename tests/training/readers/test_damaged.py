"""The errors of damaged files, from every reader."""

from __future__ import annotations

from collections.abc import Callable
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

FILE = "part-00001.parquet"
NUM_ROWS = 12
CANNOT_BE_READ = r"^the val split in .* cannot be read \(.*python -m pipeline features"


def overwrite_pages(path: Path) -> None:
    file_bytes = bytearray(path.read_bytes())
    footer_size = int.from_bytes(file_bytes[-8:-4], "little") + 8
    end_of_pages = len(file_bytes) - footer_size
    file_bytes[4:end_of_pages] = bytes(end_of_pages - 4)
    path.write_bytes(file_bytes)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def drop_rows(path: Path) -> None:
    pq.write_table(pq.read_table(path).slice(1), path)


def drop_column(path: Path) -> None:
    pq.write_table(pq.read_table(path).drop(["weight"]), path)


def shorten_lists(path: Path) -> None:
    short_lists = pa.array([[1.0]] * NUM_ROWS, pa.list_(pa.float32()))
    replace_column(path, "particle_eta", short_lists)


def lengthen_lists(path: Path) -> None:
    num_particles = 802
    particles = particles_from_core(np.ones((NUM_CORE, NUM_ROWS * num_particles), np.float32))
    offsets = np.arange(NUM_ROWS + 1) * num_particles
    for name, column in list_columns(offsets, particles).items():
        replace_column(path, name, column)
    lengths = pa.array([num_particles] * NUM_ROWS, pa.int32())
    replace_column(path, "num_particles", lengths)


def add_null(path: Path) -> None:
    values = [None] + [1.0] * (NUM_ROWS - 1)
    replace_column(path, "mt", pa.array(values, pa.float32()))


def replace_column(path: Path, name: str, column: pa.Array) -> None:
    table = pq.read_table(path)
    index = table.schema.get_field_index(name)
    pq.write_table(table.set_column(index, name, column), path)


@pytest.fixture
def dataset(tmp_path: Path) -> FeatureDataset:
    rows = {"train": [NUM_ROWS], "val": [NUM_ROWS, NUM_ROWS], "test": [4]}
    return write_dataset(tmp_path / "data", rows=rows)


@pytest.mark.parametrize("reader_kind", ["petastorm", "arrow"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (overwrite_pages, rf"{FILE} is not what was written"),
        (drop_rows, CANNOT_BE_READ),
        (drop_column, CANNOT_BE_READ),
        (shorten_lists, CANNOT_BE_READ),
        (lengthen_lists, CANNOT_BE_READ),
        (add_null, CANNOT_BE_READ),
        (Path.unlink, CANNOT_BE_READ),
    ],
)
def test_damage_inside_a_file_is_an_error_when_it_is_read(
    dataset: FeatureDataset,
    reader_kind: Any,
    damage: Callable[[Path], None],
    message: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    reader = open_reader(dataset, ["hlf", "particles"], kind=reader_kind, seed=1)
    damage(dataset.folder / "val" / FILE)

    with pytest.raises((DamagedDatasetError, DamagedOutputError), match=message):
        list(reader.val_batches(rank=0, world_size=1))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("damage", [cut_short, Path.unlink])
def test_a_missing_or_unfinished_file_is_an_error_before_training_begins(
    dataset: FeatureDataset, damage: Callable[[Path], None]
) -> None:
    damage(dataset.folder / "val" / FILE)

    with pytest.raises(DamagedDatasetError, match=rf"the val split in .*{FILE}"):
        open_reader(dataset, ["hlf"], seed=1)
    with pytest.raises(DamagedDatasetError, match=FILE):
        MemoryRows.load(dataset, "val", ["hlf"])
