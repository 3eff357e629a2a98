"""The module that lets petastorm work with today's pyarrow and NumPy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.errors import TrainingError
from training.readers import petastorm_compat
from training.readers.petastorm_compat import ParquetDataset, make_batch_reader

ROOT = Path(__file__).resolve().parents[2]
#: A schema that ends the process that unpickles it.
HOSTILE_SCHEMA = {"dataset-toolkit.unischema.v1": b"cos\nabort\n(tR."}
#: In a new process, since other tests may have imported anything.
IMPORT_AND_CHECK = """
import sys, numpy, pyarrow, pyarrow.parquet

parquet_dataset = pyarrow.parquet.ParquetDataset
import training.readers.petastorm_compat

assert pyarrow.parquet.ParquetDataset is parquet_dataset
assert not hasattr(pyarrow.parquet, "ParquetDatasetPiece")
assert not hasattr(numpy, "unicode_")
assert not hasattr(pyarrow, "localfs")
assert not hasattr(pyarrow, "filesystem")
stubs = ("pyarrow.filesystem", "pyarrow.hdfs", "petastorm.hdfs.")
loaded_stubs = [name for name in sys.modules if name.startswith(stubs)]
assert not loaded_stubs, loaded_stubs
"""


def test_petastorm_does_not_see_a_pickled_schema(tmp_path: Path) -> None:
    """`require_no_pickled_schema` comes first; if it misses one, there is nothing to execute."""
    path = tmp_path / "file.parquet"
    table = pa.table({"number": [1]}).replace_schema_metadata(HOSTILE_SCHEMA)
    pq.write_table(table, path)
    pq.write_metadata(table.schema, tmp_path / "_common_metadata")

    dataset = ParquetDataset([str(path)], petastorm_compat.LocalFileSystem())
    with make_batch_reader([f"file://{path}"], workers_count=1, shuffle_row_groups=False) as reader:
        batches = [batch.number.tolist() for batch in reader]

    assert batches == [[1]]
    assert dataset.common_metadata is None
    assert dataset.metadata is None


def test_another_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(petastorm_compat.metadata, "version", lambda _: "0.13.1")

    message = r"petastorm 0\.13\.1 is installed.*0\.12\.1 only.*make setup"
    with pytest.raises(TrainingError, match=message):
        petastorm_compat._import_petastorm()


@pytest.mark.slow
def test_pyarrow_and_numpy_stay_as_they_are() -> None:
    program = [sys.executable, "-W", "error", "-c", IMPORT_AND_CHECK]

    subprocess.run(program, cwd=ROOT, check=True)
