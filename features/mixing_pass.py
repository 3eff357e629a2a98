"""Second pass: gathers the rows of all parts into row groups and writes one file each. No Spark.

The rows lie in the kernels' files, which every task can reach, so a task reads those of its row
groups and no row goes from task to task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from features.arrays import offsets_from_counts
from features.columns import INPUT_COLUMNS
from features.dataset import RowGroup
from features.distributions import (
    EVENTS_FOR_PARTICLES,
    Histograms,
    add_histograms,
    fill_histograms,
)
from features.kernel_pass import unmixed_schema
from features.matrices import (
    hlf_array,
    list_columns,
    particle_arrays,
    particle_features,
)
from features.mixing import RowGroupPlan
from features.scaling import ColumnStatistics
from features.schema import SPLITS, TRAIN, described_schema, features_schema
from features.unmixed_files import CORE, copy_particles, empty_particles, read_rows
from hep_core.atomic_files import local_copy, new_file
from hep_core.integrity import file_digest
from hep_core.storage import as_path, is_remote
from ingestion.schema import WEIGHT_PREFIX

#: Memory of the rows that a task gathers [bytes].
GATHERED_BYTES: Final = 256 << 20
#: Columns with minimum and maximum in the footer. Features have none, since nothing uses them.
_WITH_STATISTICS: Final = ["num_particles", "label", "weight", "file_uuid", "entry"]
#: Columns with few different values.
_WITH_DICTIONARY: Final = [
    "file_uuid",
    "sample",
    "particle_kind.list.element",
    "particle_charge.list.element",
]


class KernelFile(NamedTuple):
    """The selected events of one part, as the kernels wrote them."""

    path: str
    first_row: int
    """Index of its first row among the rows of all files."""
    factor: float
    """Physics factor of its sample."""


class WrittenGroup(NamedTuple):
    """One row group, with the statistics of its columns.

    These are empty outside the training split.
    """

    split: int
    """Number of the split, an index into `SPLITS`."""
    group: RowGroup
    digest: str
    """Digest of the content of a file on object storage; empty for a local file."""
    hlf: ColumnStatistics
    """Statistics of the high-level features of all events."""
    particles: ColumnStatistics
    """Statistics of the particles of the first EVENTS_FOR_PARTICLES events."""


class PickedRows(NamedTuple):
    """Some rows of one file, and their positions among all rows that are gathered."""

    path: Path
    factor: float
    """Factor on all weights."""
    rows: NDArray[np.int64]
    """(num_rows,) indices of rows of the file, in ascending order."""
    positions: NDArray[np.int64]
    """(num_rows,) index of each row among the gathered rows."""


def rows_in_memory(num_bytes: int, num_rows: int) -> int:
    """Number of rows that take `GATHERED_BYTES` of memory, at least one.

    The size of a row is that of an average one: all `num_rows` rows take `num_bytes`.
    """
    return max(1, GATHERED_BYTES * num_rows // max(num_bytes, 1))


def write_groups(
    groups: Sequence[RowGroupPlan],
    files: Sequence[KernelFile],
    classes: list[str],
    out_dir: Path,
    scratch: Path = Path(),
    settings: Mapping[str, Any] | None = None,
) -> tuple[list[WrittenGroup], Histograms]:
    """Write the row groups of one task.

    It gathers the rows of all its row groups at once, then writes a slice of them for each.

    Args:
        groups: The row groups, with their rows.
        files: The kernels' files, in the order of their rows.
        classes: Names of the classes.
        out_dir: Folder of the dataset.
        scratch: Folder for copies of files on object storage.
        settings: Settings that go into the metadata of the files.

    Returns:
        The row groups, and one sum of their histograms, which saves memory on the driver.
    """
    task_rows = np.concatenate([group.rows for group in groups])
    num_particles = np.concatenate([group.num_particles for group in groups])
    rows = gather_rows(_pick_rows(files, task_rows, scratch), num_particles)
    written_groups = []
    histograms = []
    # The gathered rows have the order of the row groups, so each is a slice.
    start = 0
    for group in groups:
        group_rows = rows.slice(start, len(group.rows))
        start += len(group.rows)
        written, group_histograms = write_group(
            group.split, group.group, group_rows, classes, out_dir, settings
        )
        written_groups.append(written)
        histograms.append(group_histograms)
    return written_groups, add_histograms(histograms)


def _pick_rows(
    files: Sequence[KernelFile], rows: NDArray[np.int64], scratch: Path
) -> list[PickedRows]:
    """Find some rows in the files of the kernels.

    `rows` (num_rows,) are indices into the rows of all files; a file holds a range of these. The
    result has an entry for each file with some of the rows, whose positions are those in `rows`. A
    file on object storage is copied to `scratch` first.
    """
    order = np.argsort(rows, kind="stable")
    # Sorted rows are cut where the next file begins.
    first_rows = [file.first_row for file in files[1:]]
    file_bounds = np.searchsorted(rows[order], first_rows)
    positions_by_file = np.split(order, file_bounds)
    picked = []
    for file, positions in zip(files, positions_by_file, strict=True):
        if positions.size == 0:
            continue
        path = local_copy(as_path(file.path), scratch)
        rows_in_file = rows[positions] - file.first_row
        picked.append(PickedRows(path, file.factor, rows_in_file, positions))
    return picked


def gather_rows(picked: Sequence[PickedRows], num_particles: NDArray[np.integer[Any]]) -> pa.Table:
    """Gather rows of the kernels' files, in order of their positions.

    Each batch of a file is read once, and one at a time, since the particles of all rows fill the
    memory of the task already. `num_particles` (num_rows,) are those of each gathered row.

    Returns:
        The columns of the files, with a column of lists for each number of a particle.
    """
    offsets = offsets_from_counts(num_particles)
    particles = empty_particles(offsets[-1])
    batches = []
    factors = np.empty(len(num_particles))
    # Index of each gathered row in the joined batches.
    row_in_batches = np.empty(len(num_particles), dtype=np.int64)
    num_read = 0
    for file_rows in picked:
        factors[file_rows.positions] = file_rows.factor
        for batch_rows in read_rows(file_rows.path, file_rows.rows):
            positions = file_rows.positions[batch_rows.needed]
            copy_particles(batch_rows, particles, offsets[positions])
            row_in_batches[positions] = num_read + batch_rows.rows
            num_read += batch_rows.batch.num_rows
            batches.append(batch_rows.batch.drop_columns([CORE]))

    gathered = pa.Table.from_batches(batches).combine_chunks().take(row_in_batches)
    rows = _scale_weights(gathered, factors)
    for name, column in list_columns(offsets, particles).items():
        rows = rows.append_column(name, column)
    return rows


def _scale_weights(rows: pa.Table, factors: NDArray[np.float64]) -> pa.Table:
    """Multiply the columns `weight` and `weight_<name>` by the factor of each row."""
    factor_column = pa.array(factors)
    for column, name in enumerate(rows.schema.names):
        if name == "weight" or name.startswith(WEIGHT_PREFIX):
            weights = pc.multiply(rows[name], factor_column)
            rows = rows.set_column(column, name, weights)
    return rows


def write_group(
    split: int,
    group: int,
    rows: pa.Table,
    classes: list[str],
    out_dir: Path,
    settings: Mapping[str, Any] | None = None,
) -> tuple[WrittenGroup, Histograms]:
    """Write rows from `gather_rows` as one row group, in their order; its file appears whole.

    `split` and `group` are the numbers of the split and of the row group. Returns the row group
    with the statistics of its columns, and its histograms.
    """
    table = _with_file_schema(rows, classes, settings)
    file = RowGroup(f"{SPLITS[split]}/part-{group:05d}.parquet", table.num_rows)
    digest = _write_parquet(table, out_dir / file.file)

    hlf = hlf_array(table)
    offsets, particles = particle_arrays(table)
    # Particles of the first events are enough for histograms and scaler.
    num_sampled = int(offsets[: EVENTS_FOR_PARTICLES + 1][-1])
    sampled_particles = particle_features(particles, num_sampled)
    num_particles = table["num_particles"].to_numpy()
    labels = table["label"].to_numpy()
    weights = table["weight"].to_numpy()
    histograms = fill_histograms(hlf, sampled_particles, num_particles, labels, weights, classes)
    if split != TRAIN:
        # The scaler must depend on the training split only, so no other split has statistics.
        hlf = hlf[:0]
        sampled_particles = sampled_particles[:0]
    hlf_statistics = ColumnStatistics.from_rows(hlf, INPUT_COLUMNS["hlf"].log_above)
    particle_statistics = ColumnStatistics.from_rows(
        sampled_particles, INPUT_COLUMNS["particles"].log_above
    )
    written = WrittenGroup(split, file, digest, hlf_statistics, particle_statistics)
    return written, histograms


def _write_parquet(table: pa.Table, path: Path) -> str:
    """Write a table as one row group of a Parquet file, which appears whole.

    Returns:
        The digest of a file on object storage; empty for a local file.
    """
    with new_file(path) as unfinished:
        # Float features hardly repeat; the attempt at dictionaries costs a third of the time.
        pq.write_table(
            table,
            unfinished,
            compression="zstd",
            compression_level=1,
            row_group_size=max(1, table.num_rows),
            use_dictionary=_WITH_DICTIONARY,
            write_statistics=_WITH_STATISTICS,
            write_batch_size=1 << 16,
            write_page_checksum=True,
        )
        return file_digest(unfinished) if is_remote(path) else ""


def _with_file_schema(
    rows: pa.Table, classes: list[str], settings: Mapping[str, Any] | None
) -> pa.Table:
    """The columns of the features Parquet, then the pass-through columns, with metadata."""
    known_columns = {*unmixed_schema().names, *features_schema().names}
    pass_through = [field for field in rows.schema if field.name not in known_columns]
    schema = described_schema(features_schema(pass_through), classes, settings)
    return rows.select(schema.names).combine_chunks().cast(schema)
