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


def test_a_pickled_schema_is_never_seen(tmp_path: Path) -> None:
    # require_no_pickled_schema comes first; were it missed, petastorm would still find nothing to
    # execute.
    table = pa.table({"number": [1]}).replace_schema_metadata(
        {"dataset-toolkit.unischema.v1": b"cos\nabort\n(tR."}
    )
    pq.write_table(table, tmp_path / "file.parquet")
    pq.write_metadata(table.schema, tmp_path / "_common_metadata")
    with make_batch_reader(
        [f"file://{tmp_path / 'file.parquet'}"], workers_count=1, shuffle_row_groups=False
    ) as reader:
        assert [batch.number.tolist() for batch in reader] == [[1]]
    dataset = ParquetDataset([str(tmp_path / "file.parquet")], petastorm_compat.LocalFileSystem())
    assert dataset.common_metadata is None
    assert dataset.metadata is None


def test_another_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(petastorm_compat.metadata, "version", lambda _: "0.13.1")
    with pytest.raises(
        TrainingError, match=r"petastorm 0\.13\.1 is installed.*0\.12\.1 only.*make setup"
    ):
        petastorm_compat._import_petastorm()


@pytest.mark.slow
def test_pyarrow_and_numpy_stay_as_they_are() -> None:
    # In a new process, since other tests may have imported anything.
    check = """
import sys, numpy, pyarrow, pyarrow.parquet
legacy = pyarrow.parquet.ParquetDataset
import training.readers.petastorm_compat
assert legacy is pyarrow.parquet.ParquetDataset
assert not hasattr(pyarrow.parquet, "ParquetDatasetPiece") and not hasattr(numpy, "unicode_")
assert not hasattr(pyarrow, "localfs") and not hasattr(pyarrow, "filesystem")
left = [name for name in sys.modules if name.startswith(("pyarrow.filesystem", "pyarrow.hdfs", "petastorm.hdfs."))]
assert not left, left
"""
    subprocess.run([sys.executable, "-W", "error", "-c", check], cwd=ROOT, check=True)
